"""Stored stages are used only if they are intact and of the same input; runs that share a folder take turns."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from anofpdm.raw.cache import FORMAT, MANIFEST, StudyCache

FILE, KEY = "t2_to_flair.txt", {"series": ["a" * 64], "method": "phantom"}


def stage_of(folder, key=KEY, result="new"):
    """What a later run gets, and whether it is stored."""
    with StudyCache(folder).locked():
        return StudyCache(folder).once(
            FILE,
            key,
            lambda: result,
            lambda path, text: {"length": path.write_text(text)},
            lambda path, record: path.read_text()[: record["length"]],
        )


@pytest.fixture
def folder(tmp_path):
    assert stage_of(tmp_path / "study", result="first") == ("first", False)
    return tmp_path / "study"


def test_a_stage_is_found_again_unless_its_input_differs(folder):
    assert stage_of(folder) == ("first", True)
    assert stage_of(folder, KEY | {"method": "other"}) == ("new", False)


@pytest.mark.parametrize(
    ("file", "text"),
    [(FILE, "another transform"), (MANIFEST, "[]"), (MANIFEST, "{"),
     (MANIFEST, f'{{"format": {FORMAT}, "stages": []}}'),
     (MANIFEST, f'{{"format": {FORMAT}, "stages": {{"{FILE}": 1}}}}')],
)  # fmt: skip
def test_what_is_damaged_is_computed_again(folder, file, text):
    (folder / file).write_text(text)
    assert stage_of(folder) == ("new", False)
    assert stage_of(folder, result="newer") == ("new", True)


def test_a_second_run_waits_and_reports_it(tmp_path):
    lines: list[str] = []

    def wait() -> bool:
        with StudyCache(tmp_path, lines.append).locked():
            return (tmp_path / "done").exists()

    with ThreadPoolExecutor() as pool:
        with StudyCache(tmp_path).locked():
            second = pool.submit(wait)
            while not lines:
                time.sleep(0.01)
            (tmp_path / "done").touch()
        assert second.result()
    assert lines == [f"waiting for another run that writes to {tmp_path}"]
