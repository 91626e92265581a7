"""Jobs on disk: a server can end at any moment, and the next one resumes."""

import json

import pytest

from anofpdm.viewer.jobs import INPUT, RESULT, UNFINISHED, JobState, JobStore
from anofpdm.viewer.limits import RequestError


@pytest.fixture
def store(tmp_path):
    return JobStore(tmp_path)


def accept_scan(store):
    with store.incoming() as place:
        (place / INPUT / "flair.nii").write_text("voxels")
        return store.accept(place, {"flair": "flair.nii"})


def write_result(store, job, part=UNFINISHED):
    store.path(job, part).mkdir()
    store.path(job, f"{part}/summary.json").write_text(
        json.dumps({"volume_ml": 1.5, "findings": 2, "settings": "long"})
    )


def test_ids_are_random_and_the_order_is_kept(store):
    jobs = [accept_scan(store) for _ in range(20)]
    assert len({job.id for job in jobs if len(job.id) == 32}) == 20
    assert store.all(JobState.QUEUED) == jobs


def test_a_finished_job_is_restored(store, tmp_path):
    job = store.start(accept_scan(store))
    write_result(store, job)
    job = store.finish(job)
    assert (job.state, job.result) == (JobState.DONE, {"volume_ml": 1.5, "findings": 2})
    assert JobStore(tmp_path).get(job.id) == job


def test_a_running_job_is_queued_again_in_its_old_place(store, tmp_path):
    first, second = accept_scan(store), accept_scan(store)
    store.start(first)
    write_result(store, first)
    store = JobStore(tmp_path)
    assert [job.id for job in store.all(JobState.QUEUED)] == [first.id, second.id]
    assert not store.path(first, UNFINISHED).exists()
    assert store.get(first.id).attempts == 1


def test_a_result_without_an_updated_state_is_kept(store, tmp_path):
    """The server ended after it had renamed the result."""
    job = store.start(accept_scan(store))
    write_result(store, job, RESULT)
    job = JobStore(tmp_path).get(job.id)
    assert (job.state, job.result) == (JobState.DONE, {"volume_ml": 1.5, "findings": 2})


def test_a_job_that_ends_the_server_three_times_fails(store, tmp_path):
    job = accept_scan(store)
    for _ in range(3):
        assert store.get(job.id).state == JobState.QUEUED
        store.start(store.get(job.id))
        store = JobStore(tmp_path)
    assert store.get(job.id).state == JobState.FAILED
    assert "will not be tried again" in store.get(job.id).error
    assert not store.path(job, INPUT).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "other", "number": 1}', '{"unknown": 1}'])
def test_an_unreadable_state_file_deletes_nothing(store, tmp_path, text):
    job = store.start(accept_scan(store))
    write_result(store, job)
    store.finish(job)
    store.path(job, "job.json").write_text(text)
    assert JobStore(tmp_path).all() == []
    assert store.path(job, f"{RESULT}/summary.json").is_file()


def test_a_deleted_job_cannot_be_used(store, tmp_path):
    job = accept_scan(store)
    store.delete(job)
    for use in (lambda: store.get(job.id), lambda: store.delete(job), lambda: store.start(job)):
        with pytest.raises(RequestError):
            use()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
