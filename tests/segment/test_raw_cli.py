"""A raw study through the command line: what is written, what is shown, what a second run reuses, what is refused."""

import base64
import json
import re
import shutil

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.demo.run_demo import BUNDLED
from anofpdm.network.checkpoint import load_model, save_model
from anofpdm.scans import read_volume, write_nifti
from tests.raw.worlds import mean_error_mm, moved_head, random_rigid, thick_grid

GRIDS = {"flair": ((1.5, 1.5, 4.0), (130, 150, 38)), "t2": ((1.8, 1.8, 5.0), (112, 120, 32))}
MOVEMENT = random_rigid(np.random.default_rng(3), 10.0, 12.0)
STAGES = ("brain_flair.nii.gz", "brain_t2.nii.gz", "t2_to_flair.txt")


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """FLAIR and T2 of a phantom; for T2, the patient had moved. Stripped, so that no extra is needed."""
    folder = tmp_path_factory.mktemp("raw")
    for name, movement in (("flair", np.eye(4)), ("t2", MOVEMENT)):
        head = moved_head(name, movement, thick_grid(movement, *GRIDS[name]))
        write_nifti(folder / f"anna_{name}.nii.gz", np.where(head.brain, head.voxels, 0), head.grid)
    return folder


@pytest.fixture(scope="module")
def another_model(tmp_path_factory):
    """The same weights, for scans with a smaller field of view."""
    folder = tmp_path_factory.mktemp("model") / "narrow"
    shutil.copytree(BUNDLED / "phantom-tumour", folder)
    weights, config, before = load_model(folder)
    after = save_model(folder, weights, config | {"expects": {"field_of_view_mm": 220.0}})
    calibration = folder / "calibration.json"
    calibration.write_text(calibration.read_text().replace(before, after))
    weights, config, _ = load_model(folder / "student")
    save_model(folder / "student", weights, json.loads(json.dumps(config).replace(before, after)))
    return folder


def segment(model, scan, out, *words):
    files = [f"{name}={scan / f'anna_{name}.nii.gz'}" for name in GRIDS]
    arguments = ["segment", model, *files, "--out", out, "--engine", "student", "--device", "cpu", *words]
    return CliRunner().invoke(app, [str(word) for word in arguments])


