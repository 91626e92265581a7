import os

import pytest

from anofpdm.cohorts.csv_tables import read_labels, read_split
from anofpdm.cohorts.plan import apply_split, split_at_random
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY


def written(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


def labels_of(tmp_path, rows, columns="subject,slice,label"):
    return read_labels(written(tmp_path / "labels.csv", f"{columns}\n{rows}\n"))


@pytest.mark.parametrize(
    ("rows", "subject", "expected"),
    [
        ("well,,healthy", "well", [HEALTHY] * 4),
        ("ill,,unhealthy\nill,3,1\nill,1,0", "ill", [NULL, HEALTHY, NULL, UNHEALTHY]),  # slices need rows of their own
        ("ill,,unhealthy", "never mentioned", [NULL] * 4),
        ("a,,0\na,2,1", "a", [HEALTHY, HEALTHY, UNHEALTHY, HEALTHY]),
        ("a,1,Unknown\na,2,\na,3,1", "a", [NULL, NULL, NULL, UNHEALTHY]),
        ("a,2.0,1.0\na,3,0.0", "a", [NULL, NULL, UNHEALTHY, HEALTHY]),  # as spreadsheet libraries write numbers
    ],
)
def test_labels_of_slices(tmp_path, rows, subject, expected):
    assert labels_of(tmp_path, rows).slice_labels(subject, "patient", 4).tolist() == expected


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_labels_as_spreadsheets_save_them(tmp_path, separator):
    text = "Subject,Slice,Label\r\na ,, Healthy\r\n\r\n".replace(",", separator)
    labels = read_labels(written(tmp_path / "labels.csv", text, "utf-8-sig"))
    assert labels.scan_label("scan of a", "a") == HEALTHY


def test_labels_without_a_slice_column_and_in_another_unicode_form(tmp_path):
    assert labels_of(tmp_path, "Jose\u0301,1", "subject,label").scan_label("Jos\u00e9", "") == UNHEALTHY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("subject,slice,label\na,,2", r"line 2: invalid label '2'; use healthy \(0\), unhealthy \(1\) or unknown"),
        ("subject,slice,label\na,-1,1", "line 2: invalid slice '-1'"),
        (f"subject,slice,label\na,{5000 * '9'},1", "use an integer"),
        ("subject,slice,label\n,3,1", "line 2: no subject"),
        ("subject,slice,label\na,3,1\na,3,0", "line 3: contradicts"),
        ("subject,slice,label\na,,,unhealthy", "line 2: number of cells"),
        ("subject,slice,label\na,3", "line 2: number of cells"),
        ("subject,slices,label\na,30,healthy", r"no column 'slice' .*subject, slices, label"),
        ("subject,label\n" + 200_000 * "x" + ",1", "line 2: cannot be read"),
        ("subject,slice,label,label\na,1,1,0", "duplicate column 'label'"),
        ("subject,slice,label", "no rows"),
        ("subject,slice\na,1", "no column 'label'"),
    ],
    ids=range(12),
)
def test_invalid_labels_are_refused_with_their_line(tmp_path, text, message):
    with pytest.raises(CohortError, match=message):
        read_labels(written(tmp_path / "labels.csv", text + "\n"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "a pipe or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "a pipe or a device"),
        (lambda path: path.write_bytes(bytes(range(256))), "cannot be read"),
        (lambda _path: None, "does not exist"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, make, message):
    make(tmp_path / "labels.csv")
    with pytest.raises(CohortError, match=message):
        read_labels(tmp_path / "labels.csv")


def test_a_slice_beyond_the_scan(tmp_path):
    with pytest.raises(CohortError, match=r"slice 60 of a does not exist, it has slices 0 to 59"):
        labels_of(tmp_path, "a,60,1").slice_labels("a", "a", 60)


def test_the_nearest_name_is_suggested(tmp_path):
    labels = labels_of(tmp_path, "patent1,,1\nxyz,,1\npatient2,,1")
    with pytest.raises(CohortError, match=r"line 2: no scan is named patent1 and 1 more \(nearest: patient1\)"):
        labels.check_known({"patient1", "patient2"})


def people(*names):
    return [Subject(name, name.split("@")[0]) for name in names]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1251, (939, 63, 249)), (655, (492, 33, 130)), (1, (1, 0, 0)), (2, (2, 0, 0)), (3, (1, 1, 1)), (20, (15, 1, 4))],
)
def test_splits_have_the_counts_of_the_paper_whatever_the_order(count, sizes):
    patients = [f"p{number}" for number in range(count)]
    split = split_at_random(patients, seed=0)
    assert tuple(list(split.values()).count(name) for name in ("train", "val", "test")) == sizes
    assert split == split_at_random(patients[::-1], seed=0)
    assert count < 20 or split != split_at_random(patients, seed=1)


def test_split_files_of_scans_or_patients(tmp_path):
    path = written(tmp_path / "split.csv", "patient,split\na,train\nb@0,Validation\nc,test\nelse,test\n")
    split = apply_split(people("a@0", "a@1", "b@0", "c@0"), read_split(path), path)
    assert split == {"a": "train", "b": "val", "c": "test"}


@pytest.mark.parametrize(
    ("rows", "scans", "message"),
    [
        ("a@0,train\na@1,test", ("a@0", "a@1"), "patient a in train and in test"),
        ("a@0,train\na@1,test", ("a@0", "b@0"), r"no row for 1 scans \(b"),
        ("a,train\na,test", (), "line 3: a is already in train"),
        ("a,tset", (), "line 2: invalid split 'tset'"),
    ],
)
def test_split_files_must_be_complete_and_consistent(tmp_path, rows, scans, message):
    path = written(tmp_path / "split.csv", f"patient,split\n{rows}\n")
    with pytest.raises(CohortError, match=message):
        apply_split(people(*scans), read_split(path), path)
