"""Worker processes that end when they should."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess

from anofpdm.errors import AnoFPDMError


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """Processes that leave Ctrl-C to the one that started them; none where one process is enough."""
    if workers <= 1:
        yield None
        return
    pool = ProcessPoolExecutor(workers, _Context(), initializer=_start_worker)
    try:
        yield pool
    except BrokenProcessPool:
        raise AnoFPDMError(
            "a worker process died, perhaps for want of memory; "
            "run the same command again to go on, with --workers 1 if it dies again"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Worker(SpawnProcess):
    def start(self) -> None:
        """Signals that are blocked here stay so in the new process: it hears no Ctrl-C even before its first line."""
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            super().start()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Worker


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers to stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
