"""A raw study through the command line: what is written, what is shown, what a second run reuses, what is refused."""

import base64
import json
import re

import numpy as np
import pytest

from anofpdm.demo.run_demo import BUNDLED
from anofpdm.raw.geometry import encode_transform
from anofpdm.raw.register import Head
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.grid import Grid
from tests import toys
from tests.commands import run
from tests.raw.toy_studies import mean_error_mm, moved_head, random_rigid, stripped_head, thick_grid

GRIDS = {"flair": ((1.5, 1.5, 4.0), (130, 150, 38)), "t2": ((1.8, 1.8, 5.0), (112, 120, 32))}
MOVEMENT = random_rigid(np.random.default_rng(3), 10.0, 12.0)
STAGES = ("brain_flair.nii.gz", "brain_t2.nii.gz", "t2_to_flair.txt")


@pytest.fixture(scope="module")
def heads():
    """FLAIR and T2 of a phantom; for T2, the patient had moved. Stripped, so that no extra is needed."""
    movements = {"flair": np.eye(4), "t2": MOVEMENT}
    return {name: stripped_head(name, movements[name], thick_grid(movements[name], *GRIDS[name])) for name in GRIDS}


def write(folder, heads):
    for name, head in heads.items():
        write_nifti(folder / f"anna_{name}.nii.gz", head.voxels, head.grid)
    return folder


@pytest.fixture(scope="module")
def scan(heads, tmp_path_factory):
    return write(tmp_path_factory.mktemp("raw"), heads)


def segment(scan, out, *words, code=0):
    files = [f"{name}={scan / f'anna_{name}.nii.gz'}" for name in GRIDS]
    options = ("--engine", "student", "--device", "cpu", *words)
    return run("segment", BUNDLED / "phantom-tumour", *files, "--out", out, *options, code=code)


@pytest.fixture(scope="module")
def done(scan, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return out, segment(scan, out / "first", "--preparations", out / "prepared")


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
    study = json.loads((out / "first" / "anna" / "summary.json").read_text())["study"]
    assert study == json.loads((folder / "manifest.json").read_text())["study"]
    assert study["reference"] == "flair"
    t2 = study["series"]["t2"]
    transform = np.array(t2["registration"]["matrix"])
    assert mean_error_mm(transform, MOVEMENT, reference) < 1.0
    assert (folder / "t2_to_flair.txt").read_bytes() == encode_transform(transform)  # compared with ITK elsewhere
    assert t2["registration"]["moved_mm"] == pytest.approx(12, abs=1)
    assert t2["registration"]["rotated_degrees"] == pytest.approx(10, abs=1)
    assert set(t2["seconds"]) == {"brain", "registration"}
    seconds = sum(sum(series["seconds"].values()) for series in study["series"].values())
    assert study["seconds"] == pytest.approx(seconds, abs=0.2)


def test_the_report_shows_registration_and_brain(done):
    out, _ = done
    page = (out / "first" / "anna" / "report.html").read_text()
    section = page[page.index('id="preparation"') : page.index('id="browser"')]
    assert "the reference is FLAIR" in section
    assert "anna_t2.nii.gz" in section
    shown = [base64.b64decode(picture) for picture in re.findall(r'class="planes"[^>]*base64,([\w+/=]+)"', section)]
    assert shown == [(out / "prepared" / "anna" / f"{name}.png").read_bytes() for name in GRIDS]
    assert str(out) not in page


def test_a_second_run_reuses_the_preparation(scan, done):
    out, _ = done
    folder = out / "prepared" / "anna"
    before = {file: (folder / file).stat().st_mtime_ns for file in STAGES}
    result = segment(scan, out / "second", "--preparations", out / "prepared")
    assert {file: (folder / file).stat().st_mtime_ns for file in STAGES} == before
    assert sum(", reused," in line for line in result.stderr.splitlines()) == 3
    for file in ("mask.nii.gz", "mask_on_t2.nii.gz"):
        assert (out / "second" / "anna" / file).read_bytes() == (out / "first" / "anna" / file).read_bytes()
    assert "(reused)" in (out / "second" / "anna" / "report.html").read_text()


def lower_half(head):
    slices = head.voxels.shape[2] // 2
    part = head.voxels[:, :, :slices]
    return Head(part, head.brain[:, :, :slices], Grid.from_affine(part.shape, head.grid.affine))


def bottle(head):
    inside = toys.ball(head.grid.affine, head.grid.shape, head.centre_mm, 60)
    voxels = np.where(inside, 500 + np.random.default_rng(0).normal(0, 10, inside.shape), 0)
    return Head(voxels.astype(np.float32), inside, head.grid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lower_half, "the brain is cut off by the edge"),
        (bottle, "too uniform for a brain"),
        (None, "a brain of 0 ml was found"),  # by the user's skull-stripping command
    ],
)
def test_series_that_show_no_whole_brain_leave_no_result(change, message, heads, tmp_path):
    changed = {"t2": change(heads["t2"])} if change else {}
    grid, empty = heads["flair"].grid, tmp_path / "empty.nii.gz"
    write_nifti(empty, np.zeros(grid.shape, np.uint8), grid)
    strip = () if change else ("--skull-strip", f"sh -c 'cp {empty} {{output}} # {{input}}'", "--raw", "always")
    result = segment(write(tmp_path, heads | changed), tmp_path / "out", *strip, code=3)
    assert message in result.output
    (picture,) = (tmp_path / "out").rglob("failed_*.png")
    assert f"(picture: {picture})" in result.output
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name in ("summary.json", "mask.nii.gz")]
