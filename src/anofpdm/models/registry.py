"""Models that ship with the package: their names, and what each is for.

A name works wherever the folder of a model is expected. A folder of that name in the working directory comes first.
"""

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from anofpdm.errors import ModelError
from anofpdm.util.artifacts import convert

FOLDER = Path(__file__).parent
FACTS, CARD, WEIGHTS = "facts.json", "README.md", "weights.safetensors"


@dataclass(frozen=True)
class Score:
    """One line of a model's card."""

    what: str  # "student, unhealthy DICE"
    data: str
    value: float
    interval: tuple[float, float]  # 95%, over patients

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1f} ({low:.1f}-{high:.1f})"


@dataclass(frozen=True)
class ShippedModel:
    """What ships under a name: the facts of its folder, which are also in the model's card."""

    name: str
    scans: str  # what scans it is for
    needs: tuple[str, ...]  # modalities
    licence: str  # of the weights
    uses: tuple[str, ...] = ()  # modalities that it uses if they are given
    scores: tuple[Score, ...] = ()

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def megabytes(self) -> float:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) / 1e6

    @property
    def engines(self) -> tuple[str, ...]:
        """The diffusion model, the student, or both."""
        places = {"diffusion": self.folder / WEIGHTS, "student": self.folder / "student" / WEIGHTS}
        return tuple(name for name, path in places.items() if path.is_file())

    @property
    def card(self) -> str:
        return (self.folder / CARD).read_text()


@cache
def shipped_models() -> dict[str, ShippedModel]:
    """By name. An install may leave some out."""
    facts = {path.parent.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"*/{FACTS}"))}
    return {name: convert(ShippedModel, {"name": name, **values}) for name, values in facts.items()}


def shipped_model(name: str) -> ShippedModel:
    try:
        return shipped_models()[name]
    except KeyError:
        raise ModelError(f"{name}: no model of that name ships; {_suggest(name)}") from None


def model_folder(name: str | Path) -> Path:
    """The folder of a model, given by its path or by the name of one that ships."""
    path = Path(name)
    shipped = shipped_models().get(str(name))
    if shipped is not None:
        return path if path.is_dir() else shipped.folder
    if not path.exists() and _close_names(str(name)):
        raise ModelError(f"{name}: no such folder, and no model of that name ships; {_suggest(str(name))}")
    return path


def writable_folder(name: str | Path) -> Path:
    """The same, for commands that write into the folder: not for models that ship."""
    path = model_folder(name)
    if path.is_relative_to(FOLDER):
        raise ModelError(
            f"{name}: this command writes into the model's folder, and this model ships with the package; "
            f"copy it first with `anofpdm models {path.name} --copy FOLDER`"
        )
    return path


def _close_names(name: str) -> list[str]:
    return difflib.get_close_matches(name, shipped_models(), 1)


def _suggest(name: str) -> str:
    close = _close_names(name)
    return f"did you mean {close[0]}?" if close else f"those that ship are {', '.join(shipped_models())}"
