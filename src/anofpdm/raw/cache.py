"""What is kept of a study: brains and transforms in a folder, each with what it was computed from.

The manifest records a key and the sha256 of every file. A file that is damaged, or was replaced by another run, does
not match and is computed again.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from anofpdm import __version__
from anofpdm.errors import AnoFPDMError
from anofpdm.util.files import (
    file_sha256,
    folder_lock,
    read_regular_file,
    remove_temporary_files,
    translate_write_errors,
    write_atomically,
)
from anofpdm.util.progress import Progress, silent

FORMAT = 3  # incremented whenever a stage is computed in another way
MANIFEST = "manifest.json"
T = TypeVar("T")


def discard(line: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class StudyCache:
    """Where the results of a study are kept, and what receives a line per stage. A later run, with another model or
    other series of the study, reuses the stages that still apply."""

    folder: Path | None = None  # None: nothing is kept
    report: Callable[[str], None] = discard
    progress: Progress = silent
    keep_series: bool = True  # also the registered series; else only what is slow to compute again, and pictures
    brains: dict[str, bytes] = field(default_factory=dict)  # extracted earlier in this run (BrainFinder.extracted)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Other runs that use the folder wait meanwhile, and then reuse what was stored."""
        if self.folder is None:
            yield
            return
        with translate_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another run that writes to {self.folder}"
        with folder_lock(self.folder, on_wait=lambda: self.report(waiting)):
            remove_temporary_files(self.folder)
            yield

    def once(
        self,
        file: str,
        key: dict[str, Any],
        compute: Callable[[], T],
        write: Callable[[Path, T], dict[str, Any] | None],  # returns what else the manifest records
        read: Callable[[Path, dict[str, Any]], T],
    ) -> tuple[T, bool]:
        """The stored result, if it is intact and was computed from the same input; else a new one, which is stored.
        Also whether it was stored."""
        if self.folder is None:
            return compute(), False
        path = self.folder / file
        with contextlib.suppress(AnoFPDMError, OSError, ValueError, KeyError, TypeError):
            record = self.manifest()["stages"][file]
            if record["key"] == key and record["sha256"] == file_sha256(path):
                return read(path, record), True
        result = compute()
        record = {"key": key, **(write(path, result) or {}), "sha256": file_sha256(path)}
        self.update(stages=self.manifest()["stages"] | {file: record})
        return result, False

    def update(self, **parts: Any) -> None:
        if self.folder is not None:
            write_atomically(self.folder / MANIFEST, json.dumps(self.manifest() | parts, indent=2).encode())

    def manifest(self) -> dict[str, Any]:
        """An empty one where it is missing, damaged or of another format."""
        if self.folder is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                manifest: dict[str, Any] = json.loads(read_regular_file(self.folder / MANIFEST))
                if manifest["format"] == FORMAT and isinstance(manifest["stages"], dict):
                    return manifest
        return {"format": FORMAT, "anofpdm": __version__, "stages": {}}
