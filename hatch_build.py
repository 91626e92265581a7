"""Build hooks: models that a build leaves out, niivue in the wheel, and the licences of what is in a build.

    ANOFPDM_LEAVE_OUT=lgg ANOFPDM_NIIVUE=require python -m build

The terms of a model's weights are in its DATA_LICENSE, which starts with an SPDX identifier. Weights without that file
are under the licence of the code. niivue, the volume viewer, comes from npm; without npm or a network, a wheel is built
without it, unless it is required.
"""

import json
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "ANOFPDM_LEAVE_OUT"
OPTIONAL = ("glioma", "lgg", "stroke")  # the demo needs the others
MODELS = "src/anofpdm/models"
CODE = "Apache-2.0"
NIIVUE = "ANOFPDM_NIIVUE"
VIEWER = "src/anofpdm/viewer"


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


class Build(BuildHookInterface[Any]):
    _npm: "TemporaryDirectory[str] | None" = None  # until the wheel is written

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._leave_out(version)
        choice = os.environ.get(NIIVUE, "")
        if choice not in ("", "require", "skip"):
            raise ValueError(f"{NIIVUE}: {choice}: choose from require, skip")
        if self.target_name == "wheel" and version == "standard" and choice != "skip":
            self._add_niivue(build_data, required=choice == "require")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._npm is not None:
            self._npm.cleanup()

    def _leave_out(self, version: str) -> None:
        names = left_out()
        if names and version == "editable":
            raise ValueError(f"{VARIABLE}: an editable install uses the clone; remove {MODELS}/NAME there instead")
        target = self.build_config.target_config
        target["exclude"] = [*target.get("exclude", []), *(f"/{MODELS}/{name}/" for name in names)]
        for name in names:
            if not self.build_config.path_is_excluded(f"{MODELS}/{name}/weights.safetensors"):
                raise RuntimeError(f"{VARIABLE}: this version of hatchling does not leave out {name}")

    def _add_niivue(self, build_data: dict[str, Any], *, required: bool) -> None:
        sys.path.insert(0, str(Path(self.root, "src")))
        from anofpdm.errors import AnoFPDMError
        from anofpdm.viewer.niivue import fetch_niivue

        self._npm = TemporaryDirectory()
        folder = Path(self._npm.name)
        try:
            script = fetch_niivue(folder)
        except AnoFPDMError as problem:
            if required:
                raise RuntimeError(f"{NIIVUE}: {problem}") from None
            print(f"The wheel is built without niivue, the volume viewer: {problem}", file=sys.stderr)
            return
        licences = folder / "licences.txt"
        licences.write_text(niivue_licences(Path(self.root, VIEWER), folder))
        static = "anofpdm/viewer/static"
        build_data["force_include"] |= {str(script): f"{static}/niivue.js", str(licences): f"{static}/niivue.LICENSE"}
        self._extend_licence(niivue_identifiers(folder))

    def _extend_licence(self, others: set[str]) -> None:
        """Of this wheel; hatchling has read the metadata, which are fixed in an sdist."""
        core = self.metadata.core
        expression = " AND ".join([CODE, *sorted({*core.license_expression.split(" AND "), *others} - {CODE})])
        core._license_expression = expression
        if f"License-Expression: {expression}\n" not in self.build_config.core_metadata_constructor(self.metadata):
            raise RuntimeError(f"this version of hatchling does not change the licence; set {NIIVUE}=skip")


def npm_packages(folder: Path) -> dict[str, str]:
    """Folder and licence of each installed package; parts of all of them are in the one file of niivue."""
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    return {path: one["license"] for path, one in locked.items() if path and (folder / path).is_dir()}


def niivue_identifiers(folder: Path) -> set[str]:
    return set(npm_packages(folder).values())


def niivue_licences(viewer: Path, folder: Path) -> str:
    """niivue's, which is not in its npm package, and those of the packages that it contains."""
    texts = ["niivue.js is niivue, under this licence:", (viewer / "niivue.LICENSE").read_text().strip()]
    for path in npm_packages(folder):
        files = [file for file in sorted((folder / path).iterdir()) if file.name.lower().startswith("licen")]
        texts += [
            f"It contains parts of {path.removeprefix('node_modules/')}:\n\n{file.read_text().strip()}"
            for file in files
        ]
    return f"\n\n{80 * '-'}\n\n".join(texts) + "\n"
