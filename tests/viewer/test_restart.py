"""The queue when a scan is cancelled, a worker dies, or the server is killed or stopped."""

import os
import signal
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store_folder")


@pytest.fixture(scope="module")
def held(start, make_hold, model, results_folder, folder):
    hold = make_hold(results_folder / "p1")
    return Restarting(start, hold, "serve", model, "--out", folder, "--device", "cpu", "--queue", 3)


class Restarting:
    """A server that these tests stop and restart. It holds scans in the middle until they are released."""

    def __init__(self, start, hold, *arguments):
        self._start, self._arguments, self.hold = start, arguments, hold
        self.now = start(*arguments, held_by=hold)

    def restart(self):
        self.now = self._start(*self._arguments, held_by=self.hold)
        return self.now


def wait_for_progress(server, job):
    job = server.wait(job["id"], "running")
    until = time.monotonic() + 120
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


def test_progress_cancel_and_a_full_queue(held, scan, folder):
    server = held.now
    first, second, third = (server.upload(scan).json for _ in range(3))
    wait_for_progress(server, first)
    assert [server.job(one["id"])["ahead"] for one in (first, second, third)] == [0, 1, 2]
    fourth = server.upload(scan).json
    response = server.upload(scan)  # three are waiting
    assert response.status == 503
    assert response.headers["Retry-After"]
    assert "3 scans are waiting" in response.error

    (worker,) = server.workers()
    assert server.request(f"/api/jobs/{first['id']}/cancel", "POST").json["state"] == "cancelled"
    assert not is_alive(worker)  # its processor time is free
    assert not (folder / "jobs" / first["id"] / "input").exists()
    assert server.request(f"/api/jobs/{first['id']}/cancel", "POST").status == 409
    for one in (fourth, third):  # in the queue
        assert server.request(f"/api/jobs/{one['id']}/cancel", "POST").json["state"] == "cancelled"
    wait_for_progress(server, second)
    (worker,) = server.workers()
    assert server.request(f"/api/jobs/{second['id']}", "DELETE").status == 204  # while running
    assert not is_alive(worker)


def test_a_dead_worker_is_replaced_and_its_scan_repeated(held, scan, folder):
    server = held.now
    job = server.upload(scan).json
    wait_for_progress(server, job)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    held.hold.release()
    assert server.wait(job["id"], "done", "failed")["state"] == "done"
    assert not list((folder / "jobs" / job["id"]).glob("attempt-*"))


def test_a_second_server_in_the_same_folder_is_refused(held, start, model, folder):
    with pytest.raises(AssertionError, match="another run is writing here"):
        start("serve", model, "--out", folder, "--device", "cpu")
    assert held.now.process.poll() is None


def test_a_killed_server_loses_nothing(held, make_scan, folder):
    server = held.now
    (finished,) = ({"id": place.name} for place in (folder / "jobs").iterdir() if (place / "result").is_dir())
    held.hold.close()
    running, waiting = server.upload(make_scan(1)).json, server.upload(make_scan(2)).json
    wait_for_progress(server, running)
    (worker,) = server.workers()
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    until = time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(worker)
    (folder / "incoming" / "half").mkdir()  # an upload in progress

    server = held.restart()
    assert server.job(finished["id"])["state"] == "done"
    assert server.request(f"/api/results/{finished['id']}/files/mask").status == 200
    assert server.job(running["id"])["ahead"] <= server.job(waiting["id"])["ahead"]
    assert not (folder / "incoming" / "half").exists()
    wait_for_progress(server, running)

    # Ctrl-C while a scan is running: a message and exit code 130
    assert server.stop() == 130
    assert "anofpdm: stopped" in server.log.read_text()
    held.hold.release()
    server = held.restart()
    for one in (running, waiting):
        assert server.wait(one["id"])["state"] == "done"
    assert server.stop(signal.SIGTERM) in (-signal.SIGTERM, 143, 0)
