"""The commands: processes, exit codes, one-line errors."""

import gc
import json
import os
import signal
import subprocess
import sys

import nibabel as nib
import pytest
from typer import BadParameter

from anofpdm import __version__
from anofpdm.cli.segment import parse_explain
from anofpdm.cohorts import open_cohort
from anofpdm.util.signals import block_signals, blocked_signals
from faults.processes import RunningCommand, assert_refused, run_successfully, wait_until
from tests import toys
from tests.commands import run, smaller_preset
from tests.two_processes import run_in_two_processes


def refused(*words):
    """No traceback, one line on the error stream."""
    (line,) = [line for line in run(*words, code=1).stderr.splitlines() if line.startswith("anofpdm: ")]
    return line


def test_version():
    assert run_successfully("--version").out.strip() == f"anofpdm {__version__}"


def test_help_needs_nothing_heavy():
    """Help must take less than half a second; heavy imports would break that, and can be checked on any machine."""
    heavy = ("numpy", "scipy", "nibabel", "nilearn", "PIL")
    code = f"import sys, anofpdm.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_garbage_is_collected_while_a_command_runs(tmp_path):
    """The program starts without garbage collection (__main__.py)."""
    gc.disable()
    try:
        refused("score", tmp_path / "missing", tmp_path)
        assert gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    return toys.brats_cohort(tmp_path_factory.mktemp("world") / "scans", 8)


@pytest.fixture(scope="module")
def cohort(scans):
    run("prepare", "brats21", scans, scans.parent / "cohort", "--size", 16, "--workers", 1)
    return scans.parent / "cohort"


# ---- train -----------------------------------------------------------------------------------------------------------


def test_train_resume_and_fine_tune(cohort, tmp_path):
    words = ("train", cohort, "--preset", "tiny", "--batch", 4, "--device", "cpu")
    resume = ("train", cohort, "--out", tmp_path / "m", "--resume")
    with smaller_preset():
        assert "jumped" not in run(*words, "--out", tmp_path / "m", "--steps", 2).stdout
    assert "holds a model already" in refused(*words, "--out", tmp_path / "m", "--steps", 3)
    bad = [json.dumps({"step": step, "loss": loss}) for step, loss in [(1, 0.005)] * 20 + [(2, 0.05)] * 5]
    (tmp_path / "m" / "log.jsonl").write_text("\n".join(bad) + "\n")
    done = run(*resume, "--steps", 3)
    assert "step 3" in done.stdout
    assert "the loss jumped from 0.005 to 0.05 near step 2" in done.stdout
    changed = refused(*resume, "--batch", 8, "--preset", "tiny", "--from", tmp_path / "m", "--steps", 4)
    assert "--batch, --preset, --from cannot change" in changed
    run("train", cohort, "--out", tmp_path / "f", "--from", tmp_path / "m", "--steps", 1, "--batch", 4)
    assert (tmp_path / "f" / "weights.safetensors").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--steps", 1, "--from", "."), "not a model"),
        ((), "--steps or --minutes"),
        (("--steps", 1, "--resume"), "nothing to resume"),
        (("--minutes", 0, "--steps", 1), "more than 0"),
        (("--steps", 1, "--device", "cuda:77"), "no such GPU"),
    ],
)
def test_mistakes_of_train(cohort, tmp_path, words, message):
    assert message in refused("train", cohort, "--out", tmp_path / "m", *words)


# ---- calibrate and segment -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calibrated(cohort, tmp_path_factory):
    """A model trained for a few steps only, enough to run."""
    model = tmp_path_factory.mktemp("model") / "m"
    words = ("train", cohort, "--out", model, "--preset", "tiny", "--batch", 4, "--steps", 20, "--learning-rate", 0.01)
    with smaller_preset():
        run(*words, "--device", "cpu")
    settings = ("--levels", 6, "--split", "train", "--strengths", "0,2", "--device", "cpu")
    printed = run("calibrate", model, cohort, *settings).stdout
    assert all(word in printed for word in ("chosen", "best", "cosine", "curve", "calibration.json"))
    assert (model / "calibration.png").read_bytes().startswith(b"\x89PNG")
    return model


