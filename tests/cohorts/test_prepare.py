import itertools
import json
import os
import shutil
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.store import check_slices
from anofpdm.errors import CohortError, ScanError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.scans import read_scan, scan_slices
from anofpdm.scoring.truth import Truth
from tests import toys

SIZE = 24


def prepared(source, out, workers=1, kind="brats21", plan_options=(), changes=(), **options):
    plan = plan_cohort(kind, source, **{"size": SIZE, **dict(plan_options)})
    return prepare(replace(plan, **dict(changes)), out, workers, **options)


def by_scan(cohort, values):
    return {scan: set(values[cohort.scans == scan].tolist()) for scan in np.unique(cohort.scans)}


def contents(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def splits_of(out):
    return dict(line.split(",") for line in (out / "split.csv").read_text().splitlines())


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
    def test_slices_and_geometry_are_those_of_the_scan(self, source, undisturbed):
        cohort = open_cohort(undisturbed)
        expected = scan_slices(read_scan({m: source / "p1" / f"p1_{m}.nii.gz" for m in ("flair", "t2")}), SIZE)
        rows = np.flatnonzero(cohort.scans == "p1")
        np.testing.assert_array_equal(cohort.indices[rows], expected.indices)
        np.testing.assert_allclose(cohort.pixels(rows), expected.pixels, atol=1e-3)
        assert cohort.modalities == ("flair", "t2")
        assert {*cohort.pixel_mm, *cohort.spacing_mm} == {4}

    def test_labels_come_from_the_masks_and_every_patient_is_in_one_split(self, undisturbed):
        cohort = open_cohort(undisturbed)
        lesions = Truth(cohort).masks(np.arange(len(cohort))).any(axis=(1, 2))
        np.testing.assert_array_equal(cohort.labels, np.where(lesions, UNHEALTHY, HEALTHY))
        assert by_scan(cohort, cohort.labels) == {"p0": {0}, "p1": {0, 1}, "p2": {0}, "p3": {0, 1}}
        splits = [split for (split,) in by_scan(cohort, cohort.splits).values()]
        assert sorted(splits) == ["test", "train", "train", "val"]

    def test_hashes_depend_on_preparation_and_contents_and_not_on_masks(self, source, undisturbed, tmp_path):
        unlabelled = toys.brats_cohort(tmp_path / "scans", masks=False)
        prepared(unlabelled, tmp_path / "unlabelled")
        prepared(source, tmp_path / "smaller", changes={"size": 16})
        folders = (undisturbed, tmp_path / "unlabelled", tmp_path / "smaller")
        own, same, other = (open_cohort(folder).manifest for folder in folders)
        assert own.preparation_sha256 == same.preparation_sha256 != other.preparation_sha256
        assert own.slices_sha256 == same.slices_sha256 != other.slices_sha256

    def test_scans_without_masks_are_unlabelled(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        (source / "p3" / "p3_seg.nii.gz").unlink()
        cohort = prepared(source, tmp_path / "out")
        truth, unknown = Truth(cohort), np.flatnonzero(cohort.scans == "p3")
        assert set(cohort.labels[unknown]) == {NULL}
        assert truth.masks(np.flatnonzero(truth.available)).any()
        with pytest.raises(CohortError, match="without a lesion mask"):
            truth.masks(unknown)

    def test_workers_do_not_change_results(self, source, undisturbed, tmp_path):
        prepared(source, tmp_path, workers=2)
        assert contents(tmp_path) == contents(undisturbed)

    def test_names_that_a_spreadsheet_would_run_are_read_back(self, tmp_path):
        """In tables they are escaped; labels and splits can be given with names as written there, or as they are."""
        names = ["=a", "@b", "-c"]
        for name in names:
            toys.save(tmp_path / "scans" / f"{name}_flair.nii.gz", toys.head())
        labels, split = tmp_path / "labels.csv", tmp_path / "split.csv"
        labels.write_text("subject,slice,label\n=a,,0\n'@b,,1\n-c,,0\n")
        split.write_text("patient,split\n'=a,train\n@b,val\n-c,train\n")
        options = {"labels": labels, "split": split}
        cohort = prepared(tmp_path / "scans", tmp_path / "out", kind="nifti", plan_options=options)
        assert "\n'=a,'=a,16," in (tmp_path / "out" / "scans.csv").read_text()
        assert by_scan(cohort, cohort.splits) == {"=a": {"train"}, "@b": {"val"}, "-c": {"train"}}


class TestGivenLabels:
    ISOLATED = "labelled unlike both adjacent slices, check these labels"

    def given(self, tmp_path, rows, slice_mm=4.0, splits="train,train,train", **changes):
        """Cohort of three scans with these labels."""
        source = toys.brats_cohort(tmp_path / "scans", 3, masks=False, slice_mm=slice_mm)
        (source / "labels.csv").write_text("\n".join(["subject,slice,label", *rows]))
        split = [f"p{number},{name}" for number, name in enumerate(splits.split(","))]
        (tmp_path / "split.csv").write_text("\n".join(["patient,split", *split]))
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        return prepared(source, out, kind="nifti", plan_options={"split": tmp_path / "split.csv"}, changes=changes)

    def test_of_scans_and_slices(self, tmp_path):
        cohort = self.given(tmp_path, ["p0,,healthy", "p1,,unhealthy", "p1,9,unhealthy"])
        ill = cohort.scans == "p1"
        expected = np.where(cohort.scans == "p0", HEALTHY, np.where(ill & (cohort.indices == 9), UNHEALTHY, NULL))
        np.testing.assert_array_equal(cohort.labels, expected)
        np.testing.assert_array_equal(cohort.suspected, ill & (cohort.indices != 9))
        assert not cohort.manifest.failed | cohort.manifest.warnings
        assert not (cohort.path / "truth").exists()
        with pytest.raises(CohortError, match="no lesion masks"):
            Truth(cohort)

    # Slice 7 of p0 and slice 8 of p1 are labelled unlike both neighbours; of p2, slice 10 has no label.
    WITH_ISOLATED = (
        "p0,,healthy", "p0,7,unhealthy", "p2,8,unhealthy", "p2,9,healthy", "p2,11,unhealthy",
        *(f"p1,{index},{'healthy' if index in (8, 12, 13) else 'unhealthy'}" for index in range(6, 14)),
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("slice_mm", "splits", "changes", "left_out"),
        [
            (3.0, "train,train,train", {}, [7, 8]),
            (3.0004, "train,val,train", {}, [7, 8]),
            (3.0, "train,test,train", {}, [7]),
            (3.0, "train,val,train", {"keep_isolated": True}, []),
            (3.1, "train,val,train", {}, []),
            (3.0, "train,val,train", {"unknown_spacing": True}, []),  # the distance between slices may be large
        ],
    )
    def test_isolated_ones_are_left_out_except_of_thick_slices_and_of_the_test_split(
        self, slice_mm, splits, changes, left_out, tmp_path
    ):
        cohort = self.given(tmp_path, self.WITH_ISOLATED, slice_mm, splits, **changes)
        for scan, index, label in (("p0", 7, UNHEALTHY), ("p1", 8, HEALTHY)):
            what = "left out" if index in left_out else "kept"
            assert f"note: {scan}: {self.ISOLATED} ({what}): {index}" in cohort.notes
            row = (cohort.scans == scan) & (cohort.indices == index)
            assert cohort.labels[row].tolist() == [NULL if index in left_out else label]
        assert len(cohort.notes) == 2
        others = (cohort.scans == "p2") & np.isin(cohort.indices, (8, 9, 11))
        assert cohort.labels[others].tolist() == [UNHEALTHY, HEALTHY, UNHEALTHY]

    def test_are_filled_between_equal_ones_that_are_near(self, tmp_path):
        given = {5: "healthy", 8: "healthy", 10: "unhealthy", 12: "unhealthy", 16: "unhealthy"}
        rows = ["p0,,healthy", *(f"{name},{index},{label}" for name in ("p1", "p2") for index, label in given.items())]
        before = self.given(tmp_path, rows, splits="train,train,test")
        after = self.given(tmp_path, rows, splits="train,train,test", fill_labels_mm=12.0)
        changed = before.labels != after.labels
        assert set(before.labels[changed]) == {NULL}
        filled = zip(after.scans[changed], after.indices[changed].tolist(), after.labels[changed], strict=True)
        assert [*filled] == [("p1", 6, HEALTHY), ("p1", 7, HEALTHY), ("p1", 11, UNHEALTHY)]
        assert after.manifest.fill_labels_mm == 12.0

    def test_take_precedence_over_masks_and_must_be_of_slices_that_exist(self, source, tmp_path):
        (tmp_path / "labels.csv").write_text("subject,slice,label\np1,,healthy\np1,0,1\np3,20,1\n")
        cohort = prepared(source, tmp_path / "out", plan_options={"labels": tmp_path / "labels.csv"})
        assert cohort.manifest.warnings["p1"] == ["labelled slices with too little brain were skipped: 0"]
        assert "has slices 0 to 19" in cohort.manifest.failed["p3"]
        assert set(cohort.labels[cohort.scans == "p1"]) == {HEALTHY}
        assert Truth(cohort).masks(np.flatnonzero(cohort.scans == "p1")).any()


class TestFailures:
    @pytest.fixture
    def broken(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 5)
        path = source / "p1" / "p1_t2.nii.gz"
        path.write_bytes(path.read_bytes()[:-500])
        (source / "p2" / "p2_flair.nii.gz").unlink()
        toys.save(source / "p4" / "p4_seg.nii.gz", np.zeros((24, 24, 21), np.uint8))
        return source

    def test_are_reported_and_fixed_scans_are_added_by_the_next_run(self, broken, tmp_path):
        cohort = prepared(broken, tmp_path / "out")
        failed = cohort.manifest.failed
        assert "p1_t2.nii.gz: truncated" in failed["p1"]
        assert "no flair image (found: t2)" in failed["p2"]
        assert "p4_seg.nii.gz is not on the grid of" in failed["p4"]
        assert set(cohort.scans) == {"p0", "p3"}
        toys.save(broken / "p1" / "p1_t2.nii.gz", toys.head(seed=11))
        cohort = prepared(broken, tmp_path / "out")
        assert set(cohort.manifest.failed) == {"p2", "p4"}
        assert set(cohort.scans) == {"p0", "p1", "p3"}
        lesions = Truth(cohort).masks(np.arange(len(cohort))).any(axis=(1, 2))
        np.testing.assert_array_equal(lesions, cohort.labels == UNHEALTHY)

    def test_strict_stops_at_the_first(self, broken, tmp_path):
        with pytest.raises(ScanError, match="truncated"):
            prepared(broken, tmp_path / "out", strict=True)
        with pytest.raises(CohortError, match="incomplete cohort"):
            open_cohort(tmp_path / "out")

    def test_a_run_without_any_scan_does_not_fix_the_settings(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 2)
        for path in source.rglob("*_t2.nii.gz"):
            path.write_bytes(b"")
        with pytest.raises(CohortError, match=r"no scan could be prepared; .*p0_t2.nii.gz: the file is empty"):
            prepared(source, tmp_path / "out")
        assert prepared(source, tmp_path / "out", plan_options={"modalities": ("flair",)}).modalities == ("flair",)


class TestResume:
    @staticmethod
    def _dies_after(survived, source, out, **options) -> bool:
        """At the flush after `survived` ones."""
        calls = iter(range(survived))

        def fsync(_number):
            if next(calls, None) is None:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            try:
                prepared(source, out, **options)
            except KeyboardInterrupt:
                return True
        return False

    def test_a_crash_at_any_write_changes_nothing(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 2)
        prepared(source, tmp_path / "undisturbed")
        for survived in itertools.count():
            out = tmp_path / str(survived)
            if not self._dies_after(survived, source, out):
                break
            prepared(source, out)
            assert contents(out) == contents(tmp_path / "undisturbed"), f"after a crash at flush {survived}"
        assert survived > 6  # three flushes for each of two scans, at least

    def test_a_crash_while_labels_are_written_is_detected(self, source, undisturbed, tmp_path):
        """After a crash at any write, the cohort is the old one, the new one, or cannot be opened."""
        (tmp_path / "labels.csv").write_text("subject,slice,label\np1,,healthy\n")
        options = {"plan_options": {"labels": tmp_path / "labels.csv"}}
        before = open_cohort(undisturbed).labels
        for survived in range(8):
            out = tmp_path / str(survived)
            shutil.copytree(undisturbed, out)
            self._dies_after(survived, source, out, **options)
            try:
                after = open_cohort(out).labels
            except CohortError:
                after = before
            new = prepared(source, out, **options).labels
            assert not np.array_equal(new, before)
            assert np.array_equal(after, before) or np.array_equal(after, new)

    def test_partial_writes_are_removed(self, source, undisturbed, copied):
        """What a power cut leaves: data without its journal line, and half a line."""
        (copied / "manifest.json").unlink()
        for name in ("slices.npy", "truth/masks.npy", "journal.jsonl"):
            with (copied / name).open("ab") as file:
                file.write(b'{"scan": "p9", "pat')
        prepared(source, copied)
        assert contents(copied) == contents(undisturbed)

    def test_a_complete_cohort_is_not_rewritten(self, source, undisturbed):
        """Training may be reading it."""
        before, calls = contents(undisturbed), []
        prepared(source, undisturbed, on_progress=lambda *call: calls.append((call, open_cohort(undisturbed))))
        assert [call for call, _ in calls] == [("Preparing scans", 4, 4)]
        assert contents(undisturbed) == before

    def test_added_scans_do_not_change_splits(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 12)
        for number in range(6, 12):
            (source / f"p{number}").rename(tmp_path / f"p{number}")
        prepared(source, tmp_path / "out")
        before = splits_of(tmp_path / "out")
        for number in range(6, 12):
            (tmp_path / f"p{number}").rename(source / f"p{number}")
        prepared(source, tmp_path / "out")
        after = splits_of(tmp_path / "out")
        assert len(after) == 13
        assert {patient: after[patient] for patient in before} == before

    @pytest.mark.parametrize(("change", "name"), [({"split_from": "seed 5"}, "split"), ({"size": 32}, "size")])
    def test_other_settings_are_refused(self, source, undisturbed, change, name):
        with pytest.raises(CohortError, match=rf"other settings \({name} differ\)"):
            prepared(source, undisturbed, changes=change)
        assert len(open_cohort(undisturbed)) > 0

    def test_a_written_split_file_can_be_reused_and_another_split_is_refused(self, source, undisturbed, tmp_path):
        given = tmp_path / "split.csv"
        shutil.copy(undisturbed / "split.csv", given)
        prepared(source, tmp_path / "out", plan_options={"split": given, "seed": 99})
        assert splits_of(tmp_path / "out") == splits_of(undisturbed)
        given.write_text(given.read_text().replace(",train", ",test", 1))
        with pytest.raises(CohortError, match=r"puts p\d into test, but it was prepared for train"):
            prepared(source, tmp_path / "out", plan_options={"split": given})

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


class TestOpening:
    def test_truncated_slices_are_detected(self, copied):
        os.truncate(copied / "slices.npy", (copied / "slices.npy").stat().st_size // 2)
        with pytest.raises(CohortError, match=r"slices\.npy: damaged .* --overwrite"):
            open_cohort(copied)

    def test_a_flipped_bit_is_detected_when_the_scan_is_checked(self, copied):
        data = bytearray((copied / "slices.npy").read_bytes())
        data[-1] ^= 1
        (copied / "slices.npy").write_bytes(data)
        cohort = open_cohort(copied)
        check_slices(cohort, np.array([0]))
        with pytest.raises(CohortError, match="do not match their hash"):
            check_slices(cohort, np.array([0, len(cohort) - 1]))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            *((content, "damaged") for content in ("[]", "null", '{"format": 1}', '{"form', 100_000 * "[")),
            ({"format": 9}, "format 9, but this version"),
            ({"tables_sha256": {}}, "does not list the tables"),
            ({"slices": "many"}, r"damaged \(Expected `int`, got `str` - at `\$.slices`\)"),
            ({"later": 1}, "unknown field `later`"),
        ],
        ids=range(9),
    )
    def test_invalid_manifests(self, copied, content, message):
        path = copied / "manifest.json"
        if isinstance(content, dict):
            content = json.dumps(json.loads(path.read_text()) | content)
        path.write_text(content)
        with pytest.raises(CohortError, match=message):
            open_cohort(copied)

    @pytest.mark.parametrize("name", ["slices.csv", "scans.csv", "split.csv"])
    def test_an_edited_table_is_detected(self, copied, name):
        (copied / name).write_bytes((copied / name).read_bytes().replace(b"p1", b"p\xff"))
        with pytest.raises(CohortError, match="was changed after preparation"):
            open_cohort(copied)


def test_memory_does_not_grow_with_the_number_of_patients(tmp_path):
    peaks = []
    for patients in (3, 9):
        source = toys.brats_cohort(tmp_path / f"scans{patients}", patients, (48, 48, 40), masks=False)
        tracemalloc.start()
        prepare(plan_cohort("brats21", source, size=64), tmp_path / f"out{patients}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
