import copy
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from anofpdm.cohorts import contact_sheet, open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.store import check_slices
from anofpdm.errors import AnoFPDMError, CohortError, ScanError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.scans import read_scan, scan_slices
from anofpdm.scoring.truth import Truth
from anofpdm.util import files
from tests import toys

SIZE = 24


def prepared(source, out, workers=1, kind="brats21", plan_options=(), **options):
    plan = plan_cohort(kind, source, size=SIZE, **dict(plan_options))
    return prepare(plan, out, workers, **options)


def contents(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return toys.brats_cohort(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    prepared(source, out)
    return out


@pytest.fixture
def copied(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "copied")
    return tmp_path / "copied"


class TestContent:
    def test_slices_are_those_of_the_scan(self, source, undisturbed):
        cohort = open_cohort(undisturbed)
        scan = read_scan({m: source / "p1" / f"p1_{m}.nii.gz" for m in ("flair", "t2")})
        expected = scan_slices(scan, SIZE)
        rows = np.flatnonzero(cohort.scans == "p1")
        np.testing.assert_array_equal(cohort.indices[rows], expected.indices)
        np.testing.assert_allclose(cohort.pixels(rows), expected.pixels, atol=1e-3)
        assert cohort.modalities == ("flair", "t2")

    def test_labels_come_from_the_masks(self, undisturbed):
        cohort = open_cohort(undisturbed)
        drawn = Truth(cohort).masks(np.arange(len(cohort))).any(axis=(1, 2))
        np.testing.assert_array_equal(cohort.labels, np.where(drawn, UNHEALTHY, HEALTHY))
        by_scan = {scan: set(cohort.labels[cohort.scans == scan]) for scan in np.unique(cohort.scans)}
        assert by_scan == {"p0": {0}, "p1": {0, 1}, "p2": {0}, "p3": {0, 1}}

    def test_every_patient_is_in_one_split(self, undisturbed):
        cohort = open_cohort(undisturbed)
        assert sorted(
            split for split in ("train", "val", "test") for _ in np.unique(cohort.patients[cohort.rows(split)])
        ) == [
            "test",
            "train",
            "train",
            "val",
        ]
        assert len(np.unique(np.concatenate([cohort.rows(split) for split in ("train", "val", "test")]))) == len(cohort)

    def test_millimetres_are_kept(self, undisturbed):
        cohort = open_cohort(undisturbed)
        assert (cohort.pixel_mm == 4).all()
        assert (cohort.spacing_mm == 4).all()

    def test_hashes_depend_on_preparation_and_contents(self, source, undisturbed, tmp_path):
        manifest = json.loads((undisturbed / "manifest.json").read_text())
        prepare(plan_cohort("brats21", source, size=32), tmp_path)
        other = json.loads((tmp_path / "manifest.json").read_text())
        assert manifest["preparation_sha256"] != other["preparation_sha256"]
        assert manifest["slices_sha256"] != other["slices_sha256"]

    def test_masks_do_not_affect_the_preparation_hash(self, undisturbed, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", masks=False)
        prepared(source, tmp_path / "out")
        hashes = [open_cohort(out).manifest["preparation_sha256"] for out in (undisturbed, tmp_path / "out")]
        assert hashes[0] == hashes[1]

    def test_scans_without_masks_are_unlabelled(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        (source / "p3" / "p3_seg.nii.gz").unlink()
        prepared(source, tmp_path / "out")
        cohort = open_cohort(tmp_path / "out")
        truth, unknown = Truth(cohort), np.flatnonzero(cohort.scans == "p3")
        assert not truth.available[unknown].any()
        assert truth.masks(np.flatnonzero(truth.available)).any()
        with pytest.raises(CohortError, match="without a lesion mask"):
            truth.masks(unknown)

    def test_workers_do_not_change_results(self, source, undisturbed, tmp_path):
        prepared(source, tmp_path, workers=2)
        assert contents(tmp_path) == contents(undisturbed)

    @pytest.mark.parametrize("rows", [1, 6])  # of slices: in these tests, and otherwise
    def test_the_contact_sheet_has_red_outlines(self, undisturbed, tmp_path, monkeypatch, rows):
        assert contact_sheet.MAX_ROWS == 1
        path = undisturbed / "contact_sheet.png"
        if rows > 1:
            path = tmp_path / "sheet.png"
            monkeypatch.setattr(contact_sheet, "MAX_ROWS", rows)
            contact_sheet.draw_contact_sheet(open_cohort(undisturbed), path)
        sheet = np.array(Image.open(path).convert("RGB")).astype(int)
        assert min(sheet.shape[:2]) > 150 * rows
        assert (sheet[..., 0] - sheet[..., 2] > 100).sum() > 100

    def test_without_masks_from_a_table(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 3, masks=False)
        (source / "labels.csv").write_text("subject,slice,label\np0,,healthy\np1,,unhealthy\np1,9,unhealthy\n")
        report = prepared(source, tmp_path / "out", kind="nifti")
        cohort = open_cohort(tmp_path / "out")
        assert not report.failed
        assert set(cohort.labels[cohort.scans == "p0"]) == {HEALTHY}
        ill = cohort.scans == "p1"
        np.testing.assert_array_equal(cohort.labels[ill], np.where(cohort.indices[ill] == 9, UNHEALTHY, NULL))
        np.testing.assert_array_equal(cohort.suspected, ill & (cohort.indices != 9))
        assert set(cohort.labels[cohort.scans == "p2"]) == {NULL}
        assert not (tmp_path / "out" / "truth").exists()
        assert not report.warnings
        with pytest.raises(CohortError, match="no lesion masks"):
            Truth(cohort)

    def test_labels_of_whole_scans(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 3, masks=False)
        (source / "labels.csv").write_text("subject,slice,label\np0,,healthy\np1,,unhealthy\n")
        prepared(source, tmp_path / "out", kind="nifti")
        cohort = open_cohort(tmp_path / "out")
        np.testing.assert_array_equal(cohort.suspected, cohort.scans == "p1")
        np.testing.assert_array_equal(cohort.labels == HEALTHY, cohort.scans == "p0")

    ISOLATED = "labelled unlike both adjacent slices, check these labels"

    @pytest.fixture
    def with_isolated(self, tmp_path):
        """Slice 7 of p0 and slice 8 of p1 are labelled unlike both neighbours; of p2, slice 10 has no label."""
        source = toys.brats_cohort(tmp_path / "scans", 3, masks=False, slice_mm=3.0)
        rows = [f"p1,{index},{'healthy' if index in (8, 12, 13) else 'unhealthy'}" for index in range(6, 14)]
        rows += ["p0,7,unhealthy", "p2,8,unhealthy", "p2,9,healthy", "p2,11,unhealthy"]
        (source / "labels.csv").write_text("\n".join(["subject,slice,label", "p0,,healthy", *rows]))
        (tmp_path / "split.csv").write_text("patient,split\np0,train\np1,val\np2,train\n")
        return source

    def test_isolated_labels_are_left_out_and_reported(self, with_isolated, tmp_path):
        options = {"split": tmp_path / "split.csv"}
        report = prepared(with_isolated, tmp_path / "out", kind="nifti", plan_options=options)
        assert report.warnings == {"p0": [f"{self.ISOLATED} (left out): 7"], "p1": [f"{self.ISOLATED} (left out): 8"]}
        cohort = open_cohort(tmp_path / "out")
        assert cohort.notes[1] == f"note: p1: {self.ISOLATED} (left out): 8"
        plan = plan_cohort("nifti", with_isolated, size=SIZE, **options)
        prepare(replace(plan, keep_isolated=True), tmp_path / "all")
        kept = open_cohort(tmp_path / "all")
        left_out = ((kept.scans == "p0") & (kept.indices == 7)) | ((kept.scans == "p1") & (kept.indices == 8))
        assert set(kept.labels[left_out]) == {HEALTHY, UNHEALTHY}
        np.testing.assert_array_equal(cohort.labels, np.where(left_out, NULL, kept.labels))

    def test_isolated_labels_of_the_test_split_are_kept(self, with_isolated, tmp_path):
        (tmp_path / "split.csv").write_text("patient,split\np0,test\np1,val\np2,train\n")
        report = prepared(with_isolated, tmp_path / "out", kind="nifti", plan_options={"split": tmp_path / "split.csv"})
        assert report.warnings["p0"] == [f"{self.ISOLATED} (kept): 7"]
        cohort = open_cohort(tmp_path / "out")
        assert cohort.labels[(cohort.scans == "p0") & (cohort.indices == 7)].tolist() == [UNHEALTHY]

    @pytest.mark.parametrize(("spacing_mm", "what", "label"), [(3.0004, "left out", NULL), (3.1, "kept", HEALTHY)])
    def test_isolated_labels_of_thick_slices_are_kept(self, spacing_mm, what, label, with_isolated, tmp_path):
        for seed, path in enumerate(with_isolated.rglob("*.nii.gz")):
            affine = toys.affine_of(spacing=(4, 4, spacing_mm), shape=(24, 24, 20))
            toys.save(path, toys.head(seed=seed, affine=affine), affine)
        report = prepared(with_isolated, tmp_path / "out", kind="nifti", plan_options={"split": tmp_path / "split.csv"})
        assert report.warnings["p1"][-1] == f"{self.ISOLATED} ({what}): 8"
        cohort = open_cohort(tmp_path / "out")
        assert cohort.labels[(cohort.scans == "p1") & (cohort.indices == 8)].tolist() == [label]

    def test_isolated_labels_are_kept_where_the_distance_is_unknown(self, with_isolated, tmp_path):
        plan = plan_cohort("nifti", with_isolated, size=SIZE, split=tmp_path / "split.csv")
        report = prepare(replace(plan, unknown_spacing=True), tmp_path / "out")
        assert report.warnings["p1"] == [f"{self.ISOLATED} (kept): 8"]

    def test_labels_are_filled_between_equal_ones_that_are_near(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 3, masks=False)  # slices of 4 mm
        given = {5: "healthy", 8: "healthy", 10: "unhealthy", 12: "unhealthy", 16: "unhealthy"}
        rows = [f"{name},{index},{label}" for name in ("p1", "p2") for index, label in given.items()]
        (source / "labels.csv").write_text("\n".join(["subject,slice,label", "p0,,healthy", *rows]))
        (tmp_path / "split.csv").write_text("patient,split\np0,train\np1,train\np2,test\n")
        plan = plan_cohort("nifti", source, size=SIZE, split=tmp_path / "split.csv")
        prepare(plan, tmp_path / "given")
        prepare(replace(plan, fill_labels_mm=12.0), tmp_path / "filled")
        before, after = (open_cohort(tmp_path / name) for name in ("given", "filled"))
        changed = before.labels != after.labels
        assert set(before.labels[changed]) == {NULL}
        found = list(zip(after.scans[changed], after.indices[changed].tolist(), after.labels[changed], strict=True))
        assert found == [("p1", 6, HEALTHY), ("p1", 7, HEALTHY), ("p1", 11, UNHEALTHY)]
        assert after.manifest["fill_labels_mm"] == 12.0

    def test_a_labelled_slice_without_brain_is_reported(self, source, tmp_path):
        (tmp_path / "labels.csv").write_text("subject,slice,label\np1,0,unhealthy\np1,9,unhealthy\n")
        report = prepared(source, tmp_path / "out", plan_options={"labels": tmp_path / "labels.csv"})
        assert report.warnings["p1"] == ["labelled slices with too little brain were skipped: 0"]

    def test_given_labels_take_precedence_over_masks(self, source, tmp_path):
        (tmp_path / "labels.csv").write_text("subject,slice,label\np1,,healthy\n")
        prepared(source, tmp_path / "out", plan_options={"labels": tmp_path / "labels.csv"})
        cohort = open_cohort(tmp_path / "out")
        assert set(cohort.labels[cohort.scans == "p1"]) == {HEALTHY}
        assert Truth(cohort).masks(np.flatnonzero(cohort.scans == "p1")).any()

    def test_a_written_split_file_can_be_reused(self, source, undisturbed, tmp_path):
        prepared(source, tmp_path, plan_options={"split": undisturbed / "split.csv", "seed": 99})
        assert (tmp_path / "split.csv").read_bytes() == (undisturbed / "split.csv").read_bytes()

    def test_warnings_of_a_scan_are_stored(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 1, masks=False)
        for seed, path in enumerate(source.rglob("*.nii.gz")):
            toys.save(path, toys.head(seed=seed), codes=(0, 0))
        report = prepared(source, tmp_path / "out")
        assert "no orientation" in report.warnings["p0"][0]


class TestFailures:
    @pytest.fixture
    def broken(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        path = source / "p1" / "p1_t2.nii.gz"
        path.write_bytes(path.read_bytes()[:-500])
        (source / "p2" / "p2_flair.nii.gz").unlink()
        return source

    def test_failed_scans_are_reported_and_others_kept(self, broken, tmp_path):
        report = prepared(broken, tmp_path / "out")
        assert set(report.failed) == {"p1", "p2"}
        assert "p1_t2.nii.gz: truncated" in report.failed["p1"]
        assert "no flair image (found: t2)" in report.failed["p2"]
        assert set(open_cohort(tmp_path / "out").scans) == {"p0", "p3"}
        assert set(json.loads((tmp_path / "out" / "manifest.json").read_text())["failed"]) == {"p1", "p2"}

    def test_fixed_scans_are_added_by_the_next_run(self, broken, tmp_path):
        prepared(broken, tmp_path / "out")
        toys.save(broken / "p1" / "p1_t2.nii.gz", toys.head(seed=11))
        report = prepared(broken, tmp_path / "out")
        assert set(report.failed) == {"p2"}
        cohort = open_cohort(tmp_path / "out")
        assert set(cohort.scans) == {"p0", "p1", "p3"}
        lesions = Truth(cohort).masks(np.arange(len(cohort))).any(axis=(1, 2))
        np.testing.assert_array_equal(lesions, cohort.labels == UNHEALTHY)

    def test_strict_stops_at_the_first(self, broken, tmp_path):
        with pytest.raises(ScanError, match="truncated"):
            prepared(broken, tmp_path / "out", strict=True)
        with pytest.raises(CohortError, match="incomplete cohort"):
            open_cohort(tmp_path / "out")

    def test_a_label_out_of_range_fails_that_scan(self, source, tmp_path):
        (tmp_path / "labels.csv").write_text("subject,slice,label\np1,20,1\np0,,0\n")
        report = prepared(source, tmp_path / "out", plan_options={"labels": tmp_path / "labels.csv"})
        assert "has slices 0 to 19" in report.failed["p1"]

    def test_a_mask_on_another_grid(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        toys.save(source / "p3" / "p3_seg.nii.gz", np.zeros((24, 24, 21), np.uint8))
        report = prepared(source, tmp_path / "out")
        assert "p3_seg.nii.gz is not on the grid of" in report.failed["p3"]

    def test_no_valid_scan(self, broken, tmp_path):
        for name in ("p0", "p3"):
            (broken / name / f"{name}_t2.nii.gz").write_bytes(b"")
        with pytest.raises(CohortError, match=r"no scan could be prepared; .*p0_t2.nii.gz: the file is empty"):
            prepared(broken, tmp_path / "out")


def test_names_that_a_spreadsheet_would_run_are_read_back(tmp_path):
    """In tables they are escaped; labels and splits can be given with names as written there, or as they are."""
    names = ["=a", "@b", "-c"]
    for name in names:
        toys.save(tmp_path / "scans" / f"{name}_flair.nii.gz", toys.head())
    labels, split = tmp_path / "labels.csv", tmp_path / "split.csv"
    labels.write_text("subject,slice,label\n=a,,0\n'@b,,1\n-c,,0\n")
    split.write_text("patient,split\n'=a,train\n@b,val\n-c,train\n")
    options = {"labels": labels, "split": split}
    prepared(tmp_path / "scans", tmp_path / "out", kind="nifti", plan_options=options)
    assert "\n'=a,'=a,16," in (tmp_path / "out" / "scans.csv").read_text()
    cohort = open_cohort(tmp_path / "out")
    assert set(cohort.scans) == set(names)
    assert {*cohort.scans[cohort.rows("val")]} == {"@b"}


class TestResume:
    def test_a_crash_at_any_write_changes_nothing(self, tmp_path, monkeypatch):
        """The first run is stopped at every flush in turn."""
        source = toys.brats_cohort(tmp_path / "scans", 2)
        prepared(source, tmp_path / "undisturbed")
        expected = contents(tmp_path / "undisturbed")
        for survived in range(100):
            out = tmp_path / str(survived)
            if not self._dies_after(survived, source, out, monkeypatch):
                assert survived > 6  # three flushes for each of two scans, at least
                break
            report = prepared(source, out)
            assert report.n_resumed <= survived
            assert contents(out) == expected, f"after a crash at flush {survived}"
        else:
            pytest.fail("it never came to an end")

    @staticmethod
    def _dies_after(survived, source, out, monkeypatch, **options) -> bool:
        calls = iter(range(survived))

        def fsync(_number):
            if next(calls, None) is None:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            try:
                prepared(source, out, **options)
            except KeyboardInterrupt:
                return True
        return False

    @pytest.mark.parametrize("name", ["slices.npy", "truth/masks.npy", "journal.jsonl"])
    def test_partial_writes_are_removed(self, source, undisturbed, tmp_path, name):
        """What a power cut leaves: data without its journal line, or half a line."""
        whole = contents(undisturbed)
        for file, data in whole.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_bytes(data)
        (tmp_path / "manifest.json").unlink()
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"scan": "p9", "pat')
        prepared(source, tmp_path)
        assert contents(tmp_path) == whole

    def test_resuming_after_a_disk_too_full_for_a_header(self, source, undisturbed, tmp_path):
        (tmp_path / "slices.npy").write_bytes((undisturbed / "slices.npy").read_bytes()[:50])
        (tmp_path / "journal.jsonl").write_bytes(b'{"half a li')
        prepared(source, tmp_path)
        assert contents(tmp_path) == contents(undisturbed)

    def test_kill_9_at_random_moments(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 12, (48, 48, 40))
        command = [sys.executable, "-m", "anofpdm", "prepare", "brats21", str(source), "--size", "48", "--workers", "2"]
        calm, hurt = tmp_path / "calm", tmp_path / "hurt"
        prepare(plan_cohort("brats21", source, size=48), calm)
        chance, array = random.Random(0), hurt / "slices.npy"
        for _ in range(3):
            before = array.stat().st_size if array.exists() else 0
            run = subprocess.Popen(
                [*command, str(hurt)], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while run.poll() is None and (not array.exists() or array.stat().st_size <= before):
                time.sleep(0.001)
            time.sleep(chance.choice((0, 0.02)))  # before the scan is in the journal, or later
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            try:
                open_cohort(hurt)
            except CohortError as problem:
                assert "prepare" in str(problem)  # names the command; a partial cohort is never opened
        report = prepare(plan_cohort("brats21", source, size=48), hurt)
        assert report.n_resumed > 0
        assert contents(hurt) == contents(calm)

    def test_a_complete_cohort_is_not_rewritten(self, source, undisturbed):
        """Training may be reading it."""
        before = contents(undisturbed)
        report = prepared(source, undisturbed, on_progress=lambda *_: open_cohort(undisturbed))
        assert report.n_resumed == 4
        assert contents(undisturbed) == before

    def test_a_crash_while_labels_are_written_is_detected(self, source, undisturbed, tmp_path, monkeypatch):
        """After a crash at any write, the cohort is the old one, the new one, or cannot be opened."""
        (tmp_path / "labels.csv").write_text("subject,slice,label\np1,,healthy\n")
        options = {"plan_options": {"labels": tmp_path / "labels.csv"}}
        for survived in range(8):
            out = tmp_path / str(survived)
            shutil.copytree(undisturbed, out)
            before = open_cohort(out).labels
            self._dies_after(survived, source, out, monkeypatch, **options)
            try:
                after = open_cohort(out).labels
            except CohortError:
                after = before
            prepared(source, out, **options)
            new = open_cohort(out).labels
            assert not np.array_equal(new, before)
            assert np.array_equal(after, before) or np.array_equal(after, new)

    def test_added_scans_do_not_change_splits(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 8)
        prepared(source, tmp_path / "out")
        before = dict(line.split(",") for line in (tmp_path / "out" / "split.csv").read_text().splitlines())
        toys.brats_cohort(tmp_path / "more", 20)
        for number in range(8, 20):
            (tmp_path / "more" / f"p{number}").rename(source / f"p{number}")
        prepared(source, tmp_path / "out")
        after = dict(line.split(",") for line in (tmp_path / "out" / "split.csv").read_text().splitlines())
        assert len(after) == 21
        assert {patient: after[patient] for patient in before} == before

    def test_another_seed_or_split_is_refused(self, source, undisturbed, tmp_path):
        with pytest.raises(CohortError, match=r"other settings \(split differ\)"):
            prepared(source, undisturbed, plan_options={"seed": 5})
        (tmp_path / "one.csv").write_text("patient,split\np0,train\np1,train\np2,val\np3,test\n")
        (tmp_path / "two.csv").write_text("patient,split\np0,test\np1,train\np2,val\np3,test\n")
        prepared(source, tmp_path / "out", plan_options={"split": tmp_path / "one.csv"})
        with pytest.raises(CohortError, match="puts p0 into test, but it was prepared for train"):
            prepared(source, tmp_path / "out", plan_options={"split": tmp_path / "two.csv"})

    def test_a_run_without_results_does_not_fix_the_settings(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 2)
        for path in source.rglob("*_t2.nii.gz"):
            path.write_bytes(b"")
        with pytest.raises(CohortError, match="no scan could be prepared"):
            prepared(source, tmp_path / "out")
        prepared(source, tmp_path / "out", plan_options={"modalities": ("flair",)})
        assert open_cohort(tmp_path / "out").modalities == ("flair",)

    def test_other_settings_are_refused(self, source, undisturbed):
        with pytest.raises(CohortError, match=r"other settings \(size differ\)"):
            prepare(plan_cohort("brats21", source, size=32), undisturbed)
        assert len(open_cohort(undisturbed)) > 0

    def test_overwrite_starts_from_scratch(self, source, copied):
        prepare(plan_cohort("brats21", source, size=32), copied, overwrite=True)
        assert open_cohort(copied).slices.shape[-1] == 32

    def test_a_changed_scan_is_refused(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 2)
        prepared(source, tmp_path / "out")
        toys.save(source / "p0" / "p0_t2.nii.gz", toys.head(seed=77))
        with pytest.raises(CohortError, match="p0 has changed"):
            prepared(source, tmp_path / "out")

    def test_a_folder_with_other_files_is_refused(self, source, tmp_path):
        (tmp_path / "thesis.docx").touch()
        with pytest.raises(CohortError, match=r"contains other files \(thesis\.docx\)"):
            prepared(source, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.docx"]

    def test_two_runs_on_one_folder(self, source, tmp_path):
        with files.folder_lock(tmp_path), pytest.raises(AnoFPDMError, match="another run"):
            prepared(source, tmp_path)


class TestOpening:
    def test_not_a_cohort(self, tmp_path):
        with pytest.raises(CohortError, match="not a prepared cohort"):
            open_cohort(tmp_path)

    @pytest.mark.parametrize("name", ["slices.npy", "slices.csv", "scans.csv", "split.csv", "manifest.json"])
    def test_a_damaged_file_is_detected(self, copied, name):
        whole = (copied / name).read_bytes()
        (copied / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CohortError, match="prepare"):
            open_cohort(copied)

    def test_a_flipped_bit_is_detected_when_the_scan_is_checked(self, copied):
        data = bytearray((copied / "slices.npy").read_bytes())
        data[-1] ^= 1
        (copied / "slices.npy").write_bytes(data)
        cohort = open_cohort(copied)
        check_slices(cohort, np.array([0]))
        with pytest.raises(CohortError, match="do not match their hash"):
            check_slices(cohort, np.array([0, len(cohort) - 1]))

    @pytest.mark.parametrize("content", ["[]", "null", '{"format": 1}', 100_000 * "["])
    def test_invalid_manifests(self, copied, content):
        (copied / "manifest.json").write_text(content)
        with pytest.raises(CohortError, match="damaged"):
            open_cohort(copied)

    @pytest.mark.parametrize("name", ["slices.csv", "scans.csv", "split.csv"])
    def test_an_edited_table_is_detected(self, copied, name):
        (copied / name).write_bytes((copied / name).read_bytes().replace(b"p1", b"p\xff"))
        with pytest.raises(CohortError, match="was changed after preparation"):
            open_cohort(copied)

    def test_a_path_as_string(self, undisturbed):
        assert len(open_cohort(str(undisturbed))) == len(open_cohort(undisturbed))

    def test_another_format(self, copied):
        path = copied / "manifest.json"
        path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
        with pytest.raises(CohortError, match="format 9"):
            open_cohort(copied)

    def test_pickled_as_a_path(self, undisturbed):
        cohort = open_cohort(undisturbed)
        assert len(pickle.dumps(cohort)) < 1000
        again = copy.copy(cohort)  # made by the same recipe that is sent
        assert again.slices is not cohort.slices
        np.testing.assert_array_equal(again.pixels([3]), cohort.pixels([3]))


def test_memory_does_not_grow_with_the_number_of_patients(tmp_path):
    peaks = []
    for patients in (3, 12):
        source = toys.brats_cohort(tmp_path / f"scans{patients}", patients, (64, 64, 48), masks=False)
        tracemalloc.start()
        prepare(plan_cohort("brats21", source, size=64), tmp_path / f"out{patients}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
