"""anofpdm score: pairs of files, orientations, labels, bad input, tables and the page."""

import csv
import json
import os
import struct
import subprocess
import sys
import warnings
from typing import ClassVar

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.errors import CohortError, EvaluationError, ScanWarning
from anofpdm.scoring import score_pairs as scoring
from anofpdm.scoring.masks import read_pair
from anofpdm.scoring.metrics.scan import score_masks
from anofpdm.scoring.pairs import find_image, find_pairs
from anofpdm.scoring.score_pairs import score_pair, score_pairs
from anofpdm.scoring.summary import summarise
from tests import toys

SHAPE, SPACING = (22, 26, 18), (1.0, 0.8, 2.5)
AFFINE = toys.affine_of("RAS", SPACING, shape=SHAPE)
MOVED = nib.affines.from_matvec(AFFINE[:3, :3], AFFINE[:3, 3] + [15, 0, 0])


def lesion(centre=(0, 0, 0), radius=6.0, affine=AFFINE):
    return toys.ball(affine, SHAPE, centre, radius).astype(np.uint8)


def save(path, voxels, affine=AFFINE):
    return toys.save(path, voxels, affine)


def run(*words, code=0):
    done = CliRunner().invoke(app, ["score", *map(str, words)], env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture
def folders(tmp_path):
    """Three pairs; predictions are shifted by 1, 2 and 3 mm."""
    for number in (1, 2, 3):
        save(tmp_path / "truth" / f"p{number}.nii.gz", lesion())
        save(tmp_path / "predicted" / f"p{number}.nii.gz", lesion((number, 0, 0)))
    return tmp_path / "predicted", tmp_path / "truth"


class TestFiles:
    @pytest.mark.parametrize("codes", toys.ORIENTATIONS)
    def test_any_orientation(self, tmp_path, codes):
        """The same mask in millimetres, its axes in any order and direction."""
        truth = save(tmp_path / "truth.nii.gz", lesion())
        plain = nib.Nifti1Image(lesion((2, 1, 1)), AFFINE)
        start, target = nib.io_orientation(AFFINE), nib.orientations.axcodes2ornt(codes)
        turned = plain.as_reoriented(nib.orientations.ornt_transform(start, target))
        predicted = save(tmp_path / "predicted.nii.gz", np.asarray(turned.dataobj), turned.affine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScanWarning)
            mask, _, _ = read_pair(predicted, truth, (None, None))
        assert np.array_equal(mask, lesion((2, 1, 1)))

    def test_no_orientation_in_the_header_is_reported(self, tmp_path):
        paths = [toys.save(tmp_path / name, lesion(), np.eye(4), codes=(0, 0)) for name in ("a.nii", "b.nii")]
        assert "warning: b: " in run(*paths)

    def test_labels_that_the_header_scales(self, tmp_path):
        """255 times a float32 of 1 / 255 is not exactly 1."""
        predicted = save(tmp_path / "a.nii", 255 * lesion())
        raw = bytearray(predicted.read_bytes())
        struct.pack_into("<ff", raw, 112, 1 / 255, 0)  # scl_slope and scl_inter
        predicted.write_bytes(raw)
        truth = save(tmp_path / "b.nii", lesion())
        assert nib.Nifti1Image.from_filename(predicted).get_fdata().max() == pytest.approx(1)
        assert score_pair(find_pairs(predicted, truth).pairs[0]).scores.dice == 1


class TestGrids:
    """Masks of one space on different grids; the expected voxels are SimpleITK's."""

    @pytest.mark.parametrize(
        ("codes", "spacing", "shape", "tilt"),
        [
            ("RAS", SPACING, (23, 26, 18), (0, 0, 0)),
            ("RAS", (0.7, 0.65, 0.93), (35, 38, 52), (0, 0, 0)),  # finer
            ("RAS", (2.1, 1.7, 3.1), (11, 13, 15), (0, 0, 0)),  # coarser
            ("RAS", SPACING, (17, 20, 11), (0, 0, 0)),  # cut
            ("ILP", (0.9, 0.77, 0.7), (52, 31, 33), (0, 0, 0)),
            ("LPS", SPACING, SHAPE, (0, 0, 9)),
        ],
    )
    def test_resampled_as_simpleitk_does(self, tmp_path, codes, spacing, shape, tilt):
        affine = toys.affine_of(codes, spacing, tilt, shape)
        affine[:3, 3] += 1.3, -0.3, 0.4  # voxels halfway between two others would have two nearest ones
        predicted = save(tmp_path / "predicted.nii.gz", toys.ball(affine, shape, (3, 2, 2), 6).astype(np.uint8), affine)
        truth = save(tmp_path / "truth.nii.gz", lesion())
        with pytest.warns(ScanWarning, match="nearest"):
            mask, _, _ = read_pair(predicted, truth, (None, None))
        assert np.array_equal(mask, nearest_by_simpleitk(predicted, truth))
        assert mask.any()

    def test_resampling_is_reported(self, tmp_path):
        affine = AFFINE + np.array([[0, 0, 0, 1.3]] * 3 + [[0] * 4])
        predicted, truth = save(tmp_path / "a.nii.gz", lesion(), affine), save(tmp_path / "b.nii.gz", lesion())
        text = run(predicted, truth, "--out", tmp_path / "out")
        (note,) = json.loads((tmp_path / "out" / "scores.json").read_text())["scans"][0]["warnings"]
        assert f"{predicted}: resampled (nearest neighbour)" in note
        assert f": {note}" in text
        assert "resampled (nearest neighbour)" in (tmp_path / "out" / "index.html").read_text()


def nearest_by_simpleitk(path, reference):
    moving, target = (SimpleITK.ReadImage(str(file)) for file in (path, reference))
    resampled = SimpleITK.Resample(moving, target, SimpleITK.Transform(), SimpleITK.sitkNearestNeighbor, 0)
    return SimpleITK.GetArrayFromImage(resampled).T > 0


class TestLabels:
    @pytest.fixture
    def files(self, tmp_path):
        truth = lesion()
        truth[:11] *= 4
        return save(tmp_path / "predicted.nii.gz", lesion()), save(tmp_path / "truth.nii.gz", truth)

    def test_other_labels_are_refused(self, files):
        text = run(*files, code=3)
        assert f"{files[1]}: has the values 0, 1, 4" in text
        assert "--label all" in text

    def test_all_or_some(self, files):
        assert "DICE                                    1.000" in run(*files, "--label", "all")
        assert "DICE                                    1.000" in run(*files, "--label", "1,4")
        part = run(*files, "--label", "4", "--predicted-label", "1")
        left = lesion()
        left[11:] = 0
        assert f"{score_masks(lesion() > 0, left > 0, SPACING).dice:.3f}" in part

    @pytest.mark.parametrize("labels", ["none", "0", "1,x", "-1", ""])
    def test_mistakes(self, files, labels):
        run(*files, f"--label={labels}", code=2)


class TestPairing:
    def pairs(self, *paths):
        pairing = find_pairs(*paths)
        assert not pairing.failed
        return {(pair.name, pair.patient): (pair.predicted.name, pair.truth.name) for pair in pairing.pairs}

    def test_our_results_and_brats(self, tmp_path):
        """segment writes SCAN/mask.nii.gz beside a map; BraTS has images beside the mask."""
        scan = "BraTS-GLI-00007-001"
        save(tmp_path / "out" / scan / "mask.nii.gz", lesion())
        save(tmp_path / "out" / scan / "anomaly_map.nii.gz", lesion())
        for role in ("seg", "t2f", "t1n"):
            save(tmp_path / "brats" / scan / f"{scan}-{role}.nii.gz", lesion())
        pairs = self.pairs(tmp_path / "out", tmp_path / "brats")
        assert pairs == {(scan, "BraTS-GLI-00007"): ("mask.nii.gz", f"{scan}-seg.nii.gz")}

    def test_bids(self, tmp_path):
        for session in (1, 2):
            name = f"sub-01_ses-{session}"
            ours, theirs = f"{name}_label-lesion_desc-anofpdm_mask.nii.gz", f"{name}_space-MNI_label-L_mask.nii.gz"
            save(tmp_path / "out" / "sub-01" / ours, lesion())
            save(tmp_path / "raw" / theirs, lesion())
            save(tmp_path / "raw" / f"{name}_T1w.nii.gz", lesion())
        pairs = self.pairs(tmp_path / "out", tmp_path / "raw")
        assert list(pairs) == [("sub-01_ses-1", "sub-01"), ("sub-01_ses-2", "sub-01")]
        for number, pair in enumerate(find_pairs(tmp_path / "out", tmp_path / "raw").pairs, start=1):
            assert find_image(tmp_path / "raw", pair).name == f"sub-01_ses-{number}_T1w.nii.gz"

    def test_equal_names_decide_where_a_scan_has_several_files(self, tmp_path):
        for number in (1, 2):
            for folder in ("a", "b"):
                save(tmp_path / folder / f"sub-01_run-{number}_mask.nii.gz", lesion())
        assert len(self.pairs(tmp_path / "a", tmp_path / "b")) == 2
        save(tmp_path / "b" / "sub-02_run-1_mask.nii.gz", lesion())
        save(tmp_path / "b" / "sub-02_run-2_mask.nii.gz", lesion())
        save(tmp_path / "a" / "sub-02_mask.nii.gz", lesion())
        text = run(tmp_path / "a", tmp_path / "b", code=3)
        assert "failed: sub-02: several files" in text
        assert "--pairs" in text

    def test_a_table(self, folders, tmp_path):
        table = tmp_path / "pairs.csv"
        table.write_text("predicted,truth,patient\np1.nii.gz,p3.nii.gz,q\np9.nii.gz,p2.nii.gz,q\n")
        text = run(*folders, "--pairs", table, code=3)
        assert "p9.nii.gz: no such file" in text
        (pair,) = find_pairs(folders[0], folders[1], table).pairs
        assert (pair.predicted.name, pair.truth.name, pair.patient) == ("p1.nii.gz", "p3.nii.gz", "q")
        table.write_text("predicted,other\na,b\n")
        with pytest.raises(CohortError, match="no column 'truth'"):
            find_pairs(folders[0], folders[1], table)

    def test_paths_that_cannot_be_paired(self, folders):
        predicted, truth = folders
        file = predicted / "p1.nii.gz"
        for ours, theirs, table, message in (
            (predicted, truth / "none", None, "no such file or folder"),
            (predicted, file, None, "a file and a folder"),
            (file, file, predicted / "x.csv", "for two folders"),
        ):
            with pytest.raises(EvaluationError, match=message):
                find_pairs(ours, theirs, table)


class TestBadInput:
    """The file is named, the other scans are scored, the exit code is 3."""

    SPOIL: ClassVar = {
        "missing": lambda path: path.unlink(),
        "elsewhere": lambda path: save(path, lesion(), MOVED),
        "unoriented": lambda path: toys.save(path, lesion(), AFFINE, codes=(0, 0)),
        "labels": lambda path: save(path, 3 * lesion()),
        "map": lambda path: save(path, lesion() * np.float32(0.3)),
        "truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]),
        "pipe": lambda path: (path.unlink(), os.mkfifo(path)),  # named, and never opened, which would block
    }

    @pytest.mark.parametrize(
        ("side", "kind", "message"),
        [
            ("predicted", "missing", "no mask of this scan in"),
            ("truth", "elsewhere", "fields of view overlap by 33% of the smaller"),
            ("predicted", "unoriented", "no orientation in its header"),
            ("predicted", "labels", "has the values 0, 3"),
            ("truth", "map", "not a mask but a map"),
            ("truth", "truncated", "truncated"),
            ("predicted", "pipe", "a pipe or a device, not a file"),
        ],
    )
    def test_one_of_three(self, folders, tmp_path, side, kind, message):
        paths = [folder / "p2.nii.gz" for folder in folders]
        path, other = paths if side == "predicted" else paths[::-1]
        self.SPOIL[kind](path)
        text = run(*folders, "--out", tmp_path / "out", code=3)
        (line,) = [line for line in text.splitlines() if line.startswith("failed: ")]
        assert str(other if kind == "missing" else path) in line
        assert message in line
        payload = json.loads((tmp_path / "out" / "scores.json").read_text())
        assert [scan["scan"] for scan in payload["scans"]] == ["p1", "p3"]
        assert len(payload["failed"]) == 1
        assert message.split(" (")[0] in (tmp_path / "out" / "scores.md").read_text()


def test_torch_is_not_needed():
    code = "import sys; sys.modules['torch'] = None; import anofpdm.scoring.scores_page, anofpdm.cli.score"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestResults:
    def test_tables(self, folders, tmp_path):
        save(folders[0] / "p4.nii.gz", 0 * lesion())
        save(folders[1] / "p4.nii.gz", lesion())
        assert "All masks are empty: check the files and --label" in run(*folders, "--label", "7")
        run(*folders, "--out", tmp_path / "out")
        rows = list(csv.DictReader((tmp_path / "out" / "scores.csv").open()))
        assert [row["scan"] for row in rows] == ["p1", "p2", "p3", "p4"]
        expected = [score_masks(lesion((n, 0, 0)) > 0, lesion() > 0, SPACING).dice for n in (1, 2, 3)] + [0]
        assert [float(row["dice"]) for row in rows] == pytest.approx(expected, rel=1e-5)
        assert rows[3]["surface_distance_mm"] == rows[3]["precision"] == ""
        summary = json.loads((tmp_path / "out" / "scores.json").read_text())["summary"]["scores"]
        assert summary["dice"]["mean"] == pytest.approx(np.mean(expected))
        assert summary["dice"]["median"] == pytest.approx(np.median(expected))
        assert summary["surface_distance_mm"]["scans"] == 3
        assert summary["hd95_mm"]["mean"] > 374 / 4
        lesions = list(csv.DictReader((tmp_path / "out" / "lesions.csv").open()))
        assert [row["kind"] for row in lesions] == ["found", "found", "found", "missed"]
        assert [float(row["centre_i"]) for row in lesions] == pytest.approx([10.5] * 4)

    def test_by_volume(self, folders):
        save(folders[1] / "p3.nii.gz", 0 * lesion())
        save(folders[1] / "p2.nii.gz", lesion(radius=8.0))
        report = score_pairs(find_pairs(*folders), (None, None))
        summary = summarise(report.scans)
        assert [(group.name, group.scans) for group in summary.by_volume] == [
            ("no lesion", 1), ("0 to 1 ml", 1), ("1 to 5 ml", 1),
        ]  # fmt: skip
        assert [(group.name, group.lesions, group.detected) for group in summary.by_lesion] == [("0.5 to 5 ml", 2, 2)]
        assert summary.false_components == 1

    def test_several_processes_give_the_same(self, folders, monkeypatch):
        pairing = find_pairs(*folders)
        alone = score_pairs(pairing, (None, None))
        monkeypatch.setattr(scoring, "PAIRS_PER_WORKER", 1)
        assert score_pairs(pairing, (None, None), workers=2) == alone

    def test_noise_is_refused(self, tmp_path):
        noise = np.zeros((2, 60, 60, 60), dtype=np.uint8)
        noise[:, ::2, ::2, ::2] = np.random.default_rng(0).random((2, 30, 30, 30)) < 0.2
        paths = [save(tmp_path / f"{name}.nii", mask, np.eye(4)) for name, mask in zip("ab", noise, strict=True)]
        assert f"{paths[0]}: " in run(*paths, code=3)
