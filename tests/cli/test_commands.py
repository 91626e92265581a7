"""The commands: processes, exit codes, one-line errors."""

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import nibabel as nib
import pytest
from typer import BadParameter
from typer.testing import CliRunner

from anofpdm import __version__
from anofpdm.cli.main import app, defer_signals
from anofpdm.cli.segment import parse_explain, print_reports
from anofpdm.cohorts import open_cohort
from anofpdm.errors import Terminated
from anofpdm.network.config import PRESETS
from anofpdm.options import Preset
from tests import toys
from tests.two_processes import run_in_two_processes


def anofpdm(*words, **options):
    command = [sys.executable, "-m", "anofpdm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


def here(*words):
    """In this process: starting a new one takes seconds. `main` only adds a signal handler to `app`."""
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words, code=1):
    """No traceback, one line on the error stream."""
    done = here(*words)
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.stderr.splitlines() if line.startswith("anofpdm: ")]
    assert len(lines) == 1
    return lines[0]


def test_version():
    assert anofpdm("--version").stdout.strip() == f"anofpdm {__version__}"


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


@pytest.mark.parametrize("words", [(), ("--help",), ("prepare", "--help"), ("phantom", "--help")])
def test_help(words):
    done = here(*words)
    assert "Usage: " in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort")
    source = toys.brats_cohort(folder / "scans", 8)
    done = here("prepare", "brats21", source, folder / "cohort", "--size", 16, "--workers", 1)
    assert done.exit_code == 0, done.output
    return folder / "cohort"


