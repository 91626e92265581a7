"""The report agrees with the segmentation, is self-contained, and is safe against any content."""

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

from anofpdm.method.decision import DecisionSettings
from anofpdm.report.display import DecisionRules, SliceSpace
from anofpdm.report.page_data import column_count, overview_rows
from anofpdm.report.result_page import render_report
from anofpdm.scans import AxialPlanes, Grid
from anofpdm.scans.findings import Finding, find_lesions
from anofpdm.util.drawing import HEAT_COLOURS
from tests import toys
from tests.report.conftest import NASTY, STUDY, segmented


class ParsedPage(HTMLParser):
    """A parsed page: elements with their attributes, and the text inside each kind of element."""

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
        (src,) = [image["src"] for image in self.all("img") if image.get("data-sheet") == name]
        return Image.open(io.BytesIO(base64.b64decode(src.removeprefix("data:image/png;base64,"), validate=True)))

    def tiles(self, name, count, size):
        """[n, H, W], cut from a sheet."""
        sheet, columns = np.asarray(self.sheet(name)), column_count(count)
        places = itertools.islice(itertools.product(range(sheet.shape[0] // size), range(columns)), count)
        return np.stack([sheet[r * size : (r + 1) * size, c * size : (c + 1) * size] for r, c in places])


def read_page(result):
    return ParsedPage(render_report(result, "p1"))


def assert_close(actual, expected):
    assert actual == pytest.approx(np.asarray(expected, dtype=float).tolist(), rel=1e-5, abs=1e-12)


# ---- self-contained and safe -----------------------------------------------------------------------------------------


def test_the_page_is_self_contained_and_shows_markup_as_text(any_kind):
    made = render_report(any_kind, NASTY)
    read = ParsedPage(made)
    assert read.inside("h1") == [NASTY]
    assert len(read.all("script")) == 2
    assert not re.search(r"https?:|[\"'(]//", re.sub(r"base64,[\w+/=]+", "", made.decode()), re.IGNORECASE)
    assert {tag for tag, _ in read.elements}.isdisjoint({"link", "iframe", "object", "embed", "form", "base", "a"})
    for tag, attributes in read.elements:
        assert tag == "img" or "src" not in attributes
        assert not any(name.startswith("on") or name in ("style", "href", "srcset") for name in attributes)
    assert all(image["src"].startswith("data:image/png;base64,") for image in read.all("img"))
    assert not re.search(r"@import|url\(", " ".join(read.inside("style")))


def test_the_policy_allows_only_this_script_and_this_style():
    read = read_page(segmented())
    (policy,) = [meta["content"] for meta in read.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == directives["base-uri"] == "'none'"
    assert directives["img-src"] == "data:"
    for name, text in (("script-src", read.inside("script")[1]), ("style-src", read.inside("style")[0])):
        assert directives[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_folders_are_not_in_the_page():
    home = "/home/anna smith/secret study"
    files = {"flair": f"{home}/p1_flair.nii.gz", "t2": "C:\\Users\\anna\\secret\\p1_t2.nii.gz"}
    warnings = [
        f"{files['flair']}: 90% of its slices is foreground; is it skull-stripped?",
        f"/tmp/tmpabc x/brain.nii.gz: no orientation in the header, unlike {files['t2']} and /srv/anna/other.nii.gz",
    ]
    result = segmented(files=files, warnings=warnings)
    result.summary.settings["brain_mask"] = "command '/opt/my tools/hd-bet' -i {input} -o {output} --model=/srv/anna/m"
    made = render_report(result, "p1").decode()
    for word in ("anna", "secret", "/home", "Users", "/tmp", "tmpabc", "/opt", "my tools", "/srv"):
        assert word not in made, word
    for word in ("p1_flair.nii.gz: 90% of its slices", "p1_t2.nii.gz", "brain.nii.gz: no orientation", "hd-bet -i"):
        assert word in read_page(result).visible, word


# ---- numbers and sentences -------------------------------------------------------------------------------------------


def test_numbers_agree_with_the_segmentation():
    result = segmented()
    data, decisions, evidence = read_page(result).data, result.decisions, result.decisions.evidence
    expected = {
        "slice": result.display.indices + 1,  # counted from 1
        "detected": decisions.detected,
        "score": decisions.log_odds,
        "threshold": decisions.threshold,
        "area_mm2": decisions.masks.sum((1, 2)) * result.display.pixel_mm**2,
        **{name: getattr(evidence, name) for name in ("end_step", "end_divergence", "quantile")},
    }
    for name, values in expected.items():
        assert_close([shown[name] for shown in data["slices"]], values)
    assert data["levels"] == list(evidence.levels)
    for name in ("divergence", "mse_guided", "mse_unguided"):
        for shown, curve in zip(data["slices"], getattr(evidence, name), strict=True):
            assert_close(shown[name], curve)


def test_the_summary_of_the_scan():
    result = segmented(axes="RAS")
    text = ParsedPage(render_report(result, "Anna's scan")).visible
    (finding,) = result.findings
    detected = int(result.decisions.detected.sum())
    assert f"{detected} of 9 slices were classified as unhealthy." in text
    assert f"The lesion mask has a volume of {finding.volume_ml:.1f} ml in 1 finding." in text
    assert "14 mm right, 10 mm posterior and" in text
    assert "from the scanner origin." in text
    assert "14 R, 10 P," in text
    assert "32 x 32 x 14 voxels of 2 x 2 x 3 mm" in text
    assert "slices 4 to 12 of 14" in text
    assert "Slices are counted from 1 at the inferior end. They are seen from the feet: the patient's right (R)" in text
    assert "flair.nii.gz" in text
    assert "/data" not in text
    assert "not a medical device" in text
    assert "Warning" not in text
    assert "Anna's scan" in text


def test_the_preparation_of_a_raw_study_is_described():
    read = read_page(segmented(study=STUDY))
    assert "2 series on one grid; the reference is FLAIR." in read.visible
    assert "1390 ml moved by 3.1 mm, rotated by 18.2° 0.96 (DICE) 12.0 (reused)" in read.visible
    alts = [image["alt"] for image in read.all("img") if image.get("class") == "planes"]
    assert alts[1] == "Planes of T2 with the outline of the brain mask, edges of FLAIR"
    assert "onerror=alert(2)" in read.visible  # as text
    assert "/data" not in read.visible
    assert "preparation" not in read_page(segmented()).visible


def test_file_names_that_are_not_utf8():
    made = render_report(segmented(files={"flair": "p\udce9.nii.gz", "t2": "t2.nii.gz"}), "p\udce9")
    assert ParsedPage(made).inside("h1") == ["p?"]


def test_a_scan_without_findings():
    text = read_page(segmented(radius=-1.0)).visible
    assert "No lesion was found. None of 9 slices was classified as unhealthy." in text
    assert "Findings None." in text
    empty = segmented(changes={"masks": np.zeros((9, 32, 32), bool)})
    assert "However, no region above the threshold was large enough" in read_page(empty).visible


def test_the_largest_finding_is_the_first():
    mask = np.zeros((8, 8, 8), bool)
    mask[1, 1, 1] = mask[3:6, 3:6, 3:6] = True
    findings = find_lesions(mask, mask.astype(np.float32), np.eye(4))
    assert [(finding.number, round(1000 * finding.volume_ml)) for finding in findings] == [(1, 27), (2, 1)]


def test_left_and_right_are_not_stated_without_an_orientation():
    result = segmented()
    for code in ("sform_code", "qform_code"):
        result.grid.header[code] = 0
    read = read_page(result)
    assert read.data["oriented"] is False
    assert "14 mm lateral (side unknown: not in the file header)" in read.visible
    assert "14 ?, 10 P" in read.visible
    assert "right" not in read.visible


@pytest.mark.parametrize("gone", [np.nan, np.inf])
def test_non_finite_values_are_null_and_shown_as_a_dash(gone):
    lost = {name: np.full(9, gone) for name in ("end_step", "end_divergence", "quantile", "threshold")}
    lost["score"] = np.full(9, np.inf)  # detected
    data = read_page(segmented(changes=lost)).data
    assert {shown[name] for shown in data["slices"] for name in lost} == {None}
    unhealthy = next(shown for shown in data["slices"] if shown["detected"])
    assert "log odds -, at or above the threshold 0." in unhealthy["decision"]
    assert "t_e = -." in unhealthy["decision"]
    assert "at least - (quantile - of the slice)" in unhealthy["decision"]


def decision(result, detected):
    rows = np.flatnonzero(result.decisions.detected == detected)
    return read_page(result).data["slices"][int(rows[0])]["decision"]


def test_a_decision_by_the_curve_detector():
    assert re.match(
        r"Classified as unhealthy: log odds \d\.\d\d, at or above the threshold 0\. "
        r"Guided and unguided estimate differ most at noise level t_e = \d+\. "
        r"The mask is where the anomaly map is at least 0\.5 \(quantile 0\.9\d of the slice\); "
        r"its area is \d+ mm²\.$",
        decision(segmented(), True),
    )
    assert re.match(r"Classified as healthy: log odds -.* Its mask is empty\.", decision(segmented(), False))
    empty = segmented(changes={"masks": np.zeros((9, 32, 32), bool)})
    assert "no region where the anomaly map is at least 0.5" in decision(empty, True)


def test_a_decision_by_the_cosine():
    cosine = segmented(detector="cosine", threshold="both")
    assert re.search(r"error curves 0\.97\d*, at or below the threshold 0\.99000", decision(cosine, True))
    assert "geometric mean of the quantile" in decision(cosine, True)
    assert "above the threshold 0.99000" in decision(cosine, False)
    data = read_page(cosine).data
    assert data["score"]["threshold"] == 0.99
    assert_close([shown["score"] for shown in data["slices"]], cosine.decisions.evidence.similarity)


def test_without_a_detector():
    alone = segmented(detector="none", threshold="healthy")
    assert "No slice detector was used" in decision(alone, True)
    assert "calibrated on slices labelled healthy" in decision(alone, True)
    read = read_page(alone)
    assert read.data["score"]["threshold"] is None
    assert "No slice detector was used: all 9 slices were treated as unhealthy." in read.visible


def test_a_student_has_no_curves_and_estimates_its_overlap():
    student = segmented(
        detector="student", engine="student", curves=False, changes={"estimated_dice": np.full(9, 0.8249)}
    )
    assert "t_e" not in decision(student, True)
    read = read_page(student)
    assert read.data["levels"] is None
    assert "No curves over noise levels: the student network predicts each slice in one step." in read.visible
    assert "Expected overlap with a manual mask (DICE): about 0.82. It is estimated without" in read.visible
    assert "Expected DICE about 0.82" in read.visible
    assert "Expected" not in read_page(segmented()).visible


@pytest.mark.parametrize(
    ("highest", "words"),
    [
        (0.1, "at least 0.1 (lowered from 0.5, as the lesion is faint or small in this slice)"),
        (0.5, "at least 0.1 to 0.5 (lesion probability, lower where a lesion is faint)"),
    ],
)
def test_a_student_states_the_lowest_threshold_that_a_mask_was_drawn_with(highest, words):
    changes = {"threshold": np.full(9, 0.1), "highest_threshold": np.full(9, highest)}
    assert words in decision(segmented(detector="student", engine="student", curves=False, changes=changes), True)


def test_smoothing_across_slices_is_stated():
    smoothed = segmented(rules=DecisionRules("diffusion", DecisionSettings(context_mm=2.0)))
    assert "smoothed across slices (sigma 2 mm)" in read_page(smoothed).visible
    assert "smoothed" not in read_page(segmented()).visible


# ---- images ----------------------------------------------------------------------------------------------------------


def test_sheets_hold_every_pixel():
    result = segmented()
    read, decisions, pixels = read_page(result), result.decisions, result.display.pixels.astype(np.float32)
    for channel in range(2):
        np.testing.assert_array_equal(read.tiles(str(channel), 9, 32), np.round((pixels[:, channel] + 1) * 127.5))
    np.testing.assert_array_equal(read.tiles("mask", 9, 32), decisions.masks)
    assert read.sheet("mask").mode == "1"
    shades = np.clip(decisions.maps / read.data["map_maximum"], 0, 1) * 255
    np.testing.assert_allclose(read.tiles("map", 9, 32), shades, atol=0.51)
    colours = np.asarray(read.sheet("map").convert("RGB"))
    np.testing.assert_array_equal(colours, HEAT_COLOURS[np.asarray(read.sheet("map"))])
    assert read.data["columns"] == 3
    assert read.data["size"] == 32


@pytest.mark.parametrize(
    ("n", "lesions"), [(1, 0), (1, 1), (9, 3), (24, 24), (155, 0), (155, 2), (155, 60), (155, 150)]
)
def test_rows_of_the_slice_overview(n, lesions):
    areas = np.zeros(n)
    areas[:lesions] = 1
    rows = overview_rows(areas)
    assert len(rows) == len(set(rows)) == min(n, 24)
    assert rows == sorted(rows)
    shown = [row for row in rows if areas[row]]
    assert len(shown) >= min(lesions, 12)


@pytest.mark.parametrize("axes", toys.ORIENTATIONS)
def test_axial_index_in_any_orientation(axes):
    shape, voxel = (10, 12, 14), (2, 5, 11)
    affine = toys.affine_of(axes, (1, 2, 3), (4, 3, 2), shape)
    marked = np.zeros(shape)
    marked[voxel] = 1
    grid = Grid.from_affine(shape, affine)
    (z,) = np.flatnonzero(AxialPlanes(grid, 16).axial(marked).any(axis=(1, 2)))
    finding = Finding(1, 1.0, tuple((affine @ [*voxel, 1])[:3].tolist()), 1.0, (0.0, 0.0, 0.0))
    indices = np.arange(3, 14)
    assert SliceSpace(grid, np.eye(4)).central_rows([finding], indices) == [max(z - 3, 0)]
