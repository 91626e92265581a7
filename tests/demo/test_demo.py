"""The demo: bundled models on phantoms, compared with the true lesions."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from anofpdm.demo.run_demo import PAGE, run_demo
from anofpdm.errors import AnoFPDMError, CohortError, ScanWarning
from anofpdm.report.overview import TILE
from anofpdm.scans import Grid
from anofpdm.scoring.masks import count_correct_slices
from anofpdm.segment.outputs import MASK
from anofpdm.util.drawing import BLUE, OUTLINE
from anofpdm.util.files import folder_lock
from tests import toys

FLOORS = {  # of the volume DICE: the lower end of its interval in the model's card, less 0.1 for few slices
    ("PhantomTumour", "student"): 0.598, ("PhantomTumour", "diffusion"): 0.616,
    ("sub-phantom", "student"): 0.534, ("sub-phantom", "diffusion"): 0.368,
}  # fmt: skip


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets = []

    def handle_starttag(self, _tag, attrs):
        self.targets += [value for name, value in attrs if name in ("href", "src")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    with pytest.warns(ScanWarning, match="processes each slice alone"):  # few slices, for a quick test
        return out, run_demo(out, device="cpu", patients=1, slices=6)


def test_the_demo_finds_the_lesions(demo):
    """As well as the cards state; and scores are those of the written masks."""
    out, results = demo
    scores = {(re.match("[A-Za-z-]+", made.name)[0], str(made.engine)): made.score for made in results}
    assert set(scores) == set(FLOORS)
    assert all(scores[key].dice > floor for key, floor in FLOORS.items()), scores
    for made in results:
        stem, ends = made.name.split("_ses")[0], ("seg.nii.gz", "lesion_mask.nii.gz")
        (truth,) = (path for path in (out / "scans").rglob(f"{stem}*") if path.name.endswith(ends))
        mask, lesion = (
            np.asarray(nib.Nifti1Image.from_filename(path).dataobj) > 0 for path in (out / made.folder / MASK, truth)
        )
        assert made.score.dice == pytest.approx(toys.dice(mask, lesion))
    tumour = next(made for made in results if made.engine == "diffusion")
    assert tumour.slices_correct >= 0.7 * len(tumour.result.slices)


def test_the_page_links_to_the_reports_and_shows_the_true_lesion_in_every_picture(demo):
    out, results = demo
    page, links = (out / PAGE).read_text(), Links()
    links.feed(page)
    pictures = [link.removeprefix("data:image/png;base64,") for link in links.targets if link.startswith("data:")]
    local = [link for link in links.targets if not link.startswith("data:")]
    assert (len(local), len(pictures)) == (2 * len(results), len(results))
    assert all((out / link).is_file() for link in local)
    for picture in pictures:
        sheet = Image.open(io.BytesIO(base64.b64decode(picture))).crop((0, 0, 10_000, 2 * TILE))  # above the charts
        assert {BLUE, OUTLINE} <= {colour for _, colour in sheet.getcolors(2**24)}
    for made in results:
        assert f"<td>{made.score.predicted_ml:.1f} ml</td>\n<td>{made.score.truth_ml:.1f} ml</td>" in page
        assert f"The true lesion has {made.score.truth_ml:.1f} ml, DICE {made.score.dice:.2f}." in page


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
