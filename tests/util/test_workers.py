import os
import signal
import subprocess
import sys
import time

import pytest

from anofpdm.errors import AnoFPDMError, Terminated
from anofpdm.util.signals import block_signals
from anofpdm.util.workers import map_in_threads, worker_pool
from faults.processes import is_running, wait_until


def die(_number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_worker_is_reported():
    with pytest.raises(AnoFPDMError, match="a worker process died"), worker_pool(2) as pool:
        list(pool.map(die, range(4)))


def write_slowly(path):
    path.write_text(str(os.getpid()))
    try:
        time.sleep(60)
    finally:
        path.unlink()


def stop_a_worker(path):
    with worker_pool(2) as pool:
        task = pool.submit(write_slowly, path)
        assert wait_until(lambda: path.is_file() and path.read_text())
        os.kill(int(path.read_text()), signal.SIGTERM)
        task.result()


def test_a_worker_cleans_up_on_sigterm(tmp_path):
    with pytest.raises(Terminated):
        stop_a_worker(tmp_path / "temporary")
    assert not list(tmp_path.iterdir())


def test_workers_never_receive_ctrl_c():
    """Neither while they start nor later; signals of this process are let through again."""
    with worker_pool(2) as pool:
        pid = pool.submit(os.getpid).result()
        os.kill(pid, signal.SIGINT)
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN
    assert not block_signals(False)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(how):
    code = """
import os, time
from anofpdm.util.signals import block_signals
from anofpdm.util.workers import worker_pool
if __name__ == "__main__":
    with worker_pool(2) as pool:
        print(*{f.result() for f in [pool.submit(os.getpid) for _ in range(8)]}, flush=True)
        time.sleep(60)
"""
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    workers = [int(number) for number in run.stdout.readline().split()]
    assert workers
    os.kill(run.pid, how)
    run.wait()
    assert wait_until(lambda: not any(map(is_running, workers)), 10), "orphans"


def test_threads_keep_the_order_and_hold_few_items():
    taken, finished = [], []

    def items():
        for number in range(20):
            taken.append(number)
            yield number

    for result in map_in_threads(lambda number: number**2, items(), threads=2):
        finished.append(result)
        assert len(taken) - len(finished) <= 4
    assert finished == [number**2 for number in range(20)]
