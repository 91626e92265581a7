"""The page of a fit, opened from disk in a real browser."""

import re
import shlex
import shutil

import pytest

from anofpdm.choices import Preset
from anofpdm.fit.estimate import Speed
from anofpdm.method import mask
from anofpdm.network import config
from tests import toys
from tests.docs.test_docs import parse
from tests.fit.fit_toys import NARROW, QUICK, fit

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Of scans with masks, one of them damaged."""
    folder = tmp_path_factory.mktemp("fit page")
    scans = toys.brats_cohort(folder / "scans", 9)
    (scans / "p0" / "p0_t2.nii.gz").write_bytes(b"<b>no scan</b>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.PRESETS, Preset.TINY, NARROW)
        patch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(1.0, 0.01, 0.01))
        patch.setattr(mask, "MEDIAN", 1)
        fit(scans, "--layout", "brats21", "--out", folder / "model", "--steps", 4, *QUICK, code=3)
    return folder / "model" / "index.html"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize("width", [1100, 420])
def test_the_page_is_complete_and_nothing_overflows(browser, page_file, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    images = page.locator("img").all()
    assert [image.get_attribute("alt") for image in images] == [
        "a sample of the prepared slices", "loss curve", "samples of each label", "calibration",
    ]  # fmt: skip
    assert all(image.evaluate("one => one.complete && one.naturalWidth > 50") for image in images)
    text = page.inner_text("body")
    for expected in (
        "Not used: 1 scan",
        "p0_t2.nii.gz",
        "AUC",
        "lesion area",
        "validation patients",
        "called unhealthy",
    ):
        assert expected in text
    assert "nan" not in text
    assert messages == []
    assert all(url.startswith(("file:", "data:")) for url in requests)
    page.close()


def test_next_steps_are_commands(page_file):
    """That parse, whatever the folder is called."""
    import html

    blocks = re.findall(r"<pre>(.*?)</pre>", page_file.read_text(), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in html.unescape(block).splitlines()]
    assert [words[1] for words in commands] == ["segment", "view", "segment", "evaluate"]
    for words in commands:
        assert words[0] == "anofpdm"
        parse(words[1:])
    assert str(page_file.parent) in commands[0]
