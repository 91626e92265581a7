import errno
import os

import pytest

from anofpdm.errors import AnoFPDMError, OutputError
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically


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


def test_a_folder_has_one_writer(tmp_path):
    with folder_lock(tmp_path), pytest.raises(AnoFPDMError, match="another run is writing here"), folder_lock(tmp_path):
        pass
    with folder_lock(tmp_path):
        pass
