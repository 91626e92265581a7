"""Results of earlier runs in an output folder. A result belongs to its model, its options and its input: only those of
the same ones are complete; others are never replaced unasked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anofpdm.report.summary import Summary, flatten_settings
from anofpdm.util.files import file_sha256

VERSIONS = ("anofpdm", "torch")
MODEL_KEYS = ("engine", "model_sha256", "calibration_sha256", "student_sha256", "student")
LONGEST_VALUE = 40  # characters, in messages


def describe_conflict(earlier: Summary, model: str, settings: Mapping[str, Any], images: Mapping[str, Path]) -> str:
    """In what it differs from the result that would be written, as a message; empty if in nothing but versions."""
    before, now = dict(flatten_settings(earlier.settings)), dict(flatten_settings(json.loads(json.dumps(settings))))
    different = [key for key in {**before, **now} if key not in VERSIONS and before.get(key) != now.get(key)]
    if any(key.partition(".")[0] in MODEL_KEYS for key in different):
        name, engine = earlier.model or f"model {str(before.get('model_sha256'))[:8]}", before.get("engine")
        again = "another version of " if (name, engine) == (model, now.get("engine")) else ""
        return f"was made by {again}{name} (engine {engine})"
    if different:
        changes = (
            f"{key.rpartition('.')[2]} {_short(before.get(key))}, now {_short(now.get(key))}" for key in different
        )
        return f"was made with other options ({'; '.join(changes)})"
    if set(earlier.inputs) != set(images):
        return f"was made from {', '.join(earlier.inputs)}, and now {', '.join(images)} is given"
    changed = [key for key, path in images.items() if file_sha256(path) != earlier.inputs[key].sha256]
    return f"was made from another {' and '.join(changed)} image" if changed else ""


def describe_versions(earlier: Summary, settings: Mapping[str, Any]) -> str:
    """Empty if the versions are the same."""
    different = [name for name in VERSIONS if earlier.settings.get(name) != settings[name]]
    listed = ", ".join(f"{name} {earlier.settings.get(name)}, now {settings[name]}" for name in different)
    return f"kept from a run with other versions ({listed})" if different else ""


def _short(value: object) -> str:
    text = "none" if value is None else json.dumps(value) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
