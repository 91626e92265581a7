"""Accepted scans, one folder each, with a state file that is always complete.

    incoming/            incomplete uploads; deleted at every start
    jobs/ID/job.json     state of the job
    jobs/ID/input/       uploaded files, named by the server
    jobs/ID/unfinished/  results of a scan that is being processed
    jobs/ID/result/      results
    trash/               being deleted; deleted at every start

An id is 128 random bits. An id from a client is only looked up, never used as part of a path.
"""

import contextlib
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from anofpdm.report.summary import Summary
from anofpdm.segment.outputs import SUMMARY
from anofpdm.util.artifacts import decode, encode
from anofpdm.util.files import write_atomically
from anofpdm.viewer.limits import scan_not_found

STATE, INPUT, RESULT, UNFINISHED = "job.json", "input", "result", "unfinished"
SUMMARY_FIELDS = ("volume_ml", "findings", "slices", "slices_detected", "missing_modalities", "warnings")
MAX_ATTEMPTS = 3  # a scan whose processing ended the server or its worker this often fails
GIVEN_UP = "The server ended several times while it processed this scan; it will not be tried again."


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
    result: dict[str, Any] = field(default_factory=dict)  # SUMMARY_FIELDS of the result

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

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        for name in ("incoming", "trash"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("incoming", "jobs", "trash"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        for job_folder in sorted((folder / "jobs").iterdir()):
            self._restore(job_folder)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def find(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def get(self, job_id: str) -> Job:
        job = self.find(job_id)
        if job is None:
            raise scan_not_found()
        return job

    def all(self, state: JobState | None = None) -> list[Job]:
        """In the order of acceptance."""
        with self._lock:
            jobs = [job for job in self._jobs.values() if state in (None, job.state)]
        return sorted(jobs, key=lambda job: job.number)

    def path(self, job: Job, part: str = "") -> Path:
        return self.folder / "jobs" / job.id / part

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
            write_atomically(folder / STATE, encode(job))
            folder.rename(self.path(job))
            self._jobs[job.id] = job
            return job

    def change(self, job_id: str, **changes: Any) -> Job:
        with self._lock:
            job = replace(self.get(job_id), **changes)
            write_atomically(self.path(job, STATE), encode(job))
            self._jobs[job_id] = job
            return job

    def start(self, job: Job) -> Job:
        return self.change(job.id, state=JobState.RUNNING, started=time.time(), attempts=job.attempts + 1)

    def finish(self, job: Job) -> Job:
        """The unfinished result is complete: it is renamed, unless that was done before a crash."""
        with self._lock:
            self.get(job.id)
            if (output := self.path(job, UNFINISHED)).is_dir():
                shutil.rmtree(self.path(job, RESULT), ignore_errors=True)
                output.rename(self.path(job, RESULT))
            summary = Summary.read(self.path(job, f"{RESULT}/{SUMMARY}"))
            result = {name: getattr(summary, name) for name in SUMMARY_FIELDS}
            return self.change(job.id, state=JobState.DONE, finished=time.time(), result=result)

    def end(self, job: Job, state: JobState, reason: str | None = None) -> Job:
        """End without a result; the uploaded files are deleted."""
        with self._lock:
            shutil.rmtree(self.path(job, INPUT), ignore_errors=True)
            return self.change(job.id, state=state, error=reason, finished=time.time())

    def retry(self, job: Job, reason: str) -> Job:
        """Back to its old place in the queue; after too many attempts it fails with `reason`."""
        if job.attempts >= MAX_ATTEMPTS:
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

    # ---- after a restart ---------------------------------------------------------------------------------------------

    def _restore(self, folder: Path) -> None:
        try:
            job = decode(Job, (folder / STATE).read_bytes())
        except (OSError, ValueError):
            return  # unreadable: left on disk
        if job.id != folder.name:
            return
        self._jobs[job.id] = job
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        if job.state == JobState.RUNNING and (folder / RESULT / SUMMARY).is_file():
            self.finish(job)
        elif job.state == JobState.RUNNING:
            self.retry(job, GIVEN_UP)
