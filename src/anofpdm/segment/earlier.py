"""Results of earlier runs in an output folder. A result belongs to its model, its options and its input: only those of
the same ones are complete; others are never replaced unasked."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anofpdm.segment import outputs
from anofpdm.util.files import file_sha256

VERSIONS = ("anofpdm", "torch")
MODEL_KEYS = ("engine", "model_sha256", "calibration_sha256", "student_sha256", "student")
LONGEST_VALUE = 40  # characters, in messages


@dataclass(frozen=True)
class EarlierResult:
    folder: Path
    summary: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, name: Callable[[str], str]) -> "EarlierResult | None":
        """None where there is no summary, or a damaged one: the result is incomplete, and is made again."""
        try:
            summary = json.loads((folder / name(outputs.SUMMARY)).read_text())
            complete = {**summary, "volume_ml": float(summary["volume_ml"]), "settings": dict(summary["settings"])}
            hashes = {key: str(image["sha256"]) for key, image in summary["inputs"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return cls(folder, {**complete, "inputs": hashes})

    @property
    def volume_ml(self) -> float:
        return float(self.summary["volume_ml"])

    def conflict(self, model: str, settings: Mapping[str, Any], images: Mapping[str, Path] | None) -> str:
        """In what it differs from the result that would be written, as a message; empty if in nothing but versions.
        Without images, they are not compared."""
        mine, ours = self.summary["settings"], _as_saved(settings)
        if any(mine.get(key) != ours.get(key) for key in MODEL_KEYS):
            return self._of_another_model(model, ours)
        leaves, others = dict(_leaves(mine)), dict(_leaves(ours))
        names = [name for name in {**leaves, **others} if name not in VERSIONS]
        different = [name for name in names if leaves.get(name) != others.get(name)]
        if different:
            changes = (_change(name, leaves.get(name), others.get(name)) for name in different)
            return f"was made with other options ({'; '.join(changes)})"
        return "" if images is None else self._input_conflict(images)

    def _of_another_model(self, model: str, ours: Mapping[str, Any]) -> str:
        engine, settings = self.summary["settings"].get("engine"), self.summary["settings"]
        name = self.summary.get("model") or f"model {str(settings.get('model_sha256'))[:8]}"
        again = "another version of " if (name, engine) == (model, ours.get("engine")) else ""
        return f"was made by {again}{name} (engine {engine})"

    def _input_conflict(self, images: Mapping[str, Path]) -> str:
        before = self.summary["inputs"]
        if set(before) != set(images):
            return f"was made from {', '.join(before)}, and now {', '.join(images)} is given"
        changed = [key for key, path in images.items() if file_sha256(path) != before[key]]
        return f"was made from another {' and '.join(changed)} image" if changed else ""

    def version_note(self, settings: Mapping[str, Any]) -> str:
        """Empty if the versions are the same."""
        mine = self.summary["settings"]
        different = [name for name in VERSIONS if mine.get(name) != settings.get(name)]
        listed = ", ".join(f"{name} {mine.get(name)}, now {settings.get(name)}" for name in different)
        return f"kept from a run with other versions ({listed})" if different else ""


def _as_saved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON holds them: lists instead of tuples."""
    saved: dict[str, Any] = json.loads(json.dumps(settings))
    return saved


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _change(name: str, before: object, now: object) -> str:
    return f"{name.rpartition('.')[2]} {_short(before)}, now {_short(now)}"


def _short(value: object) -> str:
    text = "none" if value is None else json.dumps(value) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
