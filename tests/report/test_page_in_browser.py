"""The report page, opened from disk in a real browser."""

import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

from anofpdm.report.result_page import render_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")


@pytest.fixture(scope="module")
def context():
    """Every test opens pages of its own in it: a report stores nothing in the browser."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_context()
        browser.close()


@dataclass
class Opened:
    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def images(self):
        return self.page.evaluate("[...document.querySelectorAll('canvas.panel')].map((one) => one.toDataURL())")

    def slice(self):
        """Counted from 1, as in viewers."""
        return int(self.page.text_content("#which"))

    def scrolls_sideways(self):
        return self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


@pytest.fixture
def open_page(context, tmp_path):
    all_opened: list = []

    def open_report(result, title="p1", viewport=None, color_scheme=None):
        path = tmp_path / f"{len(all_opened)} report.html"
        path.write_bytes(render_report(result, title))
        opened = Opened(context.new_page())
        all_opened.append(opened)
        if viewport is not None:
            opened.page.set_viewport_size(viewport)
        opened.page.emulate_media(color_scheme=color_scheme)
        opened.page.set_default_timeout(10_000)
        opened.page.on("console", lambda message: opened.errors.append(message.text))
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on("dialog", lambda dialog: (opened.errors.append(dialog.message), dialog.dismiss()))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(path.as_uri())
        opened.page.wait_for_selector("body[data-ready]")
        return opened

    yield open_report
    for opened in all_opened:
        assert opened.errors == []
        assert all(url.startswith(("file:", "data:")) for url in opened.requests)
        opened.page.close()
    assert context.storage_state() == {"cookies": [], "origins": []}


def test_every_kind_of_result_opens_without_errors(any_kind, open_page):
    opened = open_page(any_kind, "</script><script>alert(1)</script>")
    assert opened.page.text_content("h1") == "</script><script>alert(1)</script>"
    for key in ("Home", "ArrowRight", "End"):
        opened.page.press("#slider", key)
    assert opened.slice() == any_kind.display.indices[-1] + 1
    assert opened.page.text_content("#decision-text")
    assert "NaN" not in opened.page.inner_text("body")
    assert "undefined" not in opened.page.inner_text("body")
    assert "NaN" not in opened.page.inner_html("main")


def test_the_panel_shows_the_slice(make, open_page):
    result = make()
    opened = open_page(result)
    opened.page.uncheck("#outline")
    opened.page.fill("#slider", "2")
    middle = opened.page.evaluate(
        """[0, 1].map((number) => {
            const canvas = document.querySelectorAll("canvas.panel")[number];
            const flat = document.createElement("canvas");
            flat.width = flat.height = 32;
            const context = flat.getContext("2d");
            context.drawImage(canvas, 0, 0, 32, 32);
            return [...context.getImageData(0, 0, 32, 32).data].filter((_, at) => at % 4 === 0);
        })"""
    )
    for channel in range(2):
        shades = (result.display.pixels[2, channel].astype(float) + 1) * 127.5
        difference = abs(shades.ravel() - middle[channel])
        assert difference.mean() < 25  # smoothed by resampling
        other = abs((result.display.pixels[3, channel].astype(float).ravel() + 1) * 127.5 - middle[channel])
        assert other.mean() > 1.5 * difference.mean()


def test_keys(make, open_page):
    opened = open_page(make(n=30, first=0))
    opened.page.focus("#panels")
    for key, wanted in (
        ("Home", 1), ("ArrowRight", 2), ("ArrowUp", 3), ("PageUp", 13), ("ArrowLeft", 12), ("ArrowDown", 11),
        ("PageDown", 1), ("PageDown", 1), ("End", 30), ("PageUp", 30), ("ArrowRight", 30),
    ):  # fmt: skip
        opened.page.keyboard.press(key)
        assert opened.slice() == wanted, key
    opened.page.focus("#slider")
    opened.page.keyboard.press("PageDown")
    assert opened.slice() == 20
    opened.page.focus("#opacity")
    opened.page.keyboard.press("ArrowRight")
    assert opened.slice() == 20
    assert opened.page.text_content("#opacity-value") == "5%"
    opened.page.focus("#outline")
    opened.page.keyboard.press("End")
    assert opened.slice() == 20
    opened.page.click("#previous")
    assert opened.slice() == 19
    opened.page.click("#next")
    opened.page.keyboard.press("ArrowRight")
    assert opened.slice() == 21


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_narrow_screens(make, open_page, width):
    names = {"flair": "a" * 90 + ".nii.gz", "t2": "t2.nii.gz"}
    opened = open_page(make(files=names, warnings=["b" * 120]), "c" * 90, viewport={"width": width, "height": 740})
    opened.page.click("summary")
    assert not opened.scrolls_sideways()
    if width < 500:
        boxes = [one.bounding_box() for one in opened.page.locator("canvas.panel").all()]
        assert len({round(box["x"]) for box in boxes}) == 1  # below each other
        assert boxes[0]["width"] > 0.8 * width


def test_printing_shows_summary_findings_and_slice_overview(make, open_page):
    opened = open_page(make(warnings=["look"]), color_scheme="dark")
    opened.page.emulate_media(media="print")
    for seen in (".lead", ".warning", "#strip", "table", "#overview canvas >> nth=0", ".notice"):
        assert opened.page.locator(seen).is_visible(), seen
    for hidden in ("#panels", "#slider", "#decision", "details"):
        assert not opened.page.locator(hidden).is_visible(), hidden
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
