"""Damaged and inconsistent students, in the folder of their model."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from faults.bad_files.base import UNUSUAL, Case, Change, Make, ValidFiles, flip_byte, segment_valid
from faults.bad_files.models import BAD_WEIGHTS, change_model, rewrite_metadata

NAN = float("nan")
WEIGHTS = "student/weights.safetensors"
BAD_METADATA: dict[str, tuple[Any, ...]] = {
    "task": (None, "guided", 1), "teacher_sha256": (None, "0" * 64, 7), "network": (None, "x", 3),
    "calibration": (None, "x", []),
}  # fmt: skip
BAD_NETWORK: dict[str, tuple[Any, ...]] = {
    "modalities": ([], "flair", ["flair", "t2", "t1"], [1, 2], ["flair", "flair"]),
    "size": (0, -64, 60, 128.5, "x", 10**6), "neighbours_mm": ([NAN, 1.0], ["a", "b"], [2.5], "x", 3),
    "width": (0, 8, 9, "x", 10**9), "multipliers": ([], [0], "ab", [1, 2], [10**9]), "other": (1,),
}  # fmt: skip
BAD_CALIBRATION: dict[str, tuple[Any, ...]] = {
    "detector": (None, "x", {}), "accuracy": ("x", [1]), "context_mm": ("x", -1),
    "detection_mm": ("x", 5, [5], [-1, 5], [NAN, 5]), "smallest": ("x", -1, 1.5), "faint_span": ("x", 0), "other": (1,),
}  # fmt: skip


def cases(kind: str = "student") -> Iterator[Case]:
    for at in (0, 8, 500, 20_000, -1):
        yield _change(f"truncated at {at}", kind, lambda data, at=at: data[:at])
    for at in (0, 8, 400, 20_000, 500_000, -1):
        yield _change(f"flipped at {at}", kind, lambda data, at=at: flip_byte(data, at))
    for name, content in BAD_WEIGHTS.items():
        yield _change(f"weights {name}", kind, lambda _data, content=content: content)
    for name, changes in _bad_metadata():
        make = _with_metadata(changes)
        yield Case(f"segment student with a valid hash, {name}", kind, make, mentions="student")
    unknown = _with_metadata({"network": {"modalities": ["flair", "t9"]}})
    yield Case("segment student with an unknown modality", kind, unknown, mentions="t9")
    for name in ("auto", "student"):
        yield Case(f"segment without a student, engine {name}", kind, _without(name), name == "auto", "no student")
    config, empty = "student/config.json", lambda _data: b""
    yield change_model("student config empty", kind, config, empty, engine="student")
    yield change_model("student damaged, not used", UNUSUAL, WEIGHTS, lambda data: data[:500], valid=True)


def _change(name: str, kind: str, change: Change) -> Case:
    return change_model(f"student {name}", kind, WEIGHTS, change, engine="student")


def _bad_metadata() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, values in BAD_METADATA.items():
        yield from ((f"{name} {value!s:.24}", {name: value}) for value in values)
    for part, entries in (("network", BAD_NETWORK), ("calibration", BAD_CALIBRATION)):
        for name, values in entries.items():
            yield from ((f"{part} {name} {value!s:.24}", {part: {name: value}}) for value in values)


def _with_metadata(changes: Mapping[str, Any]) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copytree(files.model, folder / "model7")
        rewrite_metadata(files.model / "student", folder / "model7" / "student", changes)
        return segment_valid(files, model="model7", engine="student")

    return make


def _without(engine: str) -> Make:
    """`auto` uses the diffusion model then, with its own options."""

    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copytree(files.model, folder / "model7")
        shutil.rmtree(folder / "model7" / "student")
        options = segment_valid(files, model="model7", engine="diffusion" if engine == "auto" else "student")
        return [engine if option == "diffusion" else option for option in options]

    return make
