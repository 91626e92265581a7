import csv
import errno
import io
import os

import pytest

from anofpdm.errors import OutputError
from anofpdm.util.files import encode_csv, remove_temporary_files, unescape_cell, write_atomically


def failing(number):
    def fail(_file):
        raise OSError(number, os.strerror(number))  # as the system raises it: without the file's name

    return fail


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free disk space"), (errno.EDQUOT, "free disk space"), (errno.EROFS, "fix this")],
)
def test_a_failed_write_names_the_file_and_keeps_the_old_one(number, remedy, tmp_path, monkeypatch):
    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(OutputError) as caught:
        write_atomically(tmp_path / "a", b"new")
    assert str(tmp_path / "a") in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert remedy in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_only_temporary_files_are_removed(tmp_path):
    for name in ("a", ".lock", ".a.12.tmp", ".b.png.13.tmp", "c.tmp"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path, "b.*")
    assert not (tmp_path / ".b.png.13.tmp").exists()
    remove_temporary_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a", "c.tmp"]


FORMULAS = [
    "=1+1",
    "+cmd",
    "-2+3",
    "@SUM(A1)",
    "\ta",
    "\rb",
    "\nc",
    "\uff1da",
    '=a,"b"\nc',
    "-1_0",
    "-e5",
    "'=a",
    "''-b",
]
PLAIN = ["a", "", "'a", "it's=b", "a=b", "a\rb", " =a", -5, -1.5e-7, "-0.25", "-1.5e-07", "+3", "-inf", None, 7]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_a_spreadsheet_would_run_is_escaped_and_read_back(text):
    ((cell,),) = csv.reader(io.StringIO(encode_csv([], [[text]]).decode().partition("\n")[2], newline=""))
    assert cell == f"'{text}"
    assert unescape_cell(cell) == text


@pytest.mark.parametrize("value", PLAIN)
def test_numbers_and_other_text_stay(value):
    ((cell, _),) = csv.reader(io.StringIO(encode_csv([], [[value, 0]]).decode().partition("\n")[2], newline=""))
    assert cell == unescape_cell(cell) == ("" if value is None else str(value))
