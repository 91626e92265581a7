"""Raw studies of phantoms, on grids of their own, to one grid and back."""

import json

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from anofpdm.errors import ScanError
from anofpdm.raw import preparation
from anofpdm.raw.geometry import resample
from anofpdm.raw.preparation import Preparation
from anofpdm.raw.register import Registration
from anofpdm.raw.series_header import check_header
from anofpdm.raw.stripped import is_stripped, on_one_grid
from anofpdm.raw.study import StudyOptions, prepare_study, to_series
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.grid import Grid
from tests.raw.worlds import mean_error_mm, moved_head, random_rigid, thick_grid, tumour_phantom

FLAIR, T2 = ((1.5, 1.5, 5.0), (130, 150, 30)), ((1.8, 1.8, 4.0), (112, 120, 40))
MOVEMENT = random_rigid(np.random.default_rng(8), 12.0, 15.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """FLAIR and T2 of a phantom whose T2 was taken after a movement; tilted grids, brains without skull."""
    folder = tmp_path_factory.mktemp("study")
    grids = thick_grid(random_rigid(np.random.default_rng(1), 8.0, 3.0), *FLAIR), thick_grid(MOVEMENT, *T2)
    heads = {"flair": moved_head("flair", np.eye(4), grids[0]), "t2": moved_head("t2", MOVEMENT, grids[1])}
    for name, head in heads.items():
        write_nifti(folder / f"{name}.nii.gz", np.where(head.brain, head.voxels, 0), head.grid)
    return {name: folder / f"{name}.nii.gz" for name in heads}


class StoredBrain:
    """The phantom's own: its scans are stripped."""

    calls = 0

    def __call__(self, volume):
        self.calls += 1
        return volume.voxels > 0


stored_brain = StoredBrain()


def test_a_second_study_has_its_own_reference(tmp_path, monkeypatch):
    grid = thick_grid(np.eye(4), *T2)
    files = {name: tmp_path / f"{name}.nii.gz" for name in ("flair", "t2")}
    for name, path in files.items():
        head = moved_head(name, np.eye(4), grid)
        write_nifti(path, np.where(head.brain, head.voxels, 0), grid)
    monkeypatch.setattr(preparation, "register_rigid", lambda *_: Registration(np.eye(4), 1.0, 1.0, kept=True))
    tools = Preparation(stored_brain, "phantom", tmp_path / "preparation")
    tools.prepare(files)
    again = tools.prepare({name: files[name] for name in ("t2", "flair")})
    assert again.record["reference"] == "t2"
    assert (tmp_path / "preparation" / "flair_to_t2.txt").is_file()
    assert not (tmp_path / "preparation" / "flair_to_flair.txt").exists()


def test_a_study_is_prepared_stored_and_reused(files, tmp_path):
    lines: list[str] = []
    tools = Preparation(stored_brain, "phantom", tmp_path / "preparation", lines.append)
    study = prepare_study(files, tools)
    tools.save_study(study)
    assert study.reference.name == "flair"
    flair, t2 = study.series
    reference = moved_head("flair", np.eye(4), flair.grid)
    assert mean_error_mm(t2.matrix, MOVEMENT, reference) <= 1.0
    assert t2.agreement.dice > 0.93
    assert any(line.startswith("t2: registered to flair, moved by 1") for line in lines)  # 15 mm, and a rotation

    # On the grid of the scan, the reference has its own voxels, and T2 shows the same anatomy.
    size = study.scan.grid.spacing_mm * study.scan.grid.shape
    np.testing.assert_allclose(size[:2], 240, atol=1.5)
    own = study.to_reference(study.scan.volumes[0])
    kept = study.to_reference(study.brain.astype(np.float32)) == 1
    original = read_volume(files["flair"]).voxels
    np.testing.assert_array_equal(own[kept], original[kept])

    # Nothing is computed again, whatever the order of later runs, and files on disk are complete.
    calls = stored_brain.calls
    steps: list[tuple[float, float, str]] = []

    def progress(task, done, total, note=""):  # noqa: ARG001
        steps.append((done, total, note))

    tools = Preparation(stored_brain, "phantom", tmp_path / "preparation", progress=progress)
    again = prepare_study(files, tools)
    assert [done for done, _, _ in steps] == [0, 1, 1, 2, 2, 3]
    assert {total for _, total, _ in steps} == {3}
    assert [note for _, _, note in steps[::2]] == ["brain of flair", "brain of t2", "registration of t2"]
    assert stored_brain.calls == calls
    np.testing.assert_allclose(again.series[1].matrix, t2.matrix, atol=1e-12)
    for one, two in zip(again.scan.volumes, study.scan.volumes, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-3)
    manifest = json.loads((tmp_path / "preparation" / "manifest.json").read_text())
    assert manifest["study"]["series"]["t2"]["agreement"]["dice"] == t2.agreement.dice
    assert nib.nifti1.load(tmp_path / "preparation" / "t2.nii.gz").shape == study.scan.grid.shape

    # Other brains: nothing stored applies.
    prepare_study({"flair": files["flair"]}, Preparation(stored_brain, "other", tmp_path / "preparation"))
    assert stored_brain.calls == calls + 1
    _check_native_masks(study)


def _check_native_masks(study):
    """A lesion drawn on the scan's grid, brought to T2's own grid, is where the phantom has it after the movement."""
    phantom = tumour_phantom()
    source = Grid.from_affine(phantom.mask.shape, phantom.affine)
    lesion = resample(phantom.mask > 0, source, study.scan.grid, np.eye(4)) >= 0.5
    for one, matrix in zip(study.series, (np.eye(4), MOVEMENT), strict=True):
        found = to_series(study.to_reference(lesion), study.reference, one) >= 0.5
        truth = resample(phantom.mask > 0, source, one.grid, np.linalg.inv(matrix)) >= 0.5
        assert 2 * (found & truth).sum() / (found.sum() + truth.sum()) > 0.85


def test_a_series_of_something_else_is_refused(files, tmp_path):
    """A brain of the same outline whose tissues are elsewhere. (Phantoms are variations of one average brain: too
    similar to stand for two patients.)"""
    t2 = read_volume(files["t2"])
    noise = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=t2.grid.shape), (4, 4, 2))
    texture = np.where(t2.voxels > 0, 100 + 50 * noise / noise.std(), 0).clip(0).astype(np.float32)
    write_nifti(tmp_path / "t2.nii.gz", texture, t2.grid)
    wrong = {"flair": files["flair"], "t2": tmp_path / "t2.nii.gz"}
    with pytest.raises(ScanError, match=r"t2\.nii\.gz: does not fit .*flair\.nii\.gz .*same patient"):
        prepare_study(wrong, Preparation(stored_brain, "phantom"))


