"""What is kept of a study: brains and transforms in a folder, each with what it was computed from.

The manifest records a key and the sha256 of every file. A file that is damaged, or was replaced by another run, does
not match and is computed again.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from anofpdm import __version__
from anofpdm.errors import AnoFPDMError, ScanError
from anofpdm.util.files import (
    folder_lock,
    read_regular_file,
    remove_temporary_files,
    translate_write_errors,
    write_atomically,
)
from anofpdm.util.progress import Progress, silent

FORMAT = 2  # incremented whenever a stage is computed in another way
MANIFEST = "manifest.json"
T = TypeVar("T")


def discard(line: str) -> None:
    """Reports nothing."""


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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

    @contextlib.contextmanager
    def stage(self, name: str, note: str, steps: tuple[int, int]) -> Iterator["Stage"]:
        """A brain or a registration of a series; `steps`: how many stages are finished, and how many there are."""
        done, total = steps
        self.progress("Preparing", done, total, note)
        stage, start = Stage(self), time.perf_counter()
        try:
            yield stage
        except ScanError as problem:
            if stage.picture is None or self.folder is None:
                raise
            path = self.folder / f"failed_{name}.png"
            write_atomically(path, stage.picture())
            raise ScanError(f"{problem} (picture: {path})") from None
        stage.seconds = time.perf_counter() - start
        self.progress("Preparing", done + 1, total, note)
        self.report(f"{name}: {stage.summary}{', reused' if stage.reused else ''}, {stage.seconds:.1f} s")

    def update(self, **parts: Any) -> None:
        if self.folder is not None:
            write_atomically(self.folder / MANIFEST, json.dumps(self.manifest() | parts, indent=2).encode())

    def manifest(self) -> dict[str, Any]:
        empty = {"format": FORMAT, "anofpdm": __version__, "stages": {}}
        try:
            manifest = json.loads(read_regular_file(self.folder / MANIFEST)) if self.folder else empty
        except (OSError, ValueError):
            return empty
        fits = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        return manifest if fits and isinstance(manifest.get("stages"), dict) else empty


@dataclass
class Stage:
    cache: StudyCache
    reused: bool = False  # whether an earlier run computed it
    summary: str = ""  # for the user
    seconds: float = 0.0
    picture: Callable[[], bytes] | None = None  # drawn where a check fails

    def once(
        self,
        file: str,
        key: dict[str, Any],
        compute: Callable[[], T],
        write: Callable[[Path, T], dict[str, Any] | None],  # returns what else the manifest records
        read: Callable[[Path, dict[str, Any]], T],
    ) -> T:
        """The stored result, if it is intact and was computed from the same input; else a new one, which is stored."""
        if self.cache.folder is None:
            return compute()
        path = self.cache.folder / file
        with contextlib.suppress(AnoFPDMError, OSError, ValueError, KeyError, TypeError):
            record = self.cache.manifest()["stages"][file]
            if record["key"] == key and record["sha256"] == file_sha256(path):
                result, self.reused = read(path, record), True
                return result
        result = compute()
        record = {"key": key, **(write(path, result) or {}), "sha256": file_sha256(path)}
        self.cache.update(stages=self.cache.manifest()["stages"] | {file: record})
        return result
