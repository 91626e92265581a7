"""Worker processes."""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """Processes that leave Ctrl-C to the one that started them; none where one process is enough."""
    if workers <= 1:
        yield None
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_ignore_interrupts)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
