"""A model in three lines, for `print`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.network.checkpoint import WEIGHTS
from anofpdm.student.student import FOLDER

if TYPE_CHECKING:
    from anofpdm.segment.model import Model


def describe_model(model: "Model") -> str:
    """Name and folder, modalities, engines."""
    lines = (
        f"AnoFPDM model {model.folder.resolve().name}: {model.folder}",
        f"modalities: {_describe_modalities(model)}",
        f"engines: {_describe_engines(model)}; slices of {model.size} x {model.size} pixels",
    )
    return "\n".join(lines)


def _describe_modalities(model: "Model") -> str:
    if model.student is None:
        return f"{_join(model.modalities)} needed"
    config = model.student.config
    optional = f", {_join(config.optional)} optional" if config.optional else ""
    same = model.trained is None or set(config.needed) == set(model.modalities)
    diffusion = "" if same else f" (diffusion engine: {_join(model.modalities)} needed)"
    return f"{_join(config.needed)} needed{optional}{diffusion}"


def _describe_engines(model: "Model") -> str:
    folders = {"student": model.folder / FOLDER, "diffusion": model.folder}
    present = {"student": model.student is not None, "diffusion": model.trained is not None}
    names = [f"{name}{_size(folders[name])}" for name, there in present.items() if there]
    return f"{', '.join(names)}{' (the student is damaged or outdated)' if model.student_problem else ''}"


def _size(folder: Path) -> str:
    weights = folder / WEIGHTS
    return f" ({weights.stat().st_size / 1e6:.1f} MB)" if weights.is_file() else ""


def _join(names: Iterable[str]) -> str:
    return ", ".join(name.upper() for name in names)
