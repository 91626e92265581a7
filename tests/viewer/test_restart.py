"""What a queue must survive: a scan that is cancelled, a worker that dies, a server that is killed or stopped."""

import os
import signal
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def slow(start, slow_model, folder):
    return Restarting(start, "serve", slow_model, "--out", folder, "--device", "cpu", "--queue", 3)


class Restarting:
    """A server that the tests of this file end and start again."""

    def __init__(self, start, *words):
        self._start, self._words = start, words
        self.now = start(*words)

    def again(self):
        self.now = self._start(*self._words)
        return self.now


def in_the_middle(server, job):
    job = server.wait(job["id"], "running")
    until = time.monotonic() + 30
    while not 0 < job["done"] < job["total"] and time.monotonic() < until:
        time.sleep(0.02)
        job = server.job(job["id"])
    assert (job["state"], job["done"] < job["total"]) == ("running", True)
    return job


def is_alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_progress_cancel_and_a_full_queue(slow, scan, folder):
    server = slow.now
    first, second, third = (server.upload(scan).json for _ in range(3))
    in_the_middle(server, first)
    assert [server.job(one["id"])["ahead"] for one in (first, second, third)] == [0, 1, 2]
    fourth = server.upload(scan).json
    answer = server.upload(scan)  # three wait
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    assert "3 scans are waiting" in answer.said

    (worker,) = server.workers()
    assert server.ask(f"/api/jobs/{first['id']}/cancel", "POST").json["state"] == "cancelled"
    assert not is_alive(worker)  # its processor time is free
    assert not (folder / "jobs" / first["id"] / "input").exists()
    assert server.ask(f"/api/jobs/{first['id']}/cancel", "POST").status == 409
    for one in (fourth, third):  # in the queue
        assert server.ask(f"/api/jobs/{one['id']}/cancel", "POST").json["state"] == "cancelled"
    in_the_middle(server, second)
    (worker,) = server.workers()
    assert server.ask(f"/api/jobs/{second['id']}", "DELETE").status == 204  # in the middle
    assert not is_alive(worker)


def test_a_worker_that_dies_is_replaced_and_its_scan_done_again(slow, scan, folder):
    server = slow.now
    job = server.upload(scan).json
    in_the_middle(server, job)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    assert server.wait(job["id"], "done", "failed")["state"] == "done"
    assert not list((folder / "jobs" / job["id"]).glob("attempt-*"))


def test_a_second_server_in_the_same_folder_is_refused(slow, start, model, folder):
    with pytest.raises(AssertionError, match="another run is writing here"):
        start("serve", model, "--out", folder, "--device", "cpu")
    assert slow.now.process.poll() is None


def test_a_killed_server_loses_nothing(slow, make_scan, folder):
    server = slow.now
    (finished,) = ({"id": place.name} for place in (folder / "jobs").iterdir() if (place / "result").is_dir())
    running, waiting = server.upload(make_scan(1)).json, server.upload(make_scan(2)).json
    in_the_middle(server, running)
    (worker,) = server.workers()
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    until = time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(worker)
    (folder / "incoming" / "half").mkdir()  # an upload that was under way

    server = slow.again()
    assert server.job(finished["id"])["state"] == "done"
    assert server.ask(f"/api/results/{finished['id']}/files/mask").status == 200
    assert server.job(running["id"])["ahead"] <= server.job(waiting["id"])["ahead"]
    assert not (folder / "incoming" / "half").exists()
    in_the_middle(server, running)

    # Ctrl-C, in the middle again: a word, and exit code 130
    assert server.end() == 130
    assert "anofpdm: stopped" in server.log.read_text()
    server = slow.again()
    for one in (running, waiting):
        assert server.wait(one["id"])["state"] == "done"
    assert server.end(signal.SIGTERM) in (-signal.SIGTERM, 143, 0)
