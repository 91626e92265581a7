"""niivue, the volume viewer: one file of an npm package, fetched once from a lock file and kept in the user's cache.

npm holds the package against the hash in package-lock.json; the file itself is held against the hash in package.json
whenever a server starts. Nothing of it is part of this repository.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from anofpdm.errors import AnoFPDMError
from anofpdm.util.files import write_atomically

COMMAND = "anofpdm serve --set-up"
NPM = ("npm", "ci", "--ignore-scripts", "--omit=optional", "--omit=dev", "--no-audit", "--no-fund")
SECONDS = 300


@dataclass(frozen=True)
class Niivue:
    path: Path | None  # none: it is not there
    why_not: str = ""


def niivue() -> Niivue:
    """Where it is, if it is there and what it should be."""
    path = kept_at()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return Niivue(
            None, f"The volume viewer (niivue) is not set up here; the command '{COMMAND}' fetches it with npm."
        )
    if digest != _wanted()["sha256"]:
        return Niivue(None, f"The volume viewer (niivue) is not the file it should be; '{COMMAND}' fetches it anew.")
    return Niivue(path)


def kept_at() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "anofpdm" / f"niivue-{_wanted()['sha256'][:12]}.js"


def set_up() -> Path:
    """Fetch it by npm, as the lock file says, and keep the one file that is needed."""
    npm = shutil.which(NPM[0])
    if npm is None:
        raise AnoFPDMError("npm is not installed; install Node.js with npm, or do without: pages then show slices")
    with tempfile.TemporaryDirectory() as space:
        for name in ("package.json", "package-lock.json"):
            (Path(space) / name).write_bytes(_ours(name))
        _run([npm, *NPM[1:]], Path(space))
        data = (Path(space) / _wanted()["file"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != _wanted()["sha256"]:
        raise AnoFPDMError("the file that npm brought is not the one in package.json; nothing was changed")
    path = kept_at()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def _run(words: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise AnoFPDMError(f"npm did not answer ({type(problem).__name__}); check the network and try again") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()][:1] or ["it said nothing"]
        raise AnoFPDMError(f"npm ended with code {done.returncode}: {said[0]}; check the network and try again")


def _wanted() -> dict[str, Any]:
    wanted: dict[str, Any] = json.loads(_ours("package.json"))["anofpdm"]
    return wanted


def _ours(name: str) -> bytes:
    return (resources.files("anofpdm.viewer") / name).read_bytes()
