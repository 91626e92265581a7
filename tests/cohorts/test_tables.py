import os

import numpy as np
import pytest

from anofpdm.cohorts.csv_tables import check_known, read_labels, read_split
from anofpdm.cohorts.plan import apply_split, draw_split, split_subjects
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY


def written(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


class TestLabels:
    def test_whole_scans_and_slices(self, tmp_path):
        text = "subject,slice,label\nwell,,healthy\nill,,unhealthy\nill,3,1\nill,1,0\n"
        labels = read_labels(written(tmp_path / "labels.csv", text))
        np.testing.assert_array_equal(labels.slice_labels("well", 4), [HEALTHY] * 4)
        # Which slices of an unhealthy scan are ill, only a row of their own tells.
        np.testing.assert_array_equal(labels.slice_labels("ill", 5), [NULL, HEALTHY, NULL, UNHEALTHY, NULL])
        np.testing.assert_array_equal(labels.slice_labels("never mentioned", 2), [NULL, NULL])

    def test_an_unhealthy_slice_in_a_healthy_scan(self, tmp_path):
        labels = read_labels(written(tmp_path / "labels.csv", "subject,slice,label\na,,0\na,2,1\n"))
        np.testing.assert_array_equal(labels.slice_labels("a", 4), [HEALTHY, HEALTHY, UNHEALTHY, HEALTHY])

    @pytest.mark.parametrize("separator", [",", ";", "\t"])
    def test_as_spreadsheets_save_it(self, tmp_path, separator):
        text = (
            separator.join(["Subject", "Slice", "Label"]) + "\r\n" + separator.join(["a ", "", " Healthy"]) + "\r\n\r\n"
        )
        labels = read_labels(written(tmp_path / "labels.csv", text, "utf-8-sig"))
        assert labels.scans == {"a": HEALTHY}

    def test_no_slice_column(self, tmp_path):
        assert read_labels(written(tmp_path / "l.csv", "subject,label\na,1\n")).scans == {"a": UNHEALTHY}

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("a,,sick", "line 2: invalid label 'sick'"),
            ("a,3,2", r"line 2: invalid label '2'; use healthy \(0\), unhealthy \(1\) or unknown"),
            ("a,-1,1", "line 2: invalid slice '-1'"),
            ("a,x,1", "line 2: invalid slice 'x'"),
            (",3,1", "line 2: no subject"),
            ("a,3,1\na,3,0", "line 3: contradicts"),
        ],
    )
    def test_errors_name_the_line(self, tmp_path, row, message):
        with pytest.raises(CohortError, match=message):
            read_labels(written(tmp_path / "labels.csv", f"subject,slice,label\n{row}\n"))

    def test_the_word_unknown_is_the_same_as_no_row(self, tmp_path):
        labels = read_labels(written(tmp_path / "labels.csv", "subject,slice,label\na,3,Unknown\na,4,\na,5,1\n"))
        assert labels.slice_labels("a", 7).tolist() == [NULL] * 5 + [UNHEALTHY, NULL]

    def test_a_slice_beyond_the_scan(self, tmp_path):
        labels = read_labels(written(tmp_path / "labels.csv", "subject,slice,label\na,60,1\n"))
        with pytest.raises(CohortError, match=r"slice 60 of a does not exist, it has slices 0 to 59"):
            labels.slice_labels("a", 60)

    def test_a_misspelt_slice_column_is_refused(self, tmp_path):
        with pytest.raises(CohortError, match=r"no column 'slice' .*subject, slices, label"):
            read_labels(written(tmp_path / "labels.csv", "subject,slices,label\na,30,healthy\n"))

    @pytest.mark.parametrize("row", ["a,,,unhealthy", "a", "a,3"])
    def test_rows_of_another_length(self, tmp_path, row):
        with pytest.raises(CohortError, match="line 2: number of cells"):
            read_labels(written(tmp_path / "labels.csv", f"subject,slice,label\n{row}\n"))

    def test_numbers_as_spreadsheet_libraries_write_them(self, tmp_path):
        labels = read_labels(written(tmp_path / "labels.csv", "subject,slice,label\na,2.0,1.0\nb,,0.0\n"))
        assert labels.slices == {"a": {2: UNHEALTHY}}
        assert labels.scans == {"b": HEALTHY}

    def test_unicode_normal_forms(self, tmp_path):
        labels = read_labels(written(tmp_path / "labels.csv", "subject,label\nJose\u0301,1\n"))
        assert labels.subjects == {"Jos\u00e9"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("subject,label\n" + 200_000 * "x" + ",1\n", "line 2: cannot be read"),
            (f"subject,slice,label\na,{5000 * '9'},1\n", "use an integer"),
            ("subject,slice,label,label\na,1,1,0\n", "duplicate column 'label'"),
        ],
    )
    def test_malformed_csv(self, tmp_path, text, message):
        with pytest.raises(CohortError, match=message):
            read_labels(written(tmp_path / "labels.csv", text))

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
    def test_pipes_and_devices_are_refused(self, tmp_path, make):
        make(tmp_path / "labels.csv")
        with pytest.raises(CohortError, match="a pipe or a device"):
            read_labels(tmp_path / "labels.csv")

    def test_no_rows(self, tmp_path):
        with pytest.raises(CohortError, match="no rows"):
            read_labels(written(tmp_path / "labels.csv", "subject,slice,label\n"))

    def test_missing_column_and_file(self, tmp_path):
        with pytest.raises(CohortError, match="no column 'label'"):
            read_labels(written(tmp_path / "labels.csv", "subject,slice\na,1\n"))
        with pytest.raises(CohortError, match="does not exist"):
            read_labels(tmp_path / "nothing.csv")
        (tmp_path / "image.csv").write_bytes(bytes(range(256)))
        with pytest.raises(CohortError, match="cannot be read"):
            read_labels(tmp_path / "image.csv")

    def test_the_nearest_name_is_suggested(self):
        with pytest.raises(
            CohortError, match=r"labels\.csv: no scan is named patent1 and 1 more \(nearest: patient1\)"
        ):
            check_known({"patent1", "xyz", "patient2"}, {"patient1", "patient2"}, "labels.csv")