@contextlib.contextmanager
def smaller_preset():
    """`--preset tiny` with fewer weights, for speed; `test_other_tasks` and `bench` use the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, Preset.TINY, {"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (2,)})
        yield


class TestTrain:
    def test_train_resume_and_fine_tune(self, cohort, tmp_path):
        words = ("train", cohort, "--preset", "tiny", "--batch", 4, "--no-pictures", "--device", "cpu")
        with smaller_preset():
            done = here(*words, "--out", tmp_path / "m", "--steps", 2)
        assert done.exit_code == 0, done.output
        assert "jumped" not in done.stdout
        assert "holds a model already" in refused(*words, "--out", tmp_path / "m", "--steps", 3)
        bad = [json.dumps({"step": step, "loss": loss}) for step, loss in [(1, 0.005)] * 20 + [(2, 0.05)] * 5]
        (tmp_path / "m" / "log.jsonl").write_text("\n".join(bad) + "\n")
        done = here("train", cohort, "--out", tmp_path / "m", "--resume", "--steps", 3, "--no-pictures")
        assert "step 3" in done.stdout, done.output
        assert "the loss jumped from 0.005 to 0.05 near step 2" in done.stdout
        assert "batch cannot change" in refused(
            "train", cohort, "--out", tmp_path / "m", "--resume", "--batch", 8, "--steps", 4
        )
        done = here("train", cohort, "--out", tmp_path / "f", "--from", tmp_path / "m", "--steps", 1, "--batch", 4)
        assert done.exit_code == 0, done.output
        assert (tmp_path / "f" / "samples.png").is_file()

    @pytest.mark.parametrize("task", ["unconditional", "healthy", "classifier"])
    def test_other_tasks(self, cohort, tmp_path, task):
        words = ("train", cohort, "--out", tmp_path, "--task", task, "--preset", "tiny", "--batch", 4, "--steps", 1)
        done = here(*words, "--no-pictures")
        assert done.exit_code == 0, done.output
        assert ("AUC of the classifier" in done.stdout) == (task == "classifier")

    def test_mistakes(self, cohort, tmp_path):
        assert "not a prepared cohort" in refused("train", tmp_path, "--out", tmp_path / "m", "--steps", 1)
        assert "--steps or --minutes" in refused("train", cohort, "--out", tmp_path / "m")
        assert "nothing to resume" in refused("train", cohort, "--out", tmp_path / "m", "--steps", 1, "--resume")
        assert "not a model" in refused("train", cohort, "--out", tmp_path / "m", "--steps", 1, "--from", tmp_path)
        assert "more than 0" in refused("train", cohort, "--out", tmp_path / "m", "--minutes", 0, "--steps", 1)
        assert "no such GPU" in refused("train", cohort, "--out", tmp_path / "m", "--steps", 1, "--device", "cuda:77")


@pytest.mark.parametrize("name", ["abacus", "meta", "cuda:x", "gpu"])
def test_a_mistyped_device_is_a_usage_error(name, tmp_path):
    done = here("train", tmp_path, "--out", tmp_path / "m", "--steps", 1, "--device", name)
    assert done.exit_code == 2
    assert "--device" in done.output


@pytest.fixture(scope="module")
def model(cohort, tmp_path_factory):
    """Trained for a few steps only, enough to run."""
    folder = tmp_path_factory.mktemp("model") / "m"
    words = ("train", cohort, "--out", folder, "--preset", "tiny", "--batch", 4, "--steps", 20, "--learning-rate", 0.01)
    with smaller_preset():
        done = here(*words, "--no-pictures", "--device", "cpu")
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def calibrated(model, cohort):
    words = ("calibrate", model, cohort, "--levels", 6, "--split", "train", "--strengths", "0,2", "--device", "cpu")
    done = here(*words)
    assert done.exit_code == 0, done.output
    return model, done.stdout


class TestCalibrate:
    def test_it_prints_candidates_and_detectors_and_saves_a_figure(self, calibrated):
        model, printed = calibrated
        for word in ("chosen", "best", "cosine", "curve", "calibration.json"):
            assert word in printed
        assert (model / "calibration.json").is_file()
        assert (model / "calibration.png").read_bytes().startswith(b"\x89PNG")

    def test_mistakes(self, model, cohort, tmp_path):
        assert "not a model" in refused("calibrate", tmp_path, cohort)
        assert "not a prepared cohort" in refused("calibrate", model, tmp_path)
        assert "only on flair, t2" in refused("calibrate", model, cohort, "--score", "dwi")
        for wrong in (
            ("--strengths", "a"), ("--strengths", "-1"), ("--range", "0"), ("--range", "most"), ("--encoding", "sde"),
            ("--signal", "x"), ("--strength-by", "mask"), ("--precision", "fp8"),
        ):  # fmt: skip
            assert CliRunner().invoke(app, ["calibrate", str(model), str(cohort), *wrong]).exit_code == 2


@pytest.fixture(scope="module")
def segmented(calibrated, cohort, tmp_path_factory):
    """All scans, by one process; without a detector, so that lesions are found."""
    model, _ = calibrated
    out = tmp_path_factory.mktemp("segmented")
    choices = ("--device", "cpu", "--detector", "none")
    words = ("segment", model, cohort.parent / "scans", *choices, "--out", out)
    return out, words, here(*words)


class TestSegment:
    def scans(self, cohort):
        return cohort.parent / "scans"

    def test_a_folder_of_scans_and_again(self, segmented):
        out, words, done = segmented
        assert done.exit_code == 0, done.output
        assert done.stdout.endswith(
            f"8 scans segmented, 0 already complete, results in {out}\n"
            f"each scan has a report; all in a browser: anofpdm view {out}\n"
        )
        names = {path.name for path in (out / "p3").iterdir()}
        wanted = "mask.nii.gz anomaly_map.nii.gz findings.csv slices.csv summary.json overview.png report.html"
        assert names == set(wanted.split())
        assert "0 scans segmented, 8 already complete" in here(*words).stdout

    def test_two_processes_share_the_work_and_change_nothing(self, segmented, tmp_path):
        one, words, _ = segmented
        assert "8 scans segmented" in run_in_two_processes(*words[:-1], tmp_path, "--no-pictures")
        paths = sorted(one.rglob("*.nii.gz"))
        assert len(paths) == 16
        assert any(nib.Nifti1Image.from_filename(path).get_fdata().any() for path in one.rglob("mask.nii.gz"))
        for path in paths:
            assert path.read_bytes() == (tmp_path / path.relative_to(one)).read_bytes()

    def test_one_broken_scan_of_several(self, calibrated, tmp_path):
        model, _ = calibrated
        source = toys.brats_cohort(tmp_path / "scans", 2)
        (source / "p1" / "p1_t2.nii.gz").write_bytes(b"not a scan")
        done = here("segment", model, source, "--out", tmp_path / "out", "--device", "cpu")
        assert done.exit_code == 3, done.output
        assert "failed: p1" in done.stdout
        assert "1 scan segmented, 0 already complete, 1 failed" in done.stdout
        assert "p1_t2.nii.gz" in done.stdout
        assert (tmp_path / "out" / "p0" / "mask.nii.gz").is_file()
        assert not (tmp_path / "out" / "p1").exists()

    def test_mistakes(self, calibrated, cohort, tmp_path):
        model, _ = calibrated
        out = ("--out", tmp_path / "out")
        assert "no such file or folder" in refused("segment", model, tmp_path / "gone", *out)
        assert "not a model" in refused("segment", tmp_path, self.scans(cohort), *out)
        one = self.scans(cohort) / "p1" / "p1_flair.nii.gz"
        assert "no t2 image" in refused("segment", model, one, *out)
        assert "not calibrated for smoothing" in refused("segment", model, self.scans(cohort), *out, "--context", 7)
        assert "--brain-mask is for one scan" in refused(
            "segment", model, self.scans(cohort), *out, "--brain-mask", tmp_path / "b.nii.gz"
        )
        both = ("--brain-mask", one, "--skull-strip", "cp {input} {output}")
        assert "give one of them" in refused("segment", model, self.scans(cohort), *out, *both)
        assert "applies to prepared cohorts only" in refused(
            "segment", model, self.scans(cohort), *out, "--split", "val"
        )
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("option", ["--engine", "--detector", "--threshold", "--precision", "--split", "--explain"])
    def test_a_wrong_word_is_a_usage_error_before_the_model_is_loaded(self, option, tmp_path):
        done = here("segment", tmp_path / "no-model", tmp_path, "--out", tmp_path / "out", option, "some")
        assert done.exit_code == 2, done.output

    def test_next_step_after_one_scan_is_its_report(self, calibrated, cohort, tmp_path):
        words = ("segment", calibrated[0], self.scans(cohort) / "p1", "--device", "cpu")
        assert f"open {tmp_path / 'p1' / 'report.html'} in a browser" in here(*words, "--out", tmp_path).stdout
        assert (tmp_path / "p1" / "report.html").is_file()
        assert "in a browser" not in here(*words, "--out", tmp_path / "none", "--no-report").stdout

    def test_every_warning_of_a_scan_is_printed(self, capsys, tmp_path):
        from anofpdm.segment.many import RunReport

        print_reports([RunReport(segmented={"p": 1.0}, warnings={"p": ["one", "two"]})], tmp_path)
        output = capsys.readouterr().out
        assert "warning: p: one" in output
        assert "warning: p: two" in output

    def test_a_calibration_of_other_weights(self, calibrated, cohort, tmp_path):
        model, _ = calibrated
        shutil.copytree(model, tmp_path / "m")
        words = ("train", cohort, "--out", tmp_path / "m", "--resume", "--steps", 21, "--no-pictures")
        done = here(*words)
        assert done.exit_code == 0, done.output
        assert "another checkpoint" in refused("segment", tmp_path / "m", self.scans(cohort), "--out", tmp_path / "o")


@pytest.mark.parametrize(("text", "wanted"), [("findings", "findings"), (" findings ", "findings"), ("7, 8", (7, 8))])
def test_slices_to_explain(text, wanted):
    assert parse_explain(text) == wanted


@pytest.mark.parametrize("text", ["all", "-3", "", "1,"])
def test_wrong_slices_to_explain(text):
    with pytest.raises(BadParameter, match="give findings, or slice numbers"):
        parse_explain(text)


def test_bench_prints_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.backends.cudnn.benchmark", False)  # the command sets it
    words = ("bench", "--device", "cpu", "--batch", 1, "--size", 16, "--levels", 2, "--literal-levels", 2, "--no-scan")
    done = here(*words, "--json", tmp_path / "b.json")
    assert done.exit_code == 0, done.output
    assert "literal loop" in done.stdout
    assert "native-space mask" not in done.stdout
    assert json.loads((tmp_path / "b.json").read_text())["scan_seconds"] is None


@pytest.mark.parametrize(
    "wrong",
    [("--levels", "a"), ("--levels", "0"), ("--levels", "10,"), ("--size", "20"), ("--json", "/no/such/b")],
)
def test_bench_mistakes(wrong):
    done = CliRunner().invoke(app, ["bench", "--device", "cpu", "--preset", "tiny", *wrong])
    assert done.exit_code == 2
    assert wrong[0] in done.stderr


class TestPrepare:
    def test_done(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        done = anofpdm("prepare", "brats21", source, tmp_path / "out", "--size", 24, "--workers", 2)
        assert done.returncode == 0, done.stderr
        assert "4 scans" in done.stdout
        assert len(open_cohort(tmp_path / "out")) > 0

    def test_in_part(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        (source / "p1" / "p1_flair.nii.gz").write_bytes(b"no scan")
        done = anofpdm("prepare", "brats21", source, tmp_path / "out", "--size", 24, "--workers", 1)
        assert done.returncode == 3
        assert "p1_flair.nii.gz: not a NIfTI file" in done.stdout
        assert "3 scans" in done.stdout

    def test_strict(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans")
        (source / "p0" / "p0_flair.nii.gz").write_bytes(b"no scan")
        words = ("prepare", "brats21", source, tmp_path / "out", "--strict", "--workers", 1)
        assert "not a NIfTI file" in refused(*words)

    def test_wrong_paths(self, tmp_path):
        assert "no such folder" in refused("prepare", "brats21", tmp_path / "none", tmp_path / "out")
        source = toys.brats_cohort(tmp_path / "scans", 1)
        (tmp_path / "file").touch()
        assert "is a file, not a folder" in refused("prepare", "brats21", source, tmp_path / "file")
        assert not (tmp_path / "out").exists()

    def test_invalid_arguments_are_usage_errors(self, tmp_path):
        assert here("prepare", "brats22", tmp_path, tmp_path / "out").exit_code == 2
        assert here("prepare", "bids", tmp_path, tmp_path / "out", "--entity", "iso").exit_code == 2

    def test_a_full_disk(self, tmp_path):
        """A limit on file size simulates a full disk; afterwards the same command resumes."""
        source = toys.brats_cohort(tmp_path / "scans")
        words = ("prepare", "brats21", source, tmp_path / "out", "--size", 24, "--workers", 1)
        limited = [
            "bash",
            "-c",
            'ulimit -f 64; trap "" XFSZ; exec "$@"',
            "x",
            sys.executable,
            "-m",
            "anofpdm",
            *map(str, words),
        ]
        done = subprocess.run(limited, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "File too large" in done.stderr
        assert here(*words).exit_code == 0
        assert len(set(open_cohort(tmp_path / "out").scans)) == 4

    def test_ctrl_c(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 30, (48, 48, 40))
        words = ("prepare", "brats21", source, tmp_path / "out", "--size", 96, "--workers", 2)
        run = subprocess.Popen(
            [sys.executable, "-m", "anofpdm", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        journal = tmp_path / "out" / "journal.jsonl"
        while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
            assert run.poll() is None, run.communicate()
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 130
        assert "re-run the same command to resume" in errors
        assert "Traceback" not in errors
        assert here(*words).exit_code == 0
        assert len(set(open_cohort(tmp_path / "out").scans)) == 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_is_deferred(number):
    before = signal.getsignal(number)
    done = []

    def importing():
        with defer_signals():
            signal.raise_signal(number)
            done.append("continued")

    with pytest.raises(KeyboardInterrupt) as problem:
        importing()
    assert done
    assert isinstance(problem.value, Terminated) == (number == signal.SIGTERM)
    assert signal.getsignal(number) is before


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code
    assert done.stderr.startswith("anofpdm: stopped, finished work is kept")
    assert done.stderr.count("\n") == 1


def test_output_that_nobody_reads_ends_quietly():
    """As in `anofpdm models | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "anofpdm", "models"]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")
