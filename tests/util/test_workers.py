import os
import signal
import subprocess
import sys
import time

import pytest

from anofpdm.errors import AnoFPDMError
from anofpdm.util.workers import map_in_threads, worker_pool


def die(_number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_worker_is_reported():
    with pytest.raises(AnoFPDMError, match="a worker process died"), worker_pool(2) as pool:
        list(pool.map(die, range(4)))


def test_workers_never_receive_ctrl_c():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with worker_pool(2) as pool:
        blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert blocked - before == {signal.SIGINT}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(how):
    code = """
import os, time
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
    deadline = time.monotonic() + 10
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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


def test_an_error_in_a_thread_is_raised():
    def broken(number):
        if number == 3:
            raise ValueError("3 is broken")
        return number

    with pytest.raises(ValueError, match="3 is broken"):
        list(map_in_threads(broken, range(10)))
