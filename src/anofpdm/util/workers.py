"""Worker processes that ignore Ctrl-C and end with their parent, and threads that work beside a GPU."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TypeVar

from anofpdm.errors import AnoFPDMError, Terminated
from anofpdm.util.signals import block_signals, blocked_signals

THREADS = 4
Item = TypeVar("Item")
Result = TypeVar("Result")


def cpu_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS
) -> Iterator[Result]:
    """Results in the order of the items."""
    with ThreadPoolExecutor(threads) as pool:
        yield from map_in_pool(pool, function, items, threads)


def map_in_pool(
    pool: Executor | None, function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Results in the order of the items. The next item is taken while workers are busy with the previous ones; at most
    twice as many items as workers are held. Without a pool, in this process."""
    if pool is None:
        yield from map(function, items)
        return
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """A pool whose workers leave Ctrl-C to the parent process; None for one worker."""
    if workers <= 1:
        yield None
        return
    pool = ProcessPoolExecutor(workers, WorkerContext(), initializer=follow_parent)
    try:
        yield pool
    except BrokenProcessPool:
        raise AnoFPDMError(
            "a worker process died, possibly out of memory; "
            "re-run the same command to resume, with --workers 1 if it dies again"
        ) from None
    except SystemExit:  # a worker's: SIGTERM went to all processes, and reached it first
        raise Terminated from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Worker(SpawnProcess):
    def start(self) -> None:
        """Signals blocked here stay blocked in the new process until `follow_parent`."""
        with blocked_signals():
            super().start()


class WorkerContext(SpawnContext):
    """For worker processes that call `follow_parent` first."""

    Process = _Worker


def follow_parent() -> None:
    """At the start of a worker process: leave Ctrl-C to its parent, and end with it, also if it is killed. On SIGTERM
    its temporary files are removed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_worker)
    block_signals(False)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_worker(_number: int, _frame: object) -> None:
    timer = threading.Timer(1.0, os._exit, [1])  # the pool passes exceptions of a task on and waits for the next task
    timer.daemon = True
    timer.start()
    raise SystemExit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
