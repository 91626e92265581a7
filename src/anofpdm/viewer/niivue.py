"""niivue, the volume viewer: one file of an npm package, in the wheel (hatch_build.py) or in the user's cache.

npm checks the package against the hash in package-lock.json. The file itself is checked against the hash in
package.json at every start of a server. It is not part of this repository. Imports only the standard library, so that
a build can use it.
"""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from anofpdm.errors import AnoFPDMError
from anofpdm.util.files import file_sha256, write_atomically

COMMAND = "anofpdm serve --set-up"
NPM = (
    "npm", "ci", "--ignore-scripts", "--omit=optional", "--omit=dev", "--no-audit", "--no-fund",
    "--fetch-retries=1", "--fetch-retry-mintimeout=2000", "--fetch-timeout=30000",
)  # fmt: skip
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Niivue:
    path: Path | None  # None: not available
    why_not: str = ""


def find_niivue() -> Niivue:
    """The file of the wheel or of the cache, if it has the expected hash."""
    installed = [path for path in (packaged_path(), cache_path()) if os.access(path, os.R_OK)]
    for path in installed:
        if file_sha256(path) == _pinned()["sha256"]:
            return Niivue(path)
    if installed:
        return Niivue(None, f"The volume viewer (niivue) has an unexpected hash; '{COMMAND}' reinstalls it.")
    return Niivue(None, f"The volume viewer (niivue) is not installed; '{COMMAND}' installs it with npm.")


def packaged_path() -> Path:
    return Path(str(resources.files("anofpdm.viewer") / "static" / "niivue.js"))


def cache_path() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "anofpdm" / f"niivue-{_pinned()['sha256'][:12]}.js"


def install_niivue() -> Path:
    """Into the cache; only the one file that is needed is kept."""
    with tempfile.TemporaryDirectory() as folder:
        data = fetch_niivue(Path(folder)).read_bytes()
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def fetch_niivue(folder: Path) -> Path:
    """Install it with npm from the lock file into `folder`; returns the one file that is needed."""
    npm = shutil.which(NPM[0])
    if npm is None:
        raise AnoFPDMError("npm is not installed; install Node.js with npm. Without niivue, pages show the report only")
    for name in ("package.json", "package-lock.json"):
        (folder / name).write_bytes(_read_resource(name))
    _run([npm, *NPM[1:]], folder)
    path = folder / _pinned()["file"]
    if not path.is_file():
        raise AnoFPDMError(f"npm installed no {_pinned()['file']}; use another version of npm")
    if file_sha256(path) != _pinned()["sha256"]:
        raise AnoFPDMError("the file from npm does not have the hash in package.json; nothing was changed")
    return path


def _run(command: list[str], folder: Path) -> None:
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AnoFPDMError(f"npm did not run ({type(error).__name__}); check the network and try again") from None
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if "error" in line.lower()] or ["no error message"]
        raise AnoFPDMError(f"npm ended with code {ran.returncode}: {lines[0]}; check the network and try again")


def _pinned() -> dict[str, str]:
    """Name (`file`) and hash (`sha256`) of the needed file of the npm package."""
    return dict(json.loads(_read_resource("package.json"))["anofpdm"])


def _read_resource(name: str) -> bytes:
    return (resources.files("anofpdm.viewer") / name).read_bytes()
