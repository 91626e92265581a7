"""The bundled models and the demo."""

import base64
import io
import json
import shutil
from html.parser import HTMLParser

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from anofpdm.demo.run_demo import BUNDLED, PAGE, run_demo
from anofpdm.errors import AnoFPDMError, CohortError, ScanWarning
from anofpdm.report.overview import CAPTION, HEADING, TILE
from anofpdm.scans import Grid
from anofpdm.scoring.masks import count_correct_slices
from anofpdm.segment.outputs import MASK
from anofpdm.util.drawing import BLUE, OUTLINE
from anofpdm.util.files import folder_lock
from tests import toys
from tests.models.cards import lower_bound

KINDS = ("tumour", "stroke")
MOST_BYTES = 6e6
CALIBRATED_AS = {"tumour": "anofpdm-ours", "stroke": "anofpdm-agreement"}  # rows of the cards


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets = []

    def handle_starttag(self, _tag, attrs):
        self.targets += [value for name, value in attrs if name in ("href", "src")]


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
    assert {(made.kind, made.engine) for made in results} == {
        (kind, engine) for kind in KINDS for engine in ("student", "diffusion")
    }
    for made in results:
        method = "anofpdm-student" if made.engine == "student" else CALIBRATED_AS[made.kind]
        assert made.score.truth_ml > 1
        assert made.score.dice > lower_bound(made.kind, method, "volume DICE") - 0.1, (made.kind, made.engine)
    tumour = next(made for made in results if made.engine == "diffusion")
    assert tumour.slices_correct >= 0.7 * len(tumour.result.slices)


def test_scores_agree_with_the_written_masks(demo):
    out, results = demo
    for made in results:
        stem, ends = made.name.split("_ses")[0], ("seg.nii.gz", "lesion_mask.nii.gz")
        (truth,) = (path for path in (out / "scans").rglob(f"{stem}*") if path.name.endswith(ends))
        mask, lesion = (
            np.asarray(nib.Nifti1Image.from_filename(path).dataobj) > 0 for path in (made.folder / MASK, truth)
        )
        assert made.score.dice == pytest.approx(toys.dice(mask, lesion))


def test_the_page_links_to_the_reports_and_shows_the_true_lesion_in_every_picture(demo):
    out, results = demo
    links = Links()
    links.feed((out / PAGE).read_text())
    pictures = [link.removeprefix("data:image/png;base64,") for link in links.targets if link.startswith("data:")]
    local = [link for link in links.targets if not link.startswith("data:")]
    assert (len(local), len(pictures)) == (2 * len(results), len(results))
    assert all((out / link).is_file() for link in local)
    for picture in pictures:
        sheet = Image.open(io.BytesIO(base64.b64decode(picture))).crop((0, 0, 10_000, HEADING + CAPTION + TILE))
        assert {BLUE, OUTLINE} <= {colour for _, colour in sheet.getcolors(2**24)}
    assert "true lesion</b>. Slices are" in (out / PAGE).read_text()


def test_a_second_demo_replaces_only_the_first(demo, tmp_path, monkeypatch):
    monkeypatch.setattr("anofpdm.demo.run_demo.PhantomKind", [])  # no phantoms: only the folder is prepared
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


@pytest.mark.parametrize("flipped", [False, True])
def test_slices_are_counted_from_the_inferior_end(flipped):
    lesion = np.zeros((4, 5, 6), bool)
    lesion[1:3, 1:3, 4] = True
    grid = Grid.from_affine(lesion.shape, np.diag([2.0, 2.0, -3.0 if flipped else 3.0, 1.0]))
    position = 1 if flipped else 4  # the fourth from above is the second from below
    assert count_correct_slices(lesion, grid, {0: False, position: True, 5: True}) == 2
