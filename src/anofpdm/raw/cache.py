"""Results of stages in a folder, each with what it was computed from.

The manifest records a key and the sha256 of every file. A file that is damaged, or was replaced by another run, does
not match and is computed again.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anofpdm import __version__
from anofpdm.util.files import folder_lock, read_regular_file, remove_temporary_files, translate_write_errors
from anofpdm.util.files import write_atomically as write

FORMAT = 2  # incremented whenever a stage is computed in another way
MANIFEST = "manifest.json"
Key = dict[str, Any]


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class StageStore:
    def __init__(self, folder: Path):
        self.folder = folder

    @contextlib.contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Other runs that use the folder wait meanwhile, and then reuse what was stored."""
        self.path("")
        with folder_lock(self.folder, on_wait=on_wait):
            remove_temporary_files(self.folder)
            yield

    def path(self, file: str) -> Path:
        """Where to write a file; the folder is created."""
        with translate_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / file

    def find(self, file: str, key: Key) -> dict[str, Any] | None:
        """The record of a stored file, if it was computed from the same input and is intact."""
        record = self._manifest()["stages"].get(file)
        if not isinstance(record, dict) or record.get("key") != key:
            return None
        try:
            return record if record.get("sha256") == file_sha256(self.folder / file) else None
        except OSError:
            return None

    def record(self, file: str, key: Key, **more: Any) -> None:
        """Call it after the file has been written."""
        described = {"key": key, "sha256": file_sha256(self.folder / file), **more}
        self.update(stages=self._manifest()["stages"] | {file: described})

    def update(self, **parts: Any) -> None:
        write(self.path(MANIFEST), json.dumps(self._manifest() | parts, indent=2).encode())

    def _manifest(self) -> dict[str, Any]:
        empty = {"format": FORMAT, "anofpdm": __version__, "stages": {}}
        try:
            manifest = json.loads(read_regular_file(self.folder / MANIFEST))
        except (OSError, ValueError):
            return empty
        fits = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        return manifest if fits and isinstance(manifest.get("stages"), dict) else empty
