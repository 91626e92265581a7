"""Jobs on disk: a server can end at any moment, and the next one resumes."""

import pytest

from anofpdm.report.summary import Summary
from anofpdm.viewer.jobs import INPUT, RESULT, UNFINISHED, JobState, JobStore
from anofpdm.viewer.limits import RequestError

RESULT_FIELDS = {
    "volume_ml": 1.5, "findings": 2, "slices": 0, "slices_detected": 0, "missing_modalities": [], "warnings": [],
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return JobStore(tmp_path)


def accept_scan(store):
    with store.incoming() as place:
        (place / INPUT / "flair.nii").write_text("voxels")
        return store.accept(place, {"flair": "flair.nii"})


def write_result(store, job, part=UNFINISHED):
    store.path(job, part).mkdir()
    store.path(job, f"{part}/summary.json").write_bytes(Summary(volume_ml=1.5, findings=2).encode())


def test_ids_are_random_and_the_order_is_kept(store):
    jobs = [accept_scan(store) for _ in range(20)]
    assert len({job.id for job in jobs if len(job.id) == 32}) == 20
    assert store.all(JobState.QUEUED) == jobs


def test_a_finished_job_is_restored_and_an_unreadable_state_file_deletes_nothing(store, tmp_path):
    job = store.start(accept_scan(store))
    write_result(store, job)
    job = store.finish(job)
    assert (job.state, job.result) == (JobState.DONE, RESULT_FIELDS)
    assert JobStore(tmp_path).get(job.id) == job
    for text in ("", "{", "[]", '{"id": "other", "number": 1}', '{"unknown": 1}'):
        store.path(job, "job.json").write_text(text)
        assert JobStore(tmp_path).all() == []
        assert store.path(job, f"{RESULT}/summary.json").is_file()


def test_a_result_without_an_updated_state_is_kept(store, tmp_path):
    """The server ended after it had renamed the result."""
    job = store.start(accept_scan(store))
    write_result(store, job, RESULT)
    job = JobStore(tmp_path).get(job.id)
    assert (job.state, job.result) == (JobState.DONE, RESULT_FIELDS)


def test_a_job_that_ends_the_server_is_queued_in_its_old_place_and_fails_the_third_time(store, tmp_path):
    job, other = accept_scan(store), accept_scan(store)
    for attempts in range(3):
        assert [queued.id for queued in store.all(JobState.QUEUED)] == [job.id, other.id]
        assert store.get(job.id).attempts == attempts
        write_result(store, store.start(store.get(job.id)))
        store = JobStore(tmp_path)
        assert not store.path(job, UNFINISHED).exists()
    assert store.get(job.id).state == JobState.FAILED
    assert "will not be tried again" in store.get(job.id).error
    assert not store.path(job, INPUT).exists()


def test_a_deleted_job_cannot_be_used(store, tmp_path):
    job = accept_scan(store)
    store.delete(job)
    for use in (lambda: store.get(job.id), lambda: store.delete(job), lambda: store.start(job)):
        with pytest.raises(RequestError):
            use()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
