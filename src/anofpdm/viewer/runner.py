"""Processes the queue: one scan after another, in a worker process that can be ended at any moment."""

import logging
import shutil
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from anofpdm.errors import AnoFPDMError, ModelError
from anofpdm.scans.modalities import InputModalities
from anofpdm.util.workers import WorkerContext
from anofpdm.viewer.jobs import INPUT, Job, JobState, JobStore
from anofpdm.viewer.limits import RequestError
from anofpdm.viewer.worker import CRASHED, Advanced, Ended, Ready, Task, WorkerConfig, run_worker

LOG = logging.getLogger("anofpdm.viewer")
SCANS_PER_WORKER = 200  # then a new process, which limits memory leaks of libraries
START_SECONDS = 300.0  # to load a model
SILENT_SECONDS = 3600.0  # without a message of the worker
RETRY_SECONDS = 5.0  # before the queue continues after an error
DIED = "The process for this scan ended (code {code}), possibly for lack of memory. Try a scan with fewer voxels."
NO_MODEL = "The model could not be reloaded; contact the administrator of the server."


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    scans: int = 0

    def end(self) -> None:
        """Kill it and wait: its processor time is free when this returns."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def run(self, task: Task, progress: dict[str, Advanced], job: Job) -> Ended | None:
        """None: the process ended before it had finished. A worker that is silent for too long is killed."""
        try:
            self.pipe.send(task)
            while True:
                if not self.pipe.poll(SILENT_SECONDS):
                    self.process.kill()
                message: Advanced | Ended = self.pipe.recv()
                if isinstance(message, Ended):
                    return message
                progress[job.id] = message
        except (EOFError, OSError):
            self.process.join()
            return None


class Runner:
    """Processes queued jobs in a thread. The state of a job is in the store; its progress, in `progress`."""

    def __init__(self, store: JobStore, config: WorkerConfig):
        self.store, self._config = store, config
        self.progress: dict[str, Advanced] = {}  # of running jobs, by id
        self._condition = threading.Condition()
        self._worker: Worker | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="runner", daemon=True)
        self.model = Ready("", InputModalities(()))

    def start(self) -> None:
        """Load the model first: a server that cannot segment does not start."""
        self.model = self._start_worker()
        self._thread.start()

    def stop(self) -> None:
        """A running scan goes back to the queue."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
            if self._worker is not None:
                self._worker.process.kill()
        if self._thread.is_alive():
            self._thread.join()
        if self._worker is not None:
            self._worker.end()

    def notify(self) -> None:
        """To be called when a job was queued."""
        with self._condition:
            self._condition.notify()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def count_ahead(self, job: Job) -> int:
        """Number of scans that are processed before it."""
        if job.state != JobState.QUEUED:
            return 0
        before = [other for other in self.store.all(JobState.QUEUED) if other.number < job.number]
        return len(before) + len(self.store.all(JobState.RUNNING))

    def cancel(self, job_id: str) -> Job:
        """When this returns, processing has ended."""
        with self._condition:
            job = self.store.get(job_id)
            if job.state == JobState.RUNNING and self._worker is not None:
                self._worker.process.kill()
                self._worker.process.join()
            elif job.is_finished:
                raise RequestError(409, "This scan is finished; it cannot be cancelled.")
            job = self.store.end(job, JobState.CANCELLED)
        LOG.info("scan %s: cancelled", job.short_id)
        return job

    def delete(self, job_id: str) -> None:
        job = self.store.get(job_id)
        if not job.is_finished:
            self.cancel(job_id)
        self.store.delete(job)
        LOG.info("scan %s: deleted", job.short_id)

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
        try:
            worker = self._ready_worker()
        except AnoFPDMError as error:  # the model folder was removed or damaged
            LOG.error("the model could not be reloaded: %s", error)
            self._settle(job, Ended(NO_MODEL))
            return
        if not self._is_running(job):  # cancelled while the worker started
            return
        LOG.info("scan %s: started", job.short_id)
        out = self.store.path(job, f"attempt-{job.attempts}")
        task = Task(self.store.path(job, INPUT).resolve(), job.files, job.series, out.resolve(), job.title)
        self._settle(job, worker.run(task, self.progress, job))

    def _settle(self, job: Job, outcome: Ended | None) -> None:
        """Store the outcome of a job and remove its temporary folder. None: its worker died."""
        with self._condition:
            self.progress.pop(job.id, None)
            out = self.store.path(job, f"attempt-{job.attempts}")
            code = None
            if outcome is None and self._worker is not None:
                code = self._worker.process.exitcode
                self._worker.end()
                self._worker = None
            if self._is_running(job):  # not cancelled or deleted meanwhile
                job = self._store_outcome(job, outcome, code)
                LOG.info("scan %s: %s", job.short_id, job.state)
            shutil.rmtree(out, ignore_errors=True)

    def _store_outcome(self, job: Job, outcome: Ended | None, code: int | None) -> Job:
        if outcome is not None and outcome.problem is None:
            return self.store.finish(job, self.store.path(job, f"attempt-{job.attempts}"))
        if self._stopping:  # does not count as an attempt
            return self.store.change(job.id, state=JobState.QUEUED, started=None, attempts=job.attempts - 1)
        if outcome is None:
            return self.store.retry(job, DIED.format(code=code))
        if outcome.location:
            LOG.error("scan %s: %s", job.short_id, outcome.location)
        return self.store.end(job, JobState.FAILED, outcome.problem)

    def _is_running(self, job: Job) -> bool:
        try:
            return self.store.get(job.id).state == JobState.RUNNING
        except RequestError:
            return False

    # ---- the worker --------------------------------------------------------------------------------------------------

    def _ready_worker(self) -> Worker:
        """The present worker, or a new one if it ended or has processed enough scans."""
        worker = self._worker
        if worker is not None and (worker.scans >= SCANS_PER_WORKER or not worker.process.is_alive()):
            with self._condition:
                worker.end()
                self._worker = None
        if self._worker is None:
            self._start_worker()
        if (worker := self._worker) is None:
            raise ModelError("the worker was ended while it started")
        worker.scans += 1
        return worker

    def _start_worker(self) -> Ready:
        context = WorkerContext()  # a fork would copy the threads and sockets of the server
        ours, theirs = context.Pipe()
        process = context.Process(target=run_worker, args=(self._config, theirs), name="anofpdm-worker", daemon=True)
        process.start()
        theirs.close()
        with self._condition:
            self._worker = Worker(process, ours)
        try:
            if not ours.poll(START_SECONDS):
                raise ModelError("the model took longer than five minutes to load; try a faster disk or device")
            message: Ready | Ended = ours.recv()
        except (EOFError, OSError):
            process.join()
            raise ModelError(f"the process that loads the model ended (code {process.exitcode})") from None
        if isinstance(message, Ready):
            return message
        raise ModelError(message.problem)