def test_one_image_as_two_series_is_refused(files, tmp_path):
    flair = read_volume(files["flair"])
    write_nifti(tmp_path / "t2.nii.gz", flair.voxels, Grid.from_affine(flair.grid.shape, MOVEMENT @ flair.grid.affine))
    with pytest.raises(ScanError, match=r"t2\.nii\.gz: exactly the image of .*flair\.nii\.gz"):
        prepare_study({"flair": files["flair"], "t2": tmp_path / "t2.nii.gz"}, Preparation(stored_brain, "phantom"))


def test_implausible_brains_are_refused(files):
    with pytest.raises(ScanError, match=r"a brain of \d+ ml was found, plausible are 500 to 2400 ml"):
        prepare_study(files, Preparation(lambda volume: volume.voxels >= np.percentile(volume.voxels, 99.9), "small"))


@pytest.mark.parametrize(
    ("spacing", "shape", "message"),
    [((1, 1, 8), (256, 256, 3), "only 3 slices"), ((1, 1, 5), (200, 200, 10), "covers only 50 mm"),
     ((1, 1, 15), (200, 200, 10), "15 mm apart")],
)  # fmt: skip
def test_localisers_and_slabs_are_refused(spacing, shape, message):
    with pytest.raises(ScanError, match=message):
        check_header(Grid.from_affine(shape, np.diag([*spacing, 1.0])), "scout.nii.gz")


def test_stripped_scans_on_one_grid_are_recognised(files, tmp_path):
    flair, t2 = (read_volume(path) for path in files.values())
    assert is_stripped(flair)
    assert is_stripped(t2)
    assert not on_one_grid([flair.grid, t2.grid])
    assert on_one_grid([flair.grid, flair.grid])
    noisy = np.random.default_rng(0).rayleigh(10, flair.grid.shape).astype(np.float32) + flair.voxels
    write_nifti(tmp_path / "raw.nii.gz", noisy, flair.grid)
    assert not is_stripped(read_volume(tmp_path / "raw.nii.gz"))


def test_thick_slices_of_the_reference_are_divided(files):
    lines: list[str] = []
    tools = Preparation(stored_brain, "phantom", report=lines.append)
    study = prepare_study(files, tools, StudyOptions(slice_mm=2.0))
    assert "flair: slices of 5 mm divided into slices of 1.67 mm" in lines
    np.testing.assert_allclose(study.scan.grid.spacing_mm, [1.5, 1.5, 5 / 3], rtol=1e-5)
    own = study.to_reference(study.scan.volumes[0])  # means over the thick slices
    inside = ndimage.binary_erosion(study.to_reference(study.brain.astype(np.float32)) == 1)
    original = read_volume(files["flair"]).voxels
    assert np.abs(own - original)[inside].mean() < 0.02 * original[inside].mean()
    thin = prepare_study(files, tools, StudyOptions(slice_mm=4.0))  # 5 mm are not much more
    np.testing.assert_allclose(thin.scan.grid.spacing_mm, [1.5, 1.5, 5.0], rtol=1e-5)


def test_a_model_with_skull_gets_the_skull(files):
    study = prepare_study({"flair": files["flair"]}, Preparation(stored_brain, "phantom"), StudyOptions(strip=False))
    outside = ~study.brain
    assert study.scan.volumes[0][outside].sum() == pytest.approx(0, abs=1e-3)  # the phantom has none
    np.testing.assert_array_equal(study.series[0].matrix, np.eye(4))
