"""Raw studies of phantoms, on grids of their own, to one grid and back."""

import numpy as np
import pytest
from scipy import ndimage

from anofpdm.errors import ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.study import Study, StudyOptions, to_series
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.grid import Grid
from anofpdm.scans.plausible import check_header, is_stripped
from tests.raw.toy_studies import lesion_on, mean_error_mm, moved_head, random_rigid, stripped_head, thick_grid
from tests.toys import dice

TILT, MOVEMENT = random_rigid(np.random.default_rng(1), 8.0, 3.0), random_rigid(np.random.default_rng(8), 12.0, 15.0)
GRIDS = {
    "flair": thick_grid(TILT, (1.5, 1.5, 5.0), (130, 150, 30)),
    "t2": thick_grid(MOVEMENT, (1.8, 1.8, 4.0), (112, 120, 40)),
}
MOVEMENTS = {"flair": np.eye(4), "t2": MOVEMENT}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """FLAIR and T2 of a phantom whose T2 was taken after a movement; tilted grids, brains without skull."""
    folder = tmp_path_factory.mktemp("study")
    for name, grid in GRIDS.items():
        write_nifti(folder / f"{name}.nii.gz", stripped_head(name, MOVEMENTS[name], grid).voxels, grid)
    return {name: folder / f"{name}.nii.gz" for name in GRIDS}


def test_a_study_is_prepared_stored_and_reused(files, tmp_path, monkeypatch):
    lines: list[str] = []
    study = Study(files, cache=StudyCache(tmp_path, lines.append)).prepare()
    flair, t2 = study.series
    assert mean_error_mm(t2.matrix, MOVEMENT, moved_head("flair", np.eye(4), flair.grid)) <= 1.0
    assert any(line.startswith("t2: registered to flair, moved by 1") for line in lines)  # 15 mm, and a rotation

    # On the grid of the scan, the reference has its own voxels; a lesion drawn there is in T2 where the patient has it.
    np.testing.assert_allclose((study.scan.grid.spacing_mm * study.scan.grid.shape)[:2], 240, atol=1.5)
    kept = study.to_reference(study.brain) == 1
    own = study.to_reference(study.scan.volumes[0])
    np.testing.assert_array_equal(own[kept], read_volume(files["flair"]).voxels[kept])
    lesion = study.to_reference(lesion_on(study.scan.grid))
    for series in study.series:
        truth = lesion_on(series.grid, MOVEMENTS[series.name])
        assert dice(to_series(lesion, flair, series) >= 0.5, truth) > 0.85

    # A later run computes nothing again, unless the brain is to be found in another way.
    (tmp_path / "failed_t2.png").touch()  # of an earlier run
    steps: list[tuple[float, float, str]] = []
    cache = StudyCache(tmp_path, progress=lambda _, done, total, note="": steps.append((done, total, note)))
    with monkeypatch.context() as patch:
        for function in ("register_rigid", "BrainFinder.__call__"):
            patch.setattr(f"anofpdm.raw.study.{function}", None)
        again = Study(files, cache=cache).prepare()
    notes = ["brain of flair", "brain of t2", "registration of t2"]
    assert steps == [(done + end, 3, note) for done, note in enumerate(notes) for end in (0, 1)]
    for volume, before in zip(again.scan.volumes, study.scan.volumes, strict=True):
        np.testing.assert_allclose(volume, before, atol=1e-3)
    assert not (tmp_path / "failed_t2.png").exists()
    assert again.record["series"]["t2"]["agreement"]["dice"] > 0.93
    given = BrainFinder(command=read_volume, method="given")  # of stripped scans: what is above 0
    other = Study({"flair": files["flair"]}, cache=cache, find_brain=given).prepare()
    assert other.record["series"]["flair"]["reused"] == []
    assert other.record["brain_extraction"] == "given"


def other_tissue(volume):
    """A brain of the same outline whose tissues are elsewhere. (Phantoms are variations of one average brain: too
    similar to stand for two patients.)"""
    noise = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=volume.grid.shape), (4, 4, 2))
    return np.where(volume.voxels > 0, 100 + 50 * noise / noise.std(), 0).clip(0).astype(np.float32)


@pytest.mark.parametrize(
    ("copied", "make", "problem"),
    [("t2", other_tissue, "does not fit {}.*is it of the same patient"),
     ("flair", lambda volume: volume.voxels, "exactly the image of {}")],
)  # fmt: skip
def test_series_of_something_else_or_of_the_same_image_are_refused(copied, make, problem, files, tmp_path):
    volume, path = read_volume(files[copied]), tmp_path / "t2.nii.gz"
    write_nifti(path, make(volume), volume.grid)
    with pytest.raises(ScanError, match=f"^{path}: {problem.format(files['flair'])}"):
        Study({"flair": files["flair"], "t2": path}).prepare()


@pytest.mark.parametrize(
    ("spacing", "shape", "message"),
    [((1, 1, 8), (256, 256, 3), "only 3 slices"), ((1, 1, 5), (200, 200, 10), "covers only 50 mm"),
     ((1, 1, 15), (200, 200, 10), "15 mm apart")],
)  # fmt: skip
def test_localisers_and_slabs_are_refused(spacing, shape, message):
    with pytest.raises(ScanError, match=message):
        check_header(Grid.from_affine(shape, np.diag([*spacing, 1.0])), "scout.nii.gz")


def test_stripped_scans_are_recognised(files):
    flair = read_volume(files["flair"])
    assert is_stripped(flair.voxels, flair.grid)
    air = np.random.default_rng(0).rayleigh(10, flair.grid.shape)
    assert not is_stripped(air + flair.voxels, flair.grid)


@pytest.mark.parametrize(("slice_mm", "divided_mm"), [(2.0, 5 / 3), (4.0, 5.0)])  # 5 mm are not much more than 4
def test_thick_slices_of_the_reference_are_divided(slice_mm, divided_mm, files):
    lines: list[str] = []
    study = Study({"flair": files["flair"]}, StudyOptions(slice_mm=slice_mm), StudyCache(report=lines.append)).prepare()
    assert ("flair: slices of 5 mm divided into slices of 1.67 mm" in lines) == (divided_mm < 5)
    np.testing.assert_allclose(study.scan.grid.spacing_mm, [1.5, 1.5, divided_mm], rtol=1e-5)


@pytest.mark.parametrize("strip", [True, False])
def test_a_model_with_skull_gets_the_skull(strip, files, tmp_path):
    stripped = read_volume(files["flair"])
    brain = stripped.voxels > 0
    shell = ndimage.binary_dilation(brain, iterations=4) & ~ndimage.binary_dilation(brain, iterations=2)
    write_nifti(tmp_path / "head.nii.gz", np.where(shell, stripped.voxels.max(), stripped.voxels + 1), stripped.grid)
    write_nifti(tmp_path / "brain.nii.gz", brain.astype(np.uint8), stripped.grid)
    finder = BrainFinder(tmp_path / "brain.nii.gz", method="mask")
    study = Study(
        {"flair": tmp_path / "head.nii.gz"}, StudyOptions(ScanExpectation(skull=not strip)), find_brain=finder
    ).prepare()
    assert (study.scan.volumes[0][~study.brain] == 0).all() == strip
