"""The figure of the method: well-formed, self-contained, and made by the script that claims it."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from docs.tools.method_svg import HEIGHT, ROW_NAMES, WIDTH, Pictures, draw_method

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def draw() -> str:
    tile = "data:image/png;base64,AAAA"
    levels = tuple((t, tile, tile, tile) for t in (60, 180, 300, 420))
    return draw_method(Pictures(tile, tile, levels, tile, tile, (0, 60, 120), ((0.0, 2.0, 1.0), (0.0, 0.5, 1.0))))


@pytest.mark.parametrize("text", [draw(), (DOCS / "method.svg").read_text()], ids=["drawn", "stored"])
def test_a_figure_is_complete(text):
    assert len(text) < 300_000
    root = ElementTree.fromstring(text)
    images = root.findall(f"{SVG}image")
    assert len(images) == 4 + 3 * 4  # two slices, map, mask; three pictures at each of four levels
    words = [element.text for element in root.findall(f"{SVG}text")]
    assert all(word in words for name in ROW_NAMES for word in name)
    for image in images:  # nothing is outside of the figure, or fetched
        assert image.get("href").startswith("data:image/png;base64,")
        assert 0 <= float(image.get("x")) <= WIDTH - float(image.get("width"))
        assert 0 <= float(image.get("y")) <= HEIGHT - float(image.get("height"))
