"""Build hooks: models that a build leaves out, and the licences of what remains.

    ANOFPDM_LEAVE_OUT=lgg python -m build

The terms of a model's weights are in its DATA_LICENSE, which starts with an SPDX identifier. Weights without that file
are under the licence of the code.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "ANOFPDM_LEAVE_OUT"
OPTIONAL = ("glioma", "lgg", "stroke")  # the demo needs the others
MODELS = "src/anofpdm/models"
CODE = "Apache-2.0"


def left_out() -> list[str]:
    """Models named in the variable, separated by commas."""
    names = sorted({name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""})
    if unknown := set(names) - set(OPTIONAL):
        raise ValueError(f"{VARIABLE}: {', '.join(sorted(unknown))}: choose from {', '.join(OPTIONAL)}")
    return names


def data_licences(root: Path) -> list[Path]:
    """Of models that this build contains."""
    return sorted(path for path in (root / MODELS).glob("*/DATA_LICENSE") if path.parent.name not in left_out())


def identifier(path: Path) -> str:
    if found := re.match(r"SPDX-License-Identifier: (\S+)\n", path.read_text()):
        return found[1]
    raise ValueError(f"{path}: the first line must be an SPDX-License-Identifier")


class Licences(MetadataHookInterface):
    """Not called for an unpacked sdist, whose metadata are fixed."""

    def update(self, metadata: dict[str, Any]) -> None:
        files = data_licences(Path(self.root))
        others = {identifier(path) for path in files} - {CODE}
        metadata["license"] = " AND ".join([CODE, *sorted(others)])
        metadata["license-files"] = ["LICENSE", *(path.relative_to(self.root).as_posix() for path in files)]


class LeaveOut(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        names = left_out()
        if names and version == "editable":
            raise ValueError(f"{VARIABLE}: an editable install uses the clone; remove {MODELS}/NAME there instead")
        target = self.build_config.target_config
        target["exclude"] = [*target.get("exclude", []), *(f"/{MODELS}/{name}/" for name in names)]
        for name in names:
            if not self.build_config.path_is_excluded(f"{MODELS}/{name}/weights.safetensors"):
                raise RuntimeError(f"{VARIABLE}: this version of hatchling does not leave out {name}")
