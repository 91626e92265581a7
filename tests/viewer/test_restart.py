"""The queue when a scan is cancelled, a worker dies, or the server is killed or stopped."""

import os
import signal

import pytest

from faults.processes import is_running, wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store_folder")


@pytest.fixture(scope="module")
def hold(make_hold):
    return make_hold()


@pytest.fixture(scope="module")
def restart(start, hold, model, folder):
    """Starts a server that holds scans in the middle until they are released."""
    return lambda: start("serve", model, "--out", folder, "--device", "cpu", "--queue", 3, held_by=hold)


@pytest.fixture(scope="module")
def held(restart):
    return restart()


def wait_for_progress(server, job):
    assert wait_until(lambda: 0 < server.job(job["id"])["done"] < server.job(job["id"])["total"], 120)


def test_progress_cancel_and_a_full_queue(held, scan, folder):
    first, second, third = (held.upload(scan).json for _ in range(3))
    wait_for_progress(held, first)
    assert [held.job(job["id"])["ahead"] for job in (first, second, third)] == [0, 1, 2]
    fourth = held.upload(scan).json
    response = held.upload(scan)  # three are waiting
    assert response.status == 503
    assert response.headers["Retry-After"]
    assert "3 scans are waiting" in response.error

    worker = held.worker
    assert held.request(f"/api/jobs/{first['id']}/cancel", "POST").json["state"] == "cancelled"
    assert not is_running(worker)  # its processor time is free
    assert not (folder / "jobs" / first["id"] / "input").exists()
    assert held.request(f"/api/jobs/{first['id']}/cancel", "POST").status == 409
    for job in (fourth, third):  # in the queue
        assert held.request(f"/api/jobs/{job['id']}/cancel", "POST").json["state"] == "cancelled"
    wait_for_progress(held, second)
    worker = held.worker
    held.delete(second)  # while running
    assert not is_running(worker)


def test_a_dead_worker_is_replaced_and_its_scan_repeated(held, hold, scan, folder):
    job = held.upload(scan).json
    wait_for_progress(held, job)
    os.kill(held.worker, signal.SIGKILL)
    hold.release()
    assert held.wait(job["id"])["state"] == "done"
    assert not (folder / "jobs" / job["id"] / "unfinished").exists()


def test_a_second_server_in_the_same_folder_is_refused(held, start, model, folder):
    with pytest.raises(AssertionError, match="another run is writing here"):
        start("serve", model, "--out", folder, "--device", "cpu")
    assert held.process.poll() is None


def test_a_killed_server_loses_nothing(held, restart, hold, scan, folder):
    (finished,) = (place.name for place in (folder / "jobs").iterdir() if (place / "result").is_dir())
    hold.close()
    running, waiting = held.upload(scan).json, held.upload(scan).json
    wait_for_progress(held, running)
    worker = held.worker
    assert held.stop(signal.SIGKILL) == -signal.SIGKILL
    assert wait_until(lambda: not is_running(worker), 5)
    (folder / "incoming" / "half").mkdir()  # an upload in progress

    server = restart()
    assert server.job(finished)["state"] == "done"
    assert server.request(f"/api/results/{finished}/files/mask").status == 200
    assert server.job(running["id"])["ahead"] <= server.job(waiting["id"])["ahead"]
    assert not (folder / "incoming" / "half").exists()
    wait_for_progress(server, running)

    # Ctrl-C while a scan is running: a message and exit code 130
    assert server.stop() == 130
    assert "anofpdm: stopped" in server.log.read_text()
    hold.release()
    server = restart()
    for job in (running, waiting):
        assert server.wait(job["id"])["state"] == "done"
    assert server.stop(signal.SIGTERM) == 143
