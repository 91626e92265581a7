"""Accepted scans, one folder each, with a state file that is always complete.

    incoming/            incomplete uploads; deleted at every start
    jobs/ID/job.json     state of the job
    jobs/ID/input/       uploaded files, named by the server
    jobs/ID/result/      results
    trash/               being deleted; deleted at every start

An id is 128 random bits. An id from a client is only looked up, never used as part of a path.
"""

import contextlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from anofpdm.segment.outputs import MISSING_MODALITIES, SUMMARY
from anofpdm.util.files import write_atomically
from anofpdm.viewer.limits import scan_not_found

STATE, INPUT, RESULT = "job.json", "input", "result"
SUMMARY_FIELDS = ("volume_ml", "findings", "slices", "slices_detected", MISSING_MODALITIES, "warnings")


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Job:
    id: str
    number: int  # order of acceptance
    state: JobState = JobState.QUEUED
    accepted: float = 0.0  # seconds since 1970, as the next two
    started: float | None = None
    finished: float | None = None
    files: dict[str, str] = field(default_factory=dict)  # modality or dicom: file name in the input folder
    series: str = ""  # which DICOM series is which modality, as typed by the user
    attempts: int = 0
    error: str | None = None
    found: dict[str, Any] = field(default_factory=dict)  # SUMMARY_FIELDS of the result

    @property
    def short_id(self) -> str:
        return self.id[:6]  # for logs and titles: enough to recognise an id, too few letters to use it

    @property
    def title(self) -> str:
        return f"Scan {self.short_id}"

    @property
    def is_finished(self) -> bool:
        return self.state not in (JobState.QUEUED, JobState.RUNNING)


class JobStore:
    """All jobs, in memory and on disk. Every change is written to disk before it is visible."""

    def __init__(self, folder: Path, attempts: int = 3):
        self.folder, self._attempts = folder, attempts
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        for name in ("incoming", "trash"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("incoming", "jobs", "trash"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        for job_folder in sorted((folder / "jobs").iterdir()):
            self._restore(job_folder)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise scan_not_found()
        return job

    def queued(self) -> list[Job]:
        return sorted(self._in_state(JobState.QUEUED), key=lambda job: job.number)

    def running(self) -> list[Job]:
        return self._in_state(JobState.RUNNING)

    def newest(self, count: int) -> list[Job]:
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: -job.number)[:count]

    def path(self, job: Job, part: str = "") -> Path:
        return self.folder / "jobs" / job.id / part

    def _in_state(self, state: JobState) -> list[Job]:
        with self._lock:
            return [job for job in self._jobs.values() if job.state == state]

    # ---- changing ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A temporary folder for an upload, removed afterwards unless it was accepted."""
        folder = self.folder / "incoming" / secrets.token_hex(16)
        (folder / INPUT).mkdir(parents=True, mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def accept(self, folder: Path, files: dict[str, str], series: str = "") -> Job:
        """Turn an incoming folder into a queued job, which survives a crash from here on."""
        with self._lock:
            number = 1 + max((job.number for job in self._jobs.values()), default=0)
            job = Job(secrets.token_hex(16), number, accepted=time.time(), files=files, series=series)
            write_atomically(folder / STATE, _encode(job))
            folder.rename(self.path(job))
            self._jobs[job.id] = job
            return job

    def change(self, job_id: str, **changes: Any) -> Job:
        with self._lock:
            job = replace(self.get(job_id), **changes)
            write_atomically(self.path(job, STATE), _encode(job))
            self._jobs[job_id] = job
            return job

    def start(self, job: Job) -> Job:
        return self.change(job.id, state=JobState.RUNNING, started=time.time(), attempts=job.attempts + 1)

    def finish(self, job: Job, output: Path) -> Job:
        """The folder `output` becomes the result."""
        with self._lock:
            self.get(job.id)
            shutil.rmtree(self.path(job, RESULT), ignore_errors=True)
            output.rename(self.path(job, RESULT))
            return self._mark_done(job)

    def end(self, job: Job, state: JobState, reason: str | None = None) -> Job:
        """End without a result; the uploaded files are deleted."""
        with self._lock:
            shutil.rmtree(self.path(job, INPUT), ignore_errors=True)
            return self.change(job.id, state=state, error=reason, finished=time.time())

    def retry(self, job: Job, reason: str) -> Job:
        """Back to its old place in the queue; after too many attempts it fails with `reason`."""
        if job.attempts >= self._attempts:
            return self.end(job, JobState.FAILED, reason)
        return self.change(job.id, state=JobState.QUEUED, started=None)

    def delete(self, job: Job) -> None:
        """Renamed first, so that it disappears at once."""
        with self._lock:
            self.get(job.id)
            trash = self.folder / "trash" / secrets.token_hex(8)
            self.path(job).rename(trash)
            del self._jobs[job.id]
        shutil.rmtree(trash, ignore_errors=True)

    def _mark_done(self, job: Job) -> Job:
        summary = json.loads(self.path(job, f"{RESULT}/{SUMMARY}").read_text())
        found = {name: summary.get(name) for name in SUMMARY_FIELDS}
        return self.change(job.id, state=JobState.DONE, finished=time.time(), found=found)

    # ---- after a restart ---------------------------------------------------------------------------------------------

    def _restore(self, folder: Path) -> None:
        try:
            job = Job(**json.loads((folder / STATE).read_text()))
            job = replace(job, state=JobState(job.state))
        except (OSError, ValueError, TypeError, RecursionError):
            return  # unreadable: left on disk
        if job.id != folder.name:
            return
        self._jobs[job.id] = job
        for unfinished in folder.glob("attempt-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        if job.state == JobState.RUNNING and (folder / RESULT / SUMMARY).is_file():
            self._mark_done(job)
        elif job.state == JobState.RUNNING:
            self.retry(job, "The server ended several times while it processed this scan; it will not be tried again.")


def _encode(job: Job) -> bytes:
    return json.dumps(asdict(job), indent=2).encode()
