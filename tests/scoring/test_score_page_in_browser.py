"""The page of `anofpdm score`, opened from disk in a real browser."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from tests import toys

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")

SHAPE, SPACING = (44, 52, 30), (1.0, 0.8, 2.5)
AFFINE = toys.affine_of("LPS", SPACING, shape=SHAPE)
LONG = "sub-" + "a" * 70


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of one pair, and of six with images, long names, an empty mask and a failure."""
    folder = tmp_path_factory.mktemp("scored")
    for number, name in enumerate(("p1", "p2", "p3", "p4", "healthy", LONG)):
        lesion = toys.ball(AFFINE, SHAPE, (2, 3, 0), -1 if name == "healthy" else 4 + number)
        toys.save(folder / "truth" / f"{name}_seg.nii.gz", lesion.astype(np.uint8), AFFINE)
        larger = toys.ball(AFFINE, SHAPE, (2, 3, 0), -1 if name == "healthy" else 3.5 + 1.3 * number)
        predicted = np.roll(larger, number, axis=0)
        toys.save(folder / "predicted" / f"{name}_pred.nii.gz", predicted.astype(np.uint8), AFFINE)
        toys.save(folder / "images" / f"{name}_flair.nii.gz", toys.head(SHAPE, number, AFFINE), AFFINE)
    (folder / "predicted" / "p9_pred.nii.gz").write_bytes(b"not a mask")
    images = ("--image", folder / "images")
    score(3, folder / "predicted", folder / "truth", "--out", folder / "many", *images)
    score(0, folder / "predicted" / "p2_pred.nii.gz", folder / "truth" / "p2_seg.nii.gz", "--out", folder / "single")
    return {name: folder / name / "index.html" for name in ("many", "single")}


def score(code, *words):
    done = CliRunner().invoke(app, ["score", *map(str, words), "--workers", "1"])
    assert done.exit_code == code, done.output


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize("width", [1100, 420])
@pytest.mark.parametrize(("name", "pictures"), [("many", 5), ("single", 1)])
def test_pictures_are_visible_and_tables_can_be_read(browser, pages, name, pictures, width):
    """Two plots, and the best, median and worst scan; of one pair, only the scan. Tables wider than the screen scroll
    in their own boxes; text is not cut off."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(pages[name].as_uri())
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    images = page.locator("img").all()
    assert len(images) == pictures
    for image in images:
        assert image.evaluate("image => image.complete && image.naturalWidth > 200")
        assert image.get_attribute("alt")
        assert image.is_visible()
        box, scrolled = image.bounding_box(), image.locator("xpath=ancestor::div[@class='slices']")
        assert box["x"] >= 0
        assert box["height"] > 180
        if scrolled.count():  # slices scroll in a box of their own
            box = scrolled.bounding_box()
            assert image.bounding_box()["height"] == 224
        assert box["x"] + box["width"] <= width
        assert box["width"] >= min(300, 0.8 * width)
    text = page.inner_text("body")
    assert all(word in text for word in ("DICE", *(("p1", LONG, "p9_pred.nii.gz") if name == "many" else ())))
    assert "nan" not in text
    for table in page.locator("table").all():
        assert table.evaluate(
            """(table) => {
                for (let part = table; part; part = part.parentElement) {
                    const style = getComputedStyle(part);
                    if (part.scrollWidth > part.clientWidth + 1 && style.overflowX === "hidden") return false;
                }
                return true;
            }"""
        )
    assert messages == []
    assert all(url.startswith(("file:", "data:")) for url in requests)
    page.close()
