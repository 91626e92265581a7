"""The queue: one scan after another, by a worker process that can be ended at any moment."""

import logging
import multiprocessing
import shutil
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from anofpdm.errors import AnoFPDMError, ModelError
from anofpdm.viewer.jobs import INPUT, QUEUED, RUNNING, Job, JobStore
from anofpdm.viewer.refusals import RefusalError
from anofpdm.viewer.worker import Orders, Task, work

LOG = logging.getLogger("anofpdm.viewer")
JOBS_A_WORKER = 200  # then a fresh one: what leaks in a library does not pile up
START_SECONDS = 300.0  # to load a model
SILENT_SECONDS = 3600.0  # without a word on how far it is
STUMBLE_SECONDS = 5.0  # before the queue tries again
DIED = "The process that worked on it ended (code {code}); perhaps memory ran out. Try a scan with fewer voxels."
NO_MODEL = "The model could not be loaded again; tell who runs the server."
BROKEN = "Something went wrong that should not have; the server's log says where. Tell who runs it."


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    jobs: int = 0

    def end(self) -> None:
        """At once, and waited for: its processor time is free when this returns."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Runner:
    """Runs queued jobs in a thread of its own. Where a job stands is read from the store and `progress`."""

    def __init__(self, store: JobStore, orders: Orders):
        self.store, self._orders = store, orders
        self._wake = threading.Condition()
        self._worker: Worker | None = None
        self._progress: dict[str, tuple[int, int]] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="runner", daemon=True)
        self.about: dict[str, Any] = {}

    def start(self) -> None:
        """Load the model first: a server that cannot segment does not start."""
        self.about = self._start_worker()
        self._thread.start()

    def stop(self) -> None:
        """A scan in the middle goes back to the queue, as it would after a crash."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
            if self._worker is not None:
                self._worker.process.kill()
        if self._thread.is_alive():
            self._thread.join()
        if self._worker is not None:
            self._worker.end()

    def wake(self) -> None:
        with self._wake:
            self._wake.notify()

    # ---- what clients ask --------------------------------------------------------------------------------------------

    def ahead(self, job: Job) -> int:
        """How many scans come before it."""
        if job.state != QUEUED:
            return 0
        before = [other for other in self.store.queued() if other.number < job.number]
        return len(before) + len(self.store.running())

    def progress(self, job: Job) -> tuple[int, int]:
        return self._progress.get(job.id, (0, 0))

    def cancel(self, job_id: str) -> Job:
        """When this returns, nothing works on it any more."""
        with self._wake:
            job = self.store.get(job_id)
            if job.state == RUNNING and self._worker is not None:
                self._worker.process.kill()
                self._worker.process.join()
            elif job.state not in (QUEUED, RUNNING):
                raise RefusalError(409, "This scan is over; there is nothing left to cancel.")
            job = self.store.cancel(job)
        LOG.info("scan %s: cancelled", job.short)
        return job

    def delete(self, job_id: str) -> None:
        job = self.store.get(job_id)
        if not job.over:
            self.cancel(job_id)
        self.store.delete(job)
        LOG.info("scan %s: deleted", job.short)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                if (job := self._next()) is not None:
                    self._work_on(job)
            except Exception as problem:  # a full disk, say: the queue goes on, whatever one scan did
                LOG.error("the queue stumbled (%s)", type(problem).__name__)
                with self._wake:
                    self._wake.wait(STUMBLE_SECONDS)

    def _next(self) -> Job | None:
        with self._wake:
            for job in self.store.running():  # left so when something stumbled; nothing runs while this does
                self.store.again(job, BROKEN)
            while not self._stopping:
                queue = self.store.queued()
                if queue:
                    return self.store.start(queue[0])
                self._wake.wait()
        return None

    def _work_on(self, job: Job) -> None:
        try:
            worker = self._ready_worker()
        except AnoFPDMError as problem:  # the model's folder is gone, or damaged
            LOG.error("the model could not be loaded again: %s", problem)
            self._settle(job, ("failed", NO_MODEL))
            return
        if not self._is_running(job):  # cancelled while the worker started
            return
        LOG.info("scan %s: begun", job.short)
        out = self.store.place(job, f"attempt-{job.attempts}")
        task = Task(self.store.place(job, INPUT).resolve(), job.files, job.series, out.resolve(), f"Scan {job.short}")
        try:
            worker.pipe.send(task)
            while (said := _heard(worker))[0] == "progress":
                self._progress[job.id] = said[1:]
        except (EOFError, OSError):
            worker.process.join()
            said = ("died", worker.process.exitcode)
        self._settle(job, said)

    def _settle(self, job: Job, said: tuple[Any, ...]) -> None:
        with self._wake:
            self._progress.pop(job.id, None)
            out = self.store.place(job, f"attempt-{job.attempts}")
            if said[0] == "died" and self._worker is not None:
                self._worker.end()
                self._worker = None
            if not self._is_running(job):  # cancelled or deleted meanwhile
                shutil.rmtree(out, ignore_errors=True)
                return
            if said[0] == "done":
                job = self.store.finish(job, out)
            elif self._stopping:  # no fault of the scan's
                job = self.store.change(job.id, state=QUEUED, started=None, attempts=job.attempts - 1)
            elif said[0] == "failed":
                job = self.store.fail(job, said[1])
            elif said[0] == "died":
                job = self.store.again(job, DIED.format(code=said[1]))
            else:
                LOG.error("scan %s: %s", job.short, said[1])
                job = self.store.fail(job, BROKEN)
            shutil.rmtree(out, ignore_errors=True)
        LOG.info("scan %s: %s", job.short, job.state)

    def _is_running(self, job: Job) -> bool:
        try:
            return self.store.get(job.id).state == RUNNING
        except RefusalError:
            return False

    # ---- the worker --------------------------------------------------------------------------------------------------

    def _ready_worker(self) -> Worker:
        """The one at hand; a new one where there is none, or it has done enough."""
        worker = self._worker
        if worker is not None and (worker.jobs >= JOBS_A_WORKER or not worker.process.is_alive()):
            with self._wake:
                worker.end()
                worker = self._worker = None
        if worker is None:
            self._start_worker()
            worker = self._worker
        if worker is None:
            raise ModelError("the worker was ended while it started")
        worker.jobs += 1
        return worker

    def _start_worker(self) -> dict[str, Any]:
        context = multiprocessing.get_context("spawn")  # a fork would copy the server's threads and sockets
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(self._orders, theirs), name="anofpdm-worker", daemon=True)
        process.start()
        theirs.close()
        with self._wake:
            self._worker = Worker(process, ours)
        try:
            if not ours.poll(START_SECONDS):
                raise ModelError("the model took longer than five minutes to load; try a faster disk or device")
            said = ours.recv()
        except (EOFError, OSError):
            process.join()
            raise ModelError(f"the process that loads the model ended (code {process.exitcode})") from None
        if said[0] != "ready":
            raise ModelError(said[1])
        about: dict[str, Any] = said[1]
        return about


def _heard(worker: Worker) -> tuple[Any, ...]:
    """Its next message; a worker that is silent for too long is ended."""
    if not worker.pipe.poll(SILENT_SECONDS):
        worker.process.kill()
    message: tuple[Any, ...] = worker.pipe.recv()
    return message
