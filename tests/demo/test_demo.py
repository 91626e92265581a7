"""The bundled models and the demo."""

import base64
import io
import json
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from anofpdm.demo.run_demo import BUNDLED, PAGE, run_demo
from anofpdm.errors import AnoFPDMError, CohortError, EvaluationError, ScanWarning
from anofpdm.report.overview import CAPTION, HEADING, TILE
from anofpdm.scans import Grid, read_volume
from anofpdm.scoring.metrics.volumes import score_volume
from anofpdm.segment.outputs import MASK
from anofpdm.util.drawing import BLUE, OUTLINE
from anofpdm.util.files import folder_lock
from tests.models.cards import lower_bound

KINDS = ("tumour", "stroke")
MOST_BYTES = 6e6
CALIBRATED_AS = {"tumour": "anofpdm-ours", "stroke": "anofpdm-agreement"}  # rows of the cards


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, _tag, attrs):
        self.found += [value for name, value in attrs if name in ("href", "src")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundled_model_is_small_and_has_a_card(kind):
    files = [path for path in (BUNDLED / f"phantom-{kind}").rglob("*") if path.is_file()]
    own = {"weights.safetensors", "config.json", "README.md"}
    student = {f"student/{name}" for name in own}
    assert {path.relative_to(BUNDLED / f"phantom-{kind}").as_posix() for path in files} == own | student | {
        "calibration.json",
        "facts.json",
    }
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    card = (BUNDLED / f"phantom-{kind}" / "README.md").read_text()
    assert json.loads((BUNDLED / f"phantom-{kind}" / "config.json").read_text())["sha256"] in card
    for word in ("anofpdm phantom", "anofpdm prepare", "anofpdm train", "anofpdm calibrate", "distill", "Limits"):
        assert word in card


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    with pytest.warns(ScanWarning, match="processes each slice alone"):  # few slices, for a quick test
        return out, run_demo(out, device="cpu", patients=1, slices=6)


def test_the_demo_finds_the_lesions(demo):
    _, results = demo
    assert {(one.kind, one.engine) for one in results} == {
        (kind, e) for kind in KINDS for e in ("student", "diffusion")
    }
    for one in results:
        method = "anofpdm-student" if one.engine == "student" else CALIBRATED_AS[one.kind]
        assert one.score.lesion_ml > 1
        assert one.score.dice > lower_bound(one.kind, method, "volume DICE") - 0.1, (one.kind, one.engine)
    tumour = next(one for one in results if one.engine == "diffusion").score
    assert tumour.slices_correct >= 0.7 * tumour.slices


def test_scores_agree_with_the_written_masks(demo):
    out, results = demo
    for one in results:
        mask = np.asarray(nib.Nifti1Image.from_filename(one.folder / MASK).dataobj) > 0
        (truth_file,) = (path for path in (out / "scans").rglob("*.nii.gz") if _is_truth(path.name, one.name))
        truth = np.asarray(nib.Nifti1Image.from_filename(truth_file).dataobj) > 0
        both = (mask & truth).sum()
        assert one.score.dice == pytest.approx(2 * both / (mask.sum() + truth.sum()))


def _is_truth(name, subject):
    return name.startswith(subject.split("_ses")[0]) and name.endswith(("seg.nii.gz", "lesion_mask.nii.gz"))


def test_the_page_links_to_the_reports(demo):
    out, results = demo
    links = Links()
    links.feed((out / PAGE).read_text())
    local = [link for link in links.found if not link.startswith("data:")]
    assert len(local) == 2 * len(results)
    for link in local:
        assert (out / link).is_file()


def test_the_page_shows_the_true_lesion_in_every_picture(demo):
    out, results = demo
    links = Links()
    links.feed((out / PAGE).read_text())
    pictures = [link.removeprefix("data:image/png;base64,") for link in links.found if link.startswith("data:")]
    assert len(pictures) == len(results)
    for picture in pictures:
        sheet = Image.open(io.BytesIO(base64.b64decode(picture))).crop((0, 0, 10_000, HEADING + CAPTION + TILE))
        colours = {colour for _, colour in sheet.getcolors(2**24)}
        assert {BLUE, OUTLINE} <= colours
    assert "true lesion</b>. Slices are" in (out / PAGE).read_text()


def test_the_first_brain_is_segmented_by_both_engines(tmp_path, monkeypatch):
    class FakeModel:
        modalities = ("flair", "t1", "t1ce", "t2")

        def request(self):
            return SimpleNamespace(engine=SimpleNamespace(name="student"))

    runs = []
    monkeypatch.setattr("anofpdm.demo.run_demo.load", lambda *_: FakeModel())
    monkeypatch.setattr("anofpdm.demo.run_demo.TRUTH_SUFFIXES", {"tumour": "seg"})
    monkeypatch.setattr(
        "anofpdm.demo.run_demo._segment", lambda _m, target, engine, *_: runs.append((target.subject.name, engine))
    )
    monkeypatch.setattr("anofpdm.demo.run_demo.render_page", lambda *_, **__: "")
    run_demo(tmp_path, device="cpu", patients=2, slices=10)
    (first, one), (again, two), (second, three) = runs
    assert (one, two, three) == ("student", "diffusion", "student")
    assert first == again != second


def test_a_second_demo_replaces_only_the_first(demo, tmp_path, monkeypatch):
    monkeypatch.setattr("anofpdm.demo.run_demo.TRUTH_SUFFIXES", {})  # no phantoms: only the folder is prepared
    out, _ = demo
    (tmp_path / "results").mkdir()
    with pytest.raises(CohortError, match="not made by a demo"):
        run_demo(tmp_path, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    shutil.copytree(out, tmp_path / "again")
    with folder_lock(tmp_path / "again"), pytest.raises(AnoFPDMError, match="another run is writing here"):
        run_demo(tmp_path / "again", device="cpu")
    assert (tmp_path / "again" / "results").is_dir()
    run_demo(tmp_path / "again", device="cpu")
    assert not (tmp_path / "again" / "results").exists()


class TestVolumeScore:
    def grid(self, flip=False):
        affine = np.diag([2.0, 2.0, -3.0 if flip else 3.0, 1.0])
        return Grid.from_affine((4, 5, 6), affine)

    def truth(self, folder, grid):
        lesion = np.zeros(grid.shape, np.uint8)
        lesion[1:3, 1:3, 4] = 1
        path = folder / "truth.nii.gz"
        nib.save(nib.Nifti1Image(lesion, grid.affine), path)
        return path, lesion > 0

    def test_counts_by_hand(self, tmp_path):
        grid = self.grid()
        path, lesion = self.truth(tmp_path, grid)
        mask = lesion.copy()
        mask[1, 1, 4], mask[0, 0, 0] = False, True
        score = score_volume(mask, grid, {0: False, 4: True, 5: True}, path)
        assert score.dice == pytest.approx(2 * 3 / 8)
        assert score.lesion_ml == pytest.approx(4 * 12 / 1000)
        assert (score.slices, score.slices_correct) == (3, 2)

    def test_slices_are_counted_from_the_inferior_end(self, tmp_path):
        grid = self.grid(flip=True)
        path, lesion = self.truth(tmp_path, grid)
        assert read_volume(path).grid.affine[2, 2] < 0
        score = score_volume(lesion, grid, {1: True, 4: False}, path)  # the fourth from above is the second from below
        assert score.slices_correct == 2
        assert score.dice == 1

    def test_a_truth_with_flipped_axes_is_turned_to_the_scan(self, tmp_path):
        """Equal shapes: compared voxel by voxel, left and right would be exchanged without a word."""
        grid = self.grid()
        path, lesion = self.truth(tmp_path, grid)
        lesion[3, 4, 4] = True
        image = nib.Nifti1Image(lesion.astype(np.uint8), grid.affine)
        nib.save(image.as_reoriented(np.array([[0, -1], [1, -1], [2, 1]])), path)
        with pytest.warns(ScanWarning, match="axes reordered from LPS to RAS"):
            assert score_volume(lesion, grid, {4: True}, path).dice == 1

    def test_a_truth_elsewhere_is_refused(self, tmp_path):
        grid = self.grid()
        path, lesion = self.truth(tmp_path, grid)
        moved = nib.affines.from_matvec(grid.affine[:3, :3], [500, 0, 0])
        nib.save(nib.Nifti1Image(lesion.astype(np.uint8), moved), path)
        with pytest.raises(EvaluationError, match="overlap by 0%"):
            score_volume(lesion, grid, {4: True}, path)

    def test_an_empty_mask_of_a_healthy_scan_scores_1(self, tmp_path):
        grid = self.grid()
        path = tmp_path / "empty.nii.gz"
        nib.save(nib.Nifti1Image(np.zeros(grid.shape, np.uint8), grid.affine), path)
        assert score_volume(np.zeros(grid.shape, bool), grid, {0: False}, path).dice == 1
