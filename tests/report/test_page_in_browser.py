"""The report page, opened from disk in a real browser."""

import pytest

from anofpdm.report.result_page import render_report
from tests.report.conftest import segmented


@pytest.fixture
def open_page(open_file, tmp_path):
    def open_report(result, title="p1", **options):
        path = tmp_path / "report.html"
        path.write_bytes(render_report(result, title))
        page = open_file(path, **options)
        page.wait_for_selector("body[data-ready]")
        return page

    return open_report


def chosen_slice(page):
    """Counted from 1, as in viewers."""
    return int(page.text_content("#which"))


def test_every_kind_of_result_opens_without_errors(any_kind, open_page):
    page = open_page(any_kind, "</script><script>alert(1)</script>")
    assert page.text_content("h1") == "</script><script>alert(1)</script>"
    for key in ("Home", "ArrowRight", "End"):
        page.press("#slider", key)
    assert chosen_slice(page) == any_kind.display.indices[-1] + 1
    assert page.text_content("#decision-text")
    assert "NaN" not in page.inner_text("body")
    assert "undefined" not in page.inner_text("body")
    assert "NaN" not in page.inner_html("main")


def test_the_panel_shows_the_slice(open_page):
    result = segmented()
    page = open_page(result)
    page.uncheck("#outline")
    page.fill("#slider", "2")
    middle = page.evaluate(
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


def test_keys(open_page):
    page = open_page(segmented(n=30, first=0))
    page.focus("#panels")
    for key, wanted in (
        ("Home", 1), ("ArrowRight", 2), ("ArrowUp", 3), ("PageUp", 13), ("ArrowLeft", 12), ("ArrowDown", 11),
        ("PageDown", 1), ("PageDown", 1), ("End", 30), ("PageUp", 30), ("ArrowRight", 30),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert chosen_slice(page) == wanted, key
    page.focus("#slider")
    page.keyboard.press("PageDown")
    assert chosen_slice(page) == 20
    page.focus("#opacity")
    page.keyboard.press("ArrowRight")
    assert chosen_slice(page) == 20
    assert page.text_content("#opacity-value") == "5%"
    page.focus("#outline")
    page.keyboard.press("End")
    assert chosen_slice(page) == 20
    page.click("#previous")
    assert chosen_slice(page) == 19
    page.click("#next")
    page.keyboard.press("ArrowRight")
    assert chosen_slice(page) == 21


def test_narrow_screens(open_page):
    names = {"flair": "a" * 90 + ".nii.gz", "t2": "t2.nii.gz"}
    page = open_page(segmented(files=names, warnings=["b" * 120]), "c" * 90)
    page.click("summary")
    for width in (320, 360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 740})
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"), width
        if width < 500:
            boxes = [panel.bounding_box() for panel in page.locator("canvas.panel").all()]
            assert len({round(box["x"]) for box in boxes}) == 1  # below each other
            assert boxes[0]["width"] > 0.8 * width


def test_printing_shows_summary_findings_and_slice_overview(open_page):
    page = open_page(segmented(warnings=["look"]), color_scheme="dark")
    page.emulate_media(media="print")
    for seen in (".lead", ".warning", "#strip", "table", "#overview canvas >> nth=0", ".notice"):
        assert page.locator(seen).is_visible(), seen
    for hidden in ("#panels", "#slider", "#decision", "details"):
        assert not page.locator(hidden).is_visible(), hidden
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
