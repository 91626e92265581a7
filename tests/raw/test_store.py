"""Stored stages are used only if they are intact and of the same input; runs that share a folder take turns."""

import multiprocessing
import time

import pytest

from anofpdm.raw.cache import MANIFEST, StageStore

KEY = {"series": ["a" * 64], "method": "phantom"}


@pytest.fixture
def store(tmp_path):
    store = StageStore(tmp_path / "study")
    store.path("t2_to_flair.txt").write_text("transform")
    store.record("t2_to_flair.txt", KEY, registration={"kept": False})
    return store


def test_a_stage_is_found_again(store):
    assert StageStore(store.folder).find("t2_to_flair.txt", KEY)["registration"] == {"kept": False}
    assert store.find("t2_to_flair.txt", KEY | {"method": "other"}) is None
    assert store.find("t1_to_flair.txt", KEY) is None


@pytest.mark.parametrize("damage", ["", "another transform"])
def test_a_damaged_or_replaced_file_is_not_used(store, damage):
    store.path("t2_to_flair.txt").write_text(damage)
    assert store.find("t2_to_flair.txt", KEY) is None


@pytest.mark.parametrize("manifest", ["", "[]", "{", '{"format": 1, "stages": {}}', '{"format": 2, "stages": []}'])
def test_a_damaged_manifest_is_ignored(store, manifest):
    store.path(MANIFEST).write_text(manifest)
    assert store.find("t2_to_flair.txt", KEY) is None
    store.record("t2_to_flair.txt", KEY)
    assert store.find("t2_to_flair.txt", KEY) is not None


def hold(folder, seconds):
    with StageStore(folder).locked(lambda: None):
        time.sleep(seconds)
        StageStore(folder).path("done").touch()


def test_a_second_run_waits_and_reports_it(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, 1.0))
    process.start()
    while not (tmp_path / ".lock").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    waited: list[bool] = []
    with StageStore(tmp_path).locked(lambda: waited.append(True)):
        assert (tmp_path / "done").exists()
    assert waited == [True]
    process.join()