def people(*names):
    return [Subject(name, name.split("@")[0]) for name in names]


class TestSplit:
    @pytest.mark.parametrize(
        ("count", "sizes"),
        [
            (1251, (939, 63, 249)),
            (655, (492, 33, 130)),
            (1, (1, 0, 0)),
            (2, (2, 0, 0)),
            (3, (1, 1, 1)),
            (20, (15, 1, 4)),
        ],
    )
    def test_counts_of_the_paper(self, count, sizes):
        split = draw_split([f"p{i}" for i in range(count)], seed=0)
        assert tuple(list(split.values()).count(name) for name in ("train", "val", "test")) == sizes

    def test_seeded_and_independent_of_order(self):
        patients = [f"p{i}" for i in range(50)]
        assert draw_split(patients, 1) == draw_split(patients[::-1], 1)
        assert draw_split(patients, 1) != draw_split(patients, 2)

    def test_scans_of_a_patient_stay_together(self):
        subjects = people(*[f"p{i}@{visit}" for i in range(20) for visit in range(3)])
        split = split_subjects(subjects, {subject.name for subject in subjects}, seed=0)
        assert len(split) == 20

    def test_unlabelled_patients_are_for_training(self):
        subjects = people(*[f"p{i}" for i in range(40)])
        split = split_subjects(subjects, {f"p{i}" for i in range(20)}, seed=0)
        assert all(split[f"p{i}"] == "train" for i in range(20, 40))
        assert list(split.values()).count("test") == 4

    def test_split_files_of_scans_or_patients(self, tmp_path):
        path = written(tmp_path / "split.csv", "patient,split\na,train\nb@0,Validation\nc,test\nelse,test\n")
        assert apply_split(people("a@0", "a@1", "b@0", "c@0"), read_split(path), path) == {
            "a": "train",
            "b": "val",
            "c": "test",
        }

    def test_split_files_must_be_complete_and_consistent(self, tmp_path):
        path = written(tmp_path / "split.csv", "patient,split\na@0,train\na@1,test\n")
        with pytest.raises(CohortError, match="patient a in train and in test"):
            apply_split(people("a@0", "a@1"), read_split(path), path)
        with pytest.raises(CohortError, match=r"no row for 1 scans \(b"):
            apply_split(people("a@0", "b@0"), read_split(path), path)
        with pytest.raises(CohortError, match="line 3: a is already in train"):
            read_split(written(path, "patient,split\na,train\na,test\n"))
        with pytest.raises(CohortError, match="line 2: invalid split 'tset'"):
            read_split(written(path, "patient,split\na,tset\n"))
