"""The page of `anofpdm score`, opened from disk in a real browser."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from tests import toys

SHAPE, SPACING = (44, 52, 30), (1.0, 0.8, 2.5)
AFFINE = toys.affine_of("LPS", SPACING, shape=SHAPE)
NASTY = "a<img src=x onerror=alert(2)>&\"'"
LONG = "sub-" + "a" * 70
IS_CUT_OFF = """(table) => {
    for (let part = table; part; part = part.parentElement) {
        if (part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).overflowX === "hidden") return true;
    }
    return false;
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of one pair, and of six with images, long names, an empty mask and a failure."""
    folder = tmp_path_factory.mktemp("scored")
    for number, name in enumerate(("p1", "p2", "p3", NASTY, "healthy", LONG)):
        radius = -1 if name == "healthy" else 4 + number
        mask = toys.ball(AFFINE, SHAPE, (2, 3, 0), radius).astype(np.uint8)
        toys.save(folder / "truth" / f"{name}_seg.nii.gz", mask, AFFINE)
        toys.save(folder / "predicted" / f"{name}_pred.nii.gz", np.roll(mask, number, axis=0), AFFINE)
        toys.save(folder / "images" / f"{name}_flair.nii.gz", toys.head(SHAPE, number, AFFINE), AFFINE)
    (folder / "predicted" / "p9_pred.nii.gz").write_bytes(b"not a mask")
    score(3, folder / "predicted", folder / "truth", "--out", folder / "many", "--image", folder / "images")
    score(0, folder / "predicted" / "p2_pred.nii.gz", folder / "truth" / "p2_seg.nii.gz", "--out", folder / "single")
    return {name: folder / name / "index.html" for name in ("many", "single")}


def score(code, *words):
    done = CliRunner().invoke(app, ["score", *map(str, words), "--workers", "1"])
    assert done.exit_code == code, done.output


@pytest.mark.parametrize(
    ("name", "pictures", "words"),
    [("many", 5, ("p1", NASTY, LONG, "p9_pred.nii.gz")), ("single", 1, ())],
)
def test_pictures_are_visible_and_tables_can_be_read(open_file, pages, name, pictures, words):
    """Two plots, and the best, median and worst scan; of one pair, only the scan. Tables wider than the screen scroll
    in their own boxes; text is not cut off."""
    page = open_file(pages[name])
    assert not re.search("<script|<link|href=", pages[name].read_text())  # self-contained
    text = page.inner_text("body")
    assert all(word in text for word in ("DICE", *words))
    assert "nan" not in text
    for width in (1100, 420):
        page.set_viewport_size({"width": width, "height": 800})
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert page.locator("img").count() == pictures
        for image in page.locator("img").all():
            assert image.evaluate("image => image.complete && image.naturalWidth > 200")
            assert image.get_attribute("alt")
            box, scrolled = image.bounding_box(), image.locator("xpath=ancestor::div[@class='slices']")
            assert box["height"] > 180
            if scrolled.count():  # slices scroll in a box of their own
                assert box["height"] == 224
                box = scrolled.bounding_box()
            assert 0 <= box["x"] <= width - box["width"]
            assert box["width"] >= min(300, 0.8 * width)
        assert not any(table.evaluate(IS_CUT_OFF) for table in page.locator("table").all())
