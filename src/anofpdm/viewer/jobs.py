"""Scans that were accepted, each a folder with a state file that is whole at any moment.

    incoming/            uploads that are not whole yet; emptied at every start
    jobs/ID/job.json     what became of it
    jobs/ID/input/       what was uploaded, under names of our own
    jobs/ID/result/      what came out
    trash/               on its way out; emptied at every start

An id is 128 random bits. Nothing that a client says becomes part of a path: an id from a client is looked up, no more.
"""

import contextlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from anofpdm.segment.outputs import SUMMARY
from anofpdm.util.files import write_atomically
from anofpdm.viewer.refusals import gone

STATE, INPUT, RESULT = "job.json", "input", "result"
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
TOLD = ("volume_ml", "findings", "slices", "slices_detected", "warnings")  # of a summary
SHORT = 6  # letters of an id that tell it apart, in a log, and do not give it away


@dataclass(frozen=True)
class Job:
    id: str
    number: int  # in the order of acceptance
    state: str = QUEUED
    accepted: float = 0.0  # seconds since 1970, as the next two
    started: float | None = None
    finished: float | None = None
    files: dict[str, str] = field(default_factory=dict)  # modality, or dicom, to a name in the input folder
    series: str = ""  # which DICOM series is which, in the user's words
    attempts: int = 0
    error: str | None = None
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def short(self) -> str:
        return self.id[:SHORT]

    @property
    def over(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)


class JobStore:
    """All jobs, in memory and on disk. Every change is on disk before it is told to anyone."""

    def __init__(self, folder: Path, attempts: int = 3):
        self.folder, self._attempts = folder, attempts
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        for name in ("incoming", "trash"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("incoming", "jobs", "trash"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        for place in sorted((folder / "jobs").iterdir()):
            self._take_up(place)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise gone()
        return job

    def queued(self) -> list[Job]:
        return sorted(self._in_state(QUEUED), key=lambda job: job.number)

    def running(self) -> list[Job]:
        return self._in_state(RUNNING)

    def count(self) -> int:
        with self._lock:
            return len(self._jobs)

    def place(self, job: Job, part: str = "") -> Path:
        return self.folder / "jobs" / job.id / part

    def _in_state(self, state: str) -> list[Job]:
        with self._lock:
            return [job for job in self._jobs.values() if job.state == state]

    # ---- changing ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder for an upload. What is still in it afterwards is removed."""
        place = self.folder / "incoming" / secrets.token_hex(16)
        (place / INPUT).mkdir(parents=True, mode=0o700)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def accept(self, place: Path, files: dict[str, str], series: str = "") -> Job:
        """From here on, the scan is ours to finish, whatever happens."""
        with self._lock:
            number = 1 + max((job.number for job in self._jobs.values()), default=0)
            job = Job(secrets.token_hex(16), number, accepted=time.time(), files=files, series=series)
            write_atomically(place / STATE, _written(job))
            place.rename(self.place(job))
            self._jobs[job.id] = job
            return job

    def change(self, job_id: str, **changes: Any) -> Job:
        with self._lock:
            job = replace(self.get(job_id), **changes)
            write_atomically(self.place(job, STATE), _written(job))
            self._jobs[job_id] = job
            return job

    def start(self, job: Job) -> Job:
        return self.change(job.id, state=RUNNING, started=time.time(), attempts=job.attempts + 1)

    def finish(self, job: Job, made: Path) -> Job:
        """`made` becomes the result."""
        with self._lock:
            self.get(job.id)
            shutil.rmtree(self.place(job, RESULT), ignore_errors=True)
            made.rename(self.place(job, RESULT))
            return self.change(job.id, **self._finished(job))

    def fail(self, job: Job, reason: str) -> Job:
        return self._end(job, FAILED, reason)

    def cancel(self, job: Job) -> Job:
        return self._end(job, CANCELLED, None)

    def again(self, job: Job, reason: str) -> Job:
        """To the queue, at its old place; given up when that has happened too often."""
        if job.attempts >= self._attempts:
            return self.fail(job, reason)
        return self.change(job.id, state=QUEUED, started=None)

    def delete(self, job: Job) -> None:
        """Out of sight at once; the disk follows."""
        with self._lock:
            self.get(job.id)
            away = self.folder / "trash" / secrets.token_hex(8)
            self.place(job).rename(away)
            del self._jobs[job.id]
        shutil.rmtree(away, ignore_errors=True)

    def _end(self, job: Job, state: str, reason: str | None) -> Job:
        """Without a result; what was uploaded is not kept."""
        with self._lock:
            shutil.rmtree(self.place(job, INPUT), ignore_errors=True)
            return self.change(job.id, state=state, error=reason, finished=time.time())

    # ---- after a restart ---------------------------------------------------------------------------------------------

    def _take_up(self, place: Path) -> None:
        job = _read(place)
        if job is None:
            return  # not ours to judge: it stays on disk
        self._jobs[job.id] = job
        for half_made in place.glob("attempt-*"):
            shutil.rmtree(half_made, ignore_errors=True)
        if job.state == RUNNING and (place / RESULT / SUMMARY).is_file():
            self.change(job.id, **self._finished(job))
        elif job.state == RUNNING:
            self.again(job, "The server ended while it worked on this scan, several times; it is given up.")

    def _finished(self, job: Job) -> dict[str, Any]:
        said = json.loads(self.place(job, f"{RESULT}/{SUMMARY}").read_text())
        return {"state": DONE, "finished": time.time(), "found": {name: said.get(name) for name in TOLD}}


def _written(job: Job) -> bytes:
    return json.dumps(asdict(job), indent=2).encode()


def _read(place: Path) -> Job | None:
    try:
        job = Job(**json.loads((place / STATE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return job if job.id == place.name else None
