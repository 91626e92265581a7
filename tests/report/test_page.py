"""A report says what the segmentation holds, holds all it shows, and lets nothing in or out."""

import base64
import hashlib
import io
import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from anofpdm.report import wording
from anofpdm.report.page import render_report, script_safe
from anofpdm.report.page_data import axial_index, glance_rows, highest_shown, start_row
from anofpdm.report.sheets import HEAT_COLOURS, columns_of
from anofpdm.scans import AxialPlanes, Grid
from tests import toys

NASTY = "</script ><script >alert(1)</script><img src=x onerror=alert(2)>&amp;\"'<!--\u2028"


class Read(HTMLParser):
    """A page as a browser reads it: elements with their attributes, and the text inside each kind."""

    def __init__(self, made: bytes):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(made.decode())
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def inside(self, tag):
        return [text for name, text in self.texts if name == tag]

    @property
    def visible(self):
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("script", "style")).split())

    @property
    def data(self):
        return json.loads(self.inside("script")[0])

    def sheet(self, name):
        (src,) = [one["src"] for one in self.all("img") if one["data-sheet"] == name]
        return Image.open(io.BytesIO(base64.b64decode(src.removeprefix("data:image/png;base64,"), validate=True)))

    def tiles(self, name, count, size):
        """[n, H, W], cut out of a sheet."""
        sheet, columns = np.asarray(self.sheet(name)), columns_of(count)
        places = itertools.islice(itertools.product(range(sheet.shape[0] // size), range(columns)), count)
        return np.stack([sheet[r * size : (r + 1) * size, c * size : (c + 1) * size] for r, c in places])


def close(said, known):
    known = [None if not np.isfinite(value) else pytest.approx(float(value), rel=1e-5, abs=1e-12) for value in known]
    assert said == known


# ---- nothing comes in, nothing goes out ------------------------------------------------------------------------------


def test_the_page_holds_all_it_needs(any_kind):
    made = render_report(any_kind, "p1")
    read = Read(made)
    assert not re.search(r"https?:|[\"'(]//", re.sub(r"base64,[\w+/=]+", "", made.decode()), re.IGNORECASE)
    assert {tag for tag, _ in read.elements}.isdisjoint({"link", "iframe", "object", "embed", "form", "base", "a"})
    for tag, attributes in read.elements:
        assert tag == "img" or "src" not in attributes
        assert not any(name.startswith("on") or name in ("style", "href", "srcset") for name in attributes)
    assert all(one["src"].startswith("data:image/png;base64,") for one in read.all("img"))
    assert not re.search(r"@import|url\(", " ".join(read.inside("style")))


def test_the_policy_allows_this_script_and_this_style_alone(make):
    read = Read(render_report(make(), "p1"))
    (policy,) = [one["content"] for one in read.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    said = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert said["default-src"] == said["base-uri"] == "'none'"
    assert said["img-src"] == "data:"
    for name, text in (("script-src", read.inside("script")[1]), ("style-src", read.inside("style")[0])):
        assert said[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_names_are_text_whatever_they_hold(make):
    plain = Read(render_report(make(), "p1"))
    names = {NASTY: NASTY, "t2": NASTY}
    nasty = make(modalities=(NASTY, "t2"), files=names, warnings=[NASTY], engine=NASTY)
    nasty.summary["settings"]["detector"] = NASTY
    read = Read(render_report(nasty, NASTY))
    assert len(read.all("script")) == len(plain.all("script")) == 2
    assert len(read.all("img")) == len(plain.all("img")) == 4
    assert read.inside("h1") == [NASTY]
    assert read.data["modalities"] == [NASTY, "t2"]
    assert read.data["score"]["detector"] == NASTY
    assert "alert(1)" in read.visible  # as words


def test_data_is_never_taken_for_markup():
    text = script_safe({"name": NASTY, NASTY: [NASTY]})
    assert not set(text) & {"<", ">", "&", "\u2028"}
    assert json.loads(text) == {"name": NASTY, NASTY: [NASTY]}


def test_no_folder_is_told(make):
    home = "/home/anna smith/secret study"
    files = {"flair": f"{home}/p1_flair.nii.gz", "t2": "C:\\Users\\anna\\secret\\p1_t2.nii.gz"}
    warnings = [
        f"{files['flair']}: 90% of its slices is foreground; is it skull-stripped?",
        f"/tmp/tmpabc x/brain.nii.gz: no orientation in the header, unlike {files['t2']} and /srv/anna/other.nii.gz",
    ]
    result = make(files=files, warnings=warnings)
    result.summary["settings"]["brain_mask"] = (
        "command '/opt/my tools/hd-bet' -i {input} -o {output} --model=/srv/anna/m"
    )
    made = render_report(result, "p1").decode()
    for word in ("anna", "secret", "/home", "Users", "/tmp", "tmpabc", "/opt", "my tools", "/srv"):
        assert word not in made, word
    for word in ("p1_flair.nii.gz: 90% of its slices", "p1_t2.nii.gz", "brain.nii.gz: no orientation", "hd-bet -i"):
        assert word in Read(render_report(result, "p1")).visible, word


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_numbers_are_the_segmentations(make):
    result = make()
    data, decisions, curves = Read(render_report(result, "p1")).data, result.decisions, result.display.curves
    slices = data["slices"]
    assert [one["slice"] for one in slices] == result.display.indices.tolist()
    assert [one["detected"] for one in slices] == decisions.detected.tolist()
    close([one["score"] for one in slices], decisions.log_odds)
    close([one["end_step"] for one in slices], decisions.end_step)
    close([one["end_divergence"] for one in slices], decisions.end_divergence)
    close([one["quantile"] for one in slices], decisions.quantile)
    close([one["threshold"] for one in slices], decisions.threshold)
    close([one["area_mm2"] for one in slices], decisions.masks.sum((1, 2)) * result.display.pixel_mm**2)
    assert data["levels"] == list(curves.levels)
    for name in ("divergence", "mse_guided", "mse_unguided"):
        for row, one in enumerate(slices):
            close(one[name], getattr(curves, name)[row])
    assert data["volume_ml"] == pytest.approx(result.volume_ml, rel=1e-5)
    close([one["volume_ml"] for one in data["findings"]], [one.volume_ml for one in result.findings])
    for said, finding in zip(data["findings"], result.findings, strict=True):
        close(said["centre_mm"], finding.centre_mm)
        close(said["peak_mm"], finding.peak_mm)


def test_the_scan_in_words(make):
    result = make(axes="RAS")
    said = Read(render_report(result, "Anna's scan")).visible
    (finding,) = result.findings
    detected = int(result.decisions.detected.sum())
    assert f"{detected} of 9 slices were called unhealthy." in said
    assert f"The mask holds {finding.volume_ml:.1f} ml, in 1 finding." in said
    assert "14 mm right, 10 mm posterior and" in said
    assert "14 R, 10 P," in said
    assert "32 x 32 x 14 voxels, 2 x 2 x 3 mm each" in said
    assert "slices 3 to 11, of 14" in said
    assert "flair.nii.gz" in said
    assert "/data" not in said
    assert "not a medical device" in said
    assert "Warning" not in said
    assert "Anna's scan" in said


def test_names_that_are_no_text_do_not_stop_a_report(make):
    assert Read(render_report(make(files={"flair": "p\udce9.nii.gz", "t2": "t2.nii.gz"}), "p\udce9")).inside("h1") == [
        "p?"
    ]


def test_where_nothing_was_found_it_says_so(make):
    said = Read(render_report(make(radius=-1.0), "p1")).visible
    assert "Nothing was found. None of 9 slices was called unhealthy." in said
    assert "There are none." in said
    empty = make(changes={"masks": np.zeros((9, 32, 32), bool)})
    assert "Even so, nothing in the maps was large enough" in Read(render_report(empty, "p1")).visible


def test_left_and_right_are_not_told_where_the_file_does_not(make):
    result = make()
    for code in ("sform_code", "qform_code"):
        result.grid.header[code] = 0
    read = Read(render_report(result, "p1"))
    assert read.data["sides"] is False
    assert "to a side that the file does not tell" in read.visible
    assert "14 ?, 10 P" in read.visible
    assert "right" not in read.visible


@pytest.mark.parametrize("gone", [np.nan, np.inf])
def test_what_is_no_number_is_null_and_a_dash(make, gone):
    lost = {name: np.full(9, gone) for name in ("score", "end_step", "end_divergence", "quantile", "threshold")}
    data = Read(render_report(make(changes=lost), "p1")).data
    assert {one[name] for one in data["slices"] for name in lost} == {None}
    unhealthy = next(one for one in data["slices"] if one["detected"])
    assert "log odds -, cut 0." in unhealthy["said"]
    assert "t_e = -." in unhealthy["said"]
    assert "at least - (its quantile -)" in unhealthy["said"]


class TestOneSlice:
    def said(self, result, detected):
        rows = result.decisions.detected == detected
        return Read(render_report(result, "p1")).data["slices"][int(np.flatnonzero(rows)[0])]["said"]

    def test_curve(self, make):
        assert re.match(
            r"Called unhealthy: log odds \d\.\d\d, cut 0\. Guidance moved the estimate most at t_e = \d+\. "
            r"The mask is where the map is at least 0\.5 \(its quantile 0\.9\d\); it covers \d+ mm²\.$",
            self.said(make(), True),
        )
        assert "Called healthy: log odds -" in self.said(make(), False)
        assert "Its mask is left empty." in self.said(make(), False)

    def test_cosine(self, make):
        cosine = make(detector="cosine", threshold="both")
        assert "curves is 0.97" in self.said(cosine, True)
        assert "at or below the cut of 0.99000" in self.said(cosine, True)
        assert "the geometric mean of its quantile" in self.said(cosine, True)
        assert "above the cut of 0.99000" in self.said(cosine, False)
        data = Read(render_report(cosine, "p1")).data
        assert data["score"]["cut"] == 0.99
        close([one["score"] for one in data["slices"]], cosine.decisions.similarity)

    def test_none(self, make):
        alone = make(detector="none", threshold="healthy")
        assert "No detector was asked" in self.said(alone, True)
        assert "from slices labelled healthy" in self.said(alone, True)
        read = Read(render_report(alone, "p1"))
        assert read.data["score"]["cut"] is None
        assert "No detector was asked: all 9 slices counted as unhealthy." in read.visible

    def test_an_engine_without_curves(self, make):
        student = make(detector="student", engine="student", curves=False)
        assert "t_e" not in self.said(student, True)
        read = Read(render_report(student, "p1"))
        assert read.data["levels"] is None
        assert "There are no curves: the student network looks at each slice once." in read.visible

    def test_neighbours_are_named_where_they_had_a_say(self, make):
        alone, together = make(), make()
        together.summary["settings"]["choices"]["context_mm"] = 2.0
        assert "neighbouring" not in Read(render_report(alone, "p1")).visible
        assert "neighbouring slices, within about 2 mm" in Read(render_report(together, "p1")).visible

    def test_nothing_large_enough(self, make):
        empty = make(changes={"masks": np.zeros((9, 32, 32), bool)})
        assert "No large enough part of the map reaches 0.5" in self.said(empty, True)


# ---- what it shows ---------------------------------------------------------------------------------------------------


def test_every_slice_is_there_pixel_by_pixel(make):
    result = make()
    read, decisions, pixels = (
        Read(render_report(result, "p1")),
        result.decisions,
        result.display.pixels.astype(np.float32),
    )
    for channel in range(2):
        np.testing.assert_array_equal(read.tiles(str(channel), 9, 32), np.round((pixels[:, channel] + 1) * 127.5))
    np.testing.assert_array_equal(read.tiles("mask", 9, 32), decisions.masks)
    assert read.sheet("mask").mode == "1"
    shades = np.clip(decisions.maps / read.data["highest"], 0, 1) * 255
    np.testing.assert_allclose(read.tiles("map", 9, 32), shades, atol=0.51)
    colours = np.asarray(read.sheet("map").convert("RGB"))
    np.testing.assert_array_equal(colours, HEAT_COLOURS.astype(np.uint8)[np.asarray(read.sheet("map"))])
    assert read.data["columns"] == 3
    assert read.data["size"] == 32


def test_a_whole_head_stays_small(make):
    """155 slices of noise, which shrinks least, in two modalities."""
    assert len(render_report(make(n=155, size=128, radius=40.0), "p1")) < 6_000_000


def test_a_healthy_scan_is_not_stretched_until_its_noise_shines():
    maps = np.linspace(0, 1, 1000).reshape(1, 10, 100)
    assert highest_shown(maps, 0.1) == pytest.approx(0.999, abs=1e-3)
    assert highest_shown(maps, 3.0) == 6.0


def test_it_begins_with_most_lesion_or_the_most_unhealthy():
    assert start_row(np.array([0, 3, 5, 0]), np.array([9.0, 0, 0, 0])) == 2
    assert start_row(np.zeros(3), np.array([-3.0, -1.0, -2.0])) == 1
    assert start_row(np.zeros(3), np.array([np.nan, np.nan, -2.0])) == 2


@pytest.mark.parametrize(
    ("n", "lesions"), [(1, 0), (1, 1), (9, 3), (24, 24), (155, 0), (155, 2), (155, 60), (155, 150)]
)
def test_slices_at_a_glance(n, lesions):
    areas = np.zeros(n)
    areas[:lesions] = 1
    rows = glance_rows(areas)
    assert len(rows) == len(set(rows)) == min(n, 24)
    assert rows == sorted(rows)
    shown = [row for row in rows if areas[row]]
    assert len(shown) >= min(lesions, 12)


@pytest.mark.parametrize("axes", toys.ORIENTATIONS)
def test_a_place_is_in_its_slice_whatever_the_orientation(axes):
    shape, voxel = (10, 12, 14), (2, 5, 11)
    affine = toys.affine_of(axes, (1, 2, 3), (4, 3, 2), shape)
    marked = np.zeros(shape)
    marked[voxel] = 1
    grid = Grid.from_affine(shape, affine)
    (z,) = np.flatnonzero(AxialPlanes(grid, 16).axial(marked).any(axis=(1, 2)))
    assert axial_index((affine @ [*voxel, 1])[:3], grid) == z


def test_a_finding_leads_to_its_slice(make):
    result = make()
    (finding,) = Read(render_report(result, "p1")).data["findings"]
    assert result.decisions.masks[finding["row"]].any()
    assert finding["slice"] == result.display.indices[finding["row"]]


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0 ml"), (0.0421, "0.042 ml"), (3.14159, "3.1 ml"), (120.0, "120.0 ml"), (np.nan, "- ml")]
)
def test_millilitres(value, said):
    assert wording.millilitres(value) == said
