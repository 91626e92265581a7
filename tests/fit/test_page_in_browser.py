"""The page of a fit, opened from disk in a real browser."""

import html
import re
import shlex

import pytest

from tests import toys
from tests.docs.test_docs import parse
from tests.fit.fit_toys import fit

PICTURES = ["a sample of the prepared slices", "loss curve", "calibration"]
TEXTS = ("Not used: 1 scan", "p0_t2.nii.gz", "AUC", "lesion area", "validation patients", "called unhealthy")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Of scans with masks, one of them damaged."""
    folder = tmp_path_factory.mktemp("fit page")
    scans = toys.brats_cohort(folder / "scans", 9)
    (scans / "p0" / "p0_t2.nii.gz").write_bytes(b"<b>no scan</b>")
    fit(scans, "--layout", "brats21", "--out", folder / "model", "--steps", 4, code=3)
    return folder / "model" / "index.html"


@pytest.mark.parametrize("width", [1100, 420])
def test_the_page_is_complete_and_nothing_overflows(open_file, page_file, width):
    page = open_file(page_file, viewport={"width": width, "height": 800})
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    images = page.locator("img").all()
    assert [image.get_attribute("alt") for image in images] == PICTURES
    assert all(image.evaluate("image => image.complete && image.naturalWidth > 50") for image in images)
    text = page.inner_text("body")
    assert all(expected in text for expected in TEXTS)
    assert "nan" not in text


def test_next_steps_are_commands(page_file):
    """That parse, whatever the folder is called."""
    blocks = re.findall(r"<pre>(.*?)</pre>", page_file.read_text(), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in html.unescape(block).splitlines()]
    assert [words[1] for words in commands] == ["segment", "view", "segment", "evaluate"]
    for words in commands:
        assert words[0] == "anofpdm"
        parse(words[1:])
    assert str(page_file.parent) in commands[0]
