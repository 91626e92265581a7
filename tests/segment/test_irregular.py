"""Pipes, folders and files of other kinds where scans are expected."""

import os

import pytest

from anofpdm.segment.inputs import find_targets
from tests.commands import FAST, run
from tests.optional_toys import save_model, scan_files

FLAIR = ("flair",)


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model", channels=FLAIR, optional=())


def test_what_is_no_file_fails_by_name_and_is_counted(model, tmp_path):
    scan_files(tmp_path / "in", "p1", FLAIR)
    places = {name: tmp_path / "in" / f"{name}_flair.nii.gz" for name in ("pipe", "folder", "device")}
    os.mkfifo(places["pipe"])
    places["folder"].mkdir()
    places["device"].symlink_to("/dev/zero")
    done = run("segment", model, tmp_path / "in", "--out", tmp_path / "out", *FAST, "--part", "1/1", code=3)
    for name, path in places.items():
        what = "a folder" if name == "folder" else "a pipe or a device"
        assert f"failed: {name}: {name}: {path} is {what}, not a file; remove it" in done.stdout
    assert "1 scan segmented, 0 already complete, 3 failed" in done.stdout
    assert run("join", tmp_path / "out", code=3).stdout.endswith("scans.csv, 3 failed\n")


def test_a_pipe_as_input_is_refused(model, tmp_path):
    os.mkfifo(tmp_path / "p_flair.nii.gz")
    done = run("segment", model, tmp_path / "p_flair.nii.gz", "--out", tmp_path / "out", code=1)
    assert "p_flair.nii.gz: a pipe or a device, not a file" in done.stderr


def test_a_folder_named_like_a_file_may_hold_the_file(tmp_path):
    scan_files(tmp_path / "in" / "p1_flair.nii", "p1", FLAIR)
    (target,) = find_targets([str(tmp_path / "in")], FLAIR)
    assert target.subject.problem is None


def test_files_beside_the_series_are_no_scans(tmp_path):
    for name in ("p1", "reference_brain", "mask", "seg"):
        scan_files(tmp_path / "in", name)
    scan_files(tmp_path / "other", "reference_1")  # alone in its folder, it is a scan
    for folder, name in (("in", "p1"), ("other", "reference_1")):
        (target,) = find_targets([str(tmp_path / folder)], ("flair", "t1"))
        assert target.subject.name == name


def test_a_file_as_output_folder_is_refused(tmp_path):
    out = tmp_path / "out.txt"
    out.touch()
    for words in (("demo", "--out", out), ("prepare", "nifti", tmp_path, out)):
        assert run(*words, code=1).stderr == f"anofpdm: {out} is a file, not a folder; choose another --out\n"


@pytest.mark.parametrize("command", ["join", "train"])
def test_the_hint_after_an_interrupt_is_of_the_command(command, tmp_path, monkeypatch):
    def interrupted(*_words, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("anofpdm.cli.main.refuse_file", interrupted)
    stderr = run(command, tmp_path, *(("--out", tmp_path) if command == "train" else ()), code=130).stderr
    assert ("--resume" in stderr) == (command == "train")
    assert "re-run the same command to resume" in stderr
