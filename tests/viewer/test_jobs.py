"""Jobs on disk: whatever moment a server ends at, the next one knows what to do."""

import contextlib
import json

import pytest

from anofpdm.viewer.jobs import DONE, FAILED, INPUT, QUEUED, RESULT, RUNNING, JobStore
from anofpdm.viewer.refusals import RefusalError


@pytest.fixture
def store(tmp_path):
    return JobStore(tmp_path)


def accepted(store):
    with store.incoming() as place:
        (place / INPUT / "flair.nii").write_text("voxels")
        return store.accept(place, {"flair": "flair.nii"})


def made(store, job):
    out = store.place(job, "attempt-1")
    out.mkdir()
    (out / "summary.json").write_text(json.dumps({"volume_ml": 1.5, "findings": 2, "settings": "long"}))
    return out


def test_what_is_not_accepted_leaves_nothing(store, tmp_path):
    with contextlib.suppress(ZeroDivisionError), store.incoming() as place:
        (place / INPUT / "part-0").write_text("half")
        raise ZeroDivisionError
    assert list((tmp_path / "incoming").iterdir()) == []
    assert store.count() == 0


def test_ids_cannot_be_guessed_and_order_is_kept(store):
    jobs = [accepted(store) for _ in range(20)]
    assert len({job.id for job in jobs}) == 20
    assert all(len(job.id) == 32 for job in jobs)
    assert [job.id for job in store.queued()] == [job.id for job in jobs]


def test_the_whole_way(store, tmp_path):
    job = store.start(accepted(store))
    job = store.finish(job, made(store, job))
    assert (job.state, job.found["findings"]) == (DONE, 2)
    again = JobStore(tmp_path).get(job.id)
    assert again == job
    assert again.found == {
        "volume_ml": 1.5, "findings": 2, "slices": None, "slices_detected": None, "warnings": None,
    }  # fmt: skip


def test_what_ran_when_the_server_ended_runs_again_in_its_old_place(store, tmp_path):
    first, second = accepted(store), accepted(store)
    store.start(first)
    (store.place(first, "attempt-1")).mkdir()
    store = JobStore(tmp_path)
    assert [job.id for job in store.queued()] == [first.id, second.id]
    assert not store.place(first, "attempt-1").exists()
    assert store.get(first.id).attempts == 1


def test_what_ends_the_server_again_and_again_is_given_up(store, tmp_path):
    job = accepted(store)
    for _ in range(3):
        assert store.get(job.id).state == QUEUED
        store.start(store.get(job.id))
        store = JobStore(tmp_path)
    assert store.get(job.id).state == FAILED
    assert "given up" in store.get(job.id).error
    assert not store.place(job, INPUT).exists()


def test_a_result_that_was_made_but_not_yet_told_is_kept(store, tmp_path):
    job = store.start(accepted(store))
    made(store, job).rename(store.place(job, RESULT))
    assert JobStore(tmp_path).get(job.id).state == DONE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "other", "number": 1}', '{"unknown": 1}'])
def test_a_state_file_that_cannot_be_read_destroys_nothing(store, tmp_path, text):
    job = store.start(accepted(store))
    store.finish(job, made(store, job))
    store.place(job, "job.json").write_text(text)
    assert JobStore(tmp_path).count() == 0
    assert store.place(job, f"{RESULT}/summary.json").is_file()


def test_what_is_deleted_is_gone(store, tmp_path):
    job = accepted(store)
    store.delete(job)
    for change in (lambda: store.get(job.id), lambda: store.delete(job), lambda: store.change(job.id, state=RUNNING)):
        with pytest.raises(RefusalError):
            change()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("word", ["", ".", "..", "../jobs", "/etc", "x" * 5000, "\x00"])
def test_an_id_of_a_clients_own_is_only_looked_up(store, word):
    with pytest.raises(RefusalError):
        store.get(word)
