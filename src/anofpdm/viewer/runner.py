"""Processes the queue: one scan after another, in a worker process that can be ended at any moment."""

import contextlib
import logging
import shutil
import threading
from typing import Any

from anofpdm.errors import AnoFPDMError, ModelError
from anofpdm.util.workers import WorkerContext
from anofpdm.viewer.jobs import UNFINISHED, Job, JobState, JobStore
from anofpdm.viewer.limits import RequestError
from anofpdm.viewer.worker import CRASHED, Advanced, Ended, Ready, WorkerConfig, run_worker

LOG = logging.getLogger("anofpdm.viewer")
START_SECONDS = 300.0  # to load a model
SILENT_SECONDS = 3600.0  # without a message of the worker
RETRY_SECONDS = 5.0  # before the queue continues after an error
DIED = "The process for this scan ended (code {code}), possibly for lack of memory. Try a scan with fewer voxels."
NO_MODEL = "The model could not be reloaded; contact the administrator of the server."


class Worker:
    """A process, and the pipe to it. The model is loaded when `load` returns."""

    def __init__(self, config: WorkerConfig):
        context = WorkerContext()  # a fork would copy the threads and sockets of the server
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=run_worker, args=(config, theirs), name="anofpdm-worker", daemon=True)
        self.progress = Advanced()  # of the present scan
        self.process.start()
        theirs.close()

    def end(self) -> None:
        """Kill it and wait: its processor time is free when this returns."""
        self.process.kill()
        self.process.join()

    def load(self) -> Ready:
        message: Ready | Ended | None = self._receive(START_SECONDS)
        if isinstance(message, Ready):
            return message
        if message is not None:
            raise ModelError(message.problem)
        problem = f"ended (code {self.process.exitcode}), or took longer than five minutes"
        raise ModelError(f"the process that loads the model {problem}; try a faster disk or device")

    def run(self, job: Job, store: JobStore) -> Ended | None:
        """None: the process ended before it had finished, or was silent for too long."""
        with contextlib.suppress(OSError):  # it has ended already: nothing is received either
            self._pipe.send((job, store.path(job).resolve()))
        while isinstance(message := self._receive(SILENT_SECONDS), Advanced):
            self.progress = message
        self.progress = Advanced()
        return message

    def _receive(self, seconds: float) -> Any:
        """The next message; None: there is none, and the process is ended."""
        try:
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
        self.end()
        return None


class Runner:
    """Processes queued jobs in a thread. The state of a job is in the store."""

    model: Ready  # set by `start`

    def __init__(self, store: JobStore, config: WorkerConfig):
        self.store, self.config = store, config
        self._condition = threading.Condition()
        self._worker: Worker | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="runner", daemon=True)

    def start(self) -> None:
        """Load the model first: a server that cannot segment does not start."""
        self._ready_worker()
        self._thread.start()

    def stop(self) -> None:
        """A running scan goes back to the queue."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
            self._end_worker()
        if self._thread.is_alive():
            self._thread.join()

    def notify(self) -> None:
        """To be called when a job was queued."""
        with self._condition:
            self._condition.notify()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def count_ahead(self, job: Job) -> int:
        """Number of scans that are processed before it."""
        if job.is_finished:
            return 0
        return sum(other.number < job.number and not other.is_finished for other in self.store.all())

    def progress(self, job: Job) -> Advanced:
        if job.state != JobState.RUNNING or self._worker is None:
            return Advanced()
        return self._worker.progress

    def cancel(self, job_id: str) -> Job:
        """When this returns, processing has ended."""
        with self._condition:
            job = self.store.get(job_id)
            if job.is_finished:
                raise RequestError(409, "This scan is finished; it cannot be cancelled.")
            if job.state == JobState.RUNNING:
                self._end_worker()
            job = self.store.end(job, JobState.CANCELLED)
        LOG.info("scan %s: cancelled", job.short_id)
        return job

    def delete(self, job_id: str) -> None:
        job = self.store.get(job_id)
        if not job.is_finished:
            self.cancel(job_id)
        self.store.delete(job)
        LOG.info("scan %s: deleted", job.short_id)

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                if (job := self._next_job()) is not None:
                    self._process(job)
            except Exception as error:  # a full disk, for example: one scan must not end the queue
                LOG.error("error in the queue (%s)", type(error).__name__)
                with self._condition:
                    self._condition.wait(RETRY_SECONDS)

    def _next_job(self) -> Job | None:
        with self._condition:
            for job in self.store.all(JobState.RUNNING):  # left by an error in the queue; nothing runs at this point
                self.store.retry(job, CRASHED)
            while not self._stopping:
                if queue := self.store.all(JobState.QUEUED):
                    return self.store.start(queue[0])
                self._condition.wait()
        return None

    def _process(self, job: Job) -> None:
        """Process a job, store its outcome and remove its temporary folder."""
        outcome = self._segment(job)
        with self._condition:
            if self._is_running(job):
                ended = self._store_outcome(job, outcome)
                LOG.info("scan %s: %s", job.short_id, ended.state)
            shutil.rmtree(self.store.path(job, UNFINISHED), ignore_errors=True)

    def _segment(self, job: Job) -> Ended | None:
        try:
            worker = self._ready_worker()
        except AnoFPDMError as error:  # the model folder was removed or damaged
            LOG.error("the model could not be reloaded: %s", error)
            return Ended(NO_MODEL)
        if not self._is_running(job):  # cancelled while the worker started
            return None
        LOG.info("scan %s: started", job.short_id)
        return worker.run(job, self.store)

    def _ready_worker(self) -> Worker:
        """The present worker, or a new one if it has ended."""
        if self._worker is not None and self._worker.process.is_alive():
            return self._worker
        with self._condition:
            if self._stopping:
                raise ModelError("the server is being stopped")
            worker = self._worker = Worker(self.config)
        self.model = worker.load()
        return worker

    def _store_outcome(self, job: Job, outcome: Ended | None) -> Job:
        """None: the worker ended before it had finished."""
        if outcome is not None and outcome.problem is None:
            return self.store.finish(job)
        if self._stopping:  # does not count as an attempt
            return self.store.change(job.id, state=JobState.QUEUED, started=None, attempts=job.attempts - 1)
        if outcome is None:
            code = self._worker.process.exitcode if self._worker is not None else None
            return self.store.retry(job, DIED.format(code=code))
        if outcome.location:
            LOG.error("scan %s: %s", job.short_id, outcome.location)
        return self.store.end(job, JobState.FAILED, outcome.problem)

    def _is_running(self, job: Job) -> bool:
        """Not cancelled or deleted meanwhile."""
        current = self.store.find(job.id)
        return current is not None and current.state == JobState.RUNNING