@pytest.fixture(scope="module")
def done(scan, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    result = segment(BUNDLED / "phantom-tumour", scan, out / "first", "--preparations", out / "prepared")
    assert result.exit_code == 0, result.output
    return out, result


def parse_itk(text):
    """By the definition of ITK's MatrixOffsetTransformBase, as a matrix in RAS+; independent of our own reader."""
    numbers = {line.split(":")[0]: line.split(":")[1].split() for line in text.splitlines() if line[0] != "#"}
    assert numbers["Transform"] == ["AffineTransform_double_3_3"]
    parameters, centre = (np.array(numbers[name], float) for name in ("Parameters", "FixedParameters"))
    rotation = parameters[:9].reshape(3, 3)
    flip = np.diag([-1.0, -1.0, 1.0])
    matrix = np.eye(4)
    matrix[:3, :3] = flip @ rotation @ flip
    matrix[:3, 3] = flip @ (parameters[9:] + centre - rotation @ centre)
    return matrix


def test_the_preparation_is_written(scan, done):
    out, result = done
    lines = result.stderr.splitlines()
    assert any(re.fullmatch(r"anna: flair: brain of \d+ ml, \d+\.\d s", line) for line in lines)
    assert any(
        re.match(r"anna: t2: registered to flair, moved by 1[12]\.\d mm and 10\.\d degrees", line) for line in lines
    )
    folder = out / "prepared" / "anna"
    written = {path.name for path in folder.iterdir()}
    shown = {"brain.nii.gz", *(f"{name}.{kind}" for name in GRIDS for kind in ("nii.gz", "png"))}
    assert written == {*STAGES, *shown, "manifest.json", ".lock"}
    reference = moved_head("flair", np.eye(4), read_volume(scan / "anna_flair.nii.gz").grid)
    transform = parse_itk((folder / "t2_to_flair.txt").read_text())
    assert mean_error_mm(transform, MOVEMENT, reference) < 1.0
    study = json.loads((out / "first" / "anna" / "summary.json").read_text())["study"]
    assert study == json.loads((folder / "manifest.json").read_text())["study"]
    assert study["reference"] == "flair"
    t2 = study["series"]["t2"]
    np.testing.assert_allclose(t2["registration"]["matrix"], transform, atol=1e-9)
    assert t2["registration"]["moved_mm"] == pytest.approx(12, abs=1)
    assert t2["registration"]["rotated_degrees"] == pytest.approx(10, abs=1)
    assert set(t2["seconds"]) == {"brain", "registration"}
    seconds = sum(sum(one["seconds"].values()) for one in study["series"].values())
    assert study["seconds"] == pytest.approx(seconds, abs=0.2)


def test_the_report_shows_registration_and_brain(done):
    out, _ = done
    page = (out / "first" / "anna" / "report.html").read_text()
    section = page[page.index('id="preparation"') : page.index('id="browser"')]
    assert "the reference is FLAIR" in section
    assert "anna_t2.nii.gz" in section
    shown = [base64.b64decode(one) for one in re.findall(r'class="planes"[^>]*base64,([\w+/=]+)"', section)]
    assert shown == [(out / "prepared" / "anna" / f"{name}.png").read_bytes() for name in GRIDS]
    assert str(out) not in page


def test_a_second_run_with_another_model_reuses_the_preparation(scan, done, another_model):
    out, _ = done
    folder = out / "prepared" / "anna"
    before = {file: (folder / file).stat().st_mtime_ns for file in STAGES}
    shape = nib.nifti1.load(folder / "t2.nii.gz").shape
    result = segment(another_model, scan, out / "second", "--preparations", out / "prepared")
    assert result.exit_code == 0, result.output
    assert {file: (folder / file).stat().st_mtime_ns for file in STAGES} == before
    assert sum(", reused," in line for line in result.stderr.splitlines()) == 3
    assert nib.nifti1.load(folder / "t2.nii.gz").shape[0] < shape[0]  # on the grid that this model needs
    study = json.loads((out / "second" / "anna" / "summary.json").read_text())["study"]
    assert study["series"]["t2"]["reused"] == ["brain", "registration"]
    assert "(reused)" in (out / "second" / "anna" / "report.html").read_text()


def test_the_result_is_the_same_with_a_stored_preparation(scan, done):
    out, _ = done
    assert segment(BUNDLED / "phantom-tumour", scan, out / "third", "--preparations", out / "prepared").exit_code == 0
    for file in ("mask.nii.gz", "mask_on_t2.nii.gz"):
        assert (out / "third" / "anna" / file).read_bytes() == (out / "first" / "anna" / file).read_bytes()


def test_a_series_that_does_not_fit_is_refused_with_a_picture(scan, tmp_path):
    t2 = read_volume(scan / "anna_t2.nii.gz")
    noise = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=t2.grid.shape), (4, 4, 2))
    texture = np.where(t2.voxels > 0, 100 + 50 * noise / noise.std(), 0).clip(0).astype(np.float32)
    shutil.copy(scan / "anna_flair.nii.gz", tmp_path)
    write_nifti(tmp_path / "anna_t2.nii.gz", texture, t2.grid)
    result = segment(BUNDLED / "phantom-tumour", tmp_path, tmp_path / "out")
    assert result.exit_code == 3
    picture = tmp_path / "out" / "anna" / "preparation" / "failed_t2.png"
    assert f"does not fit {tmp_path / 'anna_flair.nii.gz'}" in result.output
    assert f"(picture: {picture})" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "out" / "anna").iterdir()] == ["preparation"]  # nothing is segmented
    shutil.copy(scan / "anna_t2.nii.gz", tmp_path)
    assert segment(BUNDLED / "phantom-tumour", tmp_path, tmp_path / "out").exit_code == 0
    assert not picture.exists()