@pytest.fixture(scope="module")
def segmented(calibrated, scans, tmp_path_factory):
    """All scans, by one process; without a detector, so that lesions are found."""
    out = tmp_path_factory.mktemp("segmented")
    words = ("segment", calibrated, scans, "--device", "cpu", "--detector", "none", "--out", out)
    return out, words, run(*words).stdout


def test_a_folder_of_scans_and_again(segmented):
    out, words, printed = segmented
    assert printed.endswith(
        f"8 scans segmented, 0 already complete, results in {out}\n"
        f"each scan has a report; all in a browser: anofpdm view {out}\n"
    )
    wanted = "mask.nii.gz anomaly_map.nii.gz findings.csv slices.csv summary.json overview.png report.html"
    assert {path.name for path in (out / "p3").iterdir()} == set(wanted.split())
    assert "0 scans segmented, 8 already complete" in run(*words).stdout


def test_two_processes_share_the_work_and_change_nothing(segmented, tmp_path):
    out, words, _ = segmented
    assert "8 scans segmented" in run_in_two_processes(*words[:-1], tmp_path, "--no-pictures", "--no-report")
    paths = sorted(out.rglob("*.nii.gz"))
    assert len(paths) == 16
    assert any(nib.Nifti1Image.from_filename(path).get_fdata().any() for path in out.rglob("mask.nii.gz"))
    for path in paths:
        assert path.read_bytes() == (tmp_path / path.relative_to(out)).read_bytes()


def test_mistakes_of_calibrate_and_segment(calibrated, cohort, scans, tmp_path):
    assert "not a model" in refused("calibrate", tmp_path, cohort)
    assert "not a prepared cohort" in refused("calibrate", calibrated, tmp_path)
    assert "only on flair, t2" in refused("calibrate", calibrated, cohort, "--score", "dwi")
    assert "not a model" in refused("segment", tmp_path, scans, "--out", tmp_path / "out")
    words = ("segment", calibrated, scans, "--out", tmp_path / "out", "--brain-mask", tmp_path / "b.nii.gz")
    assert "--brain-mask is for one scan" in refused(*words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(("calibrate", option, word) for option, word in (
            ("--strengths", "a"), ("--strengths", "-1"), ("--range", "0"), ("--range", "most"), ("--signal", "x"),
        )),
        *(("segment", option, "some", "--out", "out") for option in ("--engine", "--detector", "--explain")),
        *(("distill", "--device", name) for name in ("meta", "cuda:x")),
        ("prepare", "--entity", "iso", "bids"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_a_usage_error_before_anything_is_loaded(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(words[0], *words[3:], "model", "data", *words[1:3], code=2)


def test_next_step_after_one_scan_is_its_report(calibrated, scans, tmp_path):
    words = ("segment", calibrated, scans / "p1", "--device", "cpu")
    assert f"open {tmp_path / 'p1' / 'report.html'} in a browser" in run(*words, "--out", tmp_path).stdout
    assert (tmp_path / "p1" / "report.html").is_file()
    assert "in a browser" not in run(*words, "--out", tmp_path / "none", "--no-report").stdout
    assert not list((tmp_path / "none").rglob("*.html"))


def test_slices_to_explain():
    assert parse_explain("findings") == parse_explain(" findings ") == "findings"
    assert parse_explain("7, 8") == (7, 8)
    for text in ("all", "-3", "", "1,"):
        with pytest.raises(BadParameter, match="give findings, or slice numbers"):
            parse_explain(text)


# ---- bench and prepare -----------------------------------------------------------------------------------------------


def test_bench_prints_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.backends.cudnn.benchmark", False)  # the command sets it
    words = ("bench", "--device", "cpu", "--batch", 1, "--size", 16, "--levels", 2, "--literal-levels", 2, "--no-scan")
    with smaller_preset():
        done = run(*words, "--json", tmp_path / "b.json")
    assert "literal loop" in done.stdout
    assert "native-space mask" not in done.stdout
    payload = json.loads((tmp_path / "b.json").read_text())
    assert payload["plan"]["batch"] == 1
    assert "scan_seconds" not in payload


@pytest.mark.parametrize(
    "wrong",
    [("--levels", "a"), ("--levels", "0"), ("--levels", "10,"), ("--size", "20"), ("--json", "/no/such/b")],
)
def test_bench_mistakes(wrong):
    assert wrong[0] in run("bench", "--device", "cpu", "--preset", "tiny", *wrong, code=2).stderr


def test_prepare(tmp_path):
    source = toys.brats_cohort(tmp_path / "scans")
    (source / "p1" / "p1_flair.nii.gz").write_bytes(b"no scan")
    words = ("prepare", "brats21", source, tmp_path / "out", "--size", 24)
    assert "not a NIfTI file" in refused(*words, "--strict", "--workers", 1)
    printed = run(*words, "--workers", 2, code=3).stdout
    assert "p1_flair.nii.gz: not a NIfTI file" in printed
    assert "3 scans" in printed
    assert len(open_cohort(tmp_path / "out")) > 0


# ---- signals ---------------------------------------------------------------------------------------------------------

STOPPED = "stopped, finished work is kept; re-run the same command to resume"


def test_ctrl_c(tmp_path):
    source = toys.brats_cohort(tmp_path / "scans", 12, (48, 48, 40))
    words = ("prepare", "brats21", source, tmp_path / "out", "--size", 96, "--workers", 2)
    running, journal = RunningCommand(*words), tmp_path / "out" / "journal.jsonl"
    assert wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2)
    running.send(signal.SIGINT)
    assert_refused(running.wait(), STOPPED, code=130)
    run(*words)
    assert len(set(open_cohort(tmp_path / "out").scans)) == 12


@pytest.mark.parametrize(
    ("number", "code", "module"),
    [(signal.SIGINT, 130, "typer"), (signal.SIGINT, 130, "torch"), (signal.SIGTERM, 143, "torch")],
)
def test_a_signal_during_start_up_stops_with_the_line(number, code, module, tmp_path):
    """The signal arrives while a module is imported, before the command's own code runs."""
    script = (
        "import importlib.abc, os, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from anofpdm.__main__ import main\n"
        "main()\n"
    )
    words = ("train", tmp_path, "--out", tmp_path / "m", "--steps", 1)
    assert_refused(RunningCommand(*words, program=(sys.executable, "-c", script)).wait(), STOPPED, code=code)


def test_blocked_signals_are_delivered_later():
    done = []

    def importing():
        with blocked_signals():
            signal.raise_signal(signal.SIGINT)
            done.append("continued")

    with pytest.raises(KeyboardInterrupt):
        importing()
    assert done
    assert not block_signals(False)


LOSES_INTERRUPT = """
import sys, time
from anofpdm.cli import main as cli
from anofpdm.errors import Terminated

class Callback:
    def __del__(self):
        raise {problem}

def lose():
    Callback()
    time.sleep(60)

cli.WITHOUT_TORCH = (lose,)
cli.add_command(lose)
sys.argv = ["anofpdm", "lose"]
cli.main()
"""


@pytest.mark.parametrize(("problem", "code"), [("KeyboardInterrupt", 130), ("Terminated", 143)])
def test_an_interrupt_that_python_would_ignore_still_stops(problem, code):
    script = LOSES_INTERRUPT.format(problem=problem)
    outcome = RunningCommand(program=(sys.executable, "-c", script)).wait(50)
    assert_refused(outcome, STOPPED, code=code)
    assert outcome.err.count("\n") == 1


def test_output_that_nobody_reads_ends_quietly():
    """As in `anofpdm models | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "anofpdm", "models"]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")
