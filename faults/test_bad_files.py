"""Every bad file is refused in one line that mentions it; every unusual but valid file gives the right result.

Never a traceback, a hang, a partial or wrong result, or more than 1 GiB of memory.
"""

import csv
import re
from functools import cache
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from faults.bad_files import all_cases
from faults.bad_files.base import Case, Command, make_valid_files
from faults.forked import run_forked
from faults.processes import Outcome, RunningCommand

CASES = all_cases()
MAX_MEMORY = 850 << 20  # on top of what the imports take; with them, 1 GiB
TIMEOUT = 120  # seconds, on a machine that does other work, too
FRESH = list(CASES)[:: len(CASES) // 15]  # also run as fresh processes
PROBLEM = ("anofpdm: ", "failed: ")  # how the line of an error message begins
PROGRESS = re.compile(r"━| 0/|…|: \d+%(, .* left)?$")
INCOMPLETE = {"journal.jsonl", "slices.npy", "masks.npy", ".lock"}  # files of a cohort that has no manifest yet

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    make_valid_files(root)
    cohort = ("prepare", "brats21", "patients7", "cohort7", "--size", "64", "--split", "split.csv")
    assert run_forked(cohort, root, TIMEOUT)[0].code == 0
    return root


@pytest.fixture(scope="module")
def expected(files, tmp_path_factory):
    """The result of a command with valid files."""

    @cache
    def run_reference(command: Command) -> Arrays:
        folder = tmp_path_factory.mktemp("reference")
        Case("", command, "nothing", lambda _path: None).set_up(folder, files)
        outcome, _ = run_forked(command, folder, TIMEOUT)
        assert outcome.code == 0, outcome
        result = read_results(folder, command[0])
        assert all(array.any() for array in result.values())
        return result

    return run_reference


@pytest.mark.sample(2, by=lambda name: name.split()[0])
@pytest.mark.parametrize("name", CASES)
def test_refused_or_right(name, files, expected, workspace, record_property):
    case = CASES[name]
    case.set_up(workspace, files)
    before = _model_files(workspace)
    outcome, peak = run_forked(case.command, workspace, TIMEOUT, unprivileged=case.unprivileged)
    record_property("peak memory, MiB", peak >> 20)
    assert "Traceback" not in outcome.err + outcome.out, outcome
    assert not _stray_lines(outcome.err), outcome
    assert peak < MAX_MEMORY, f"{peak >> 20} MiB"
    if case.valid:
        assert outcome.code == 0, outcome
        check_right(expected(case.reference or case.command), read_results(workspace, case.command[0]))
    else:
        check_refused(outcome, case.mentions or Path(case.path).name)
        check_no_partial_result(outcome, workspace)
        assert _model_files(workspace) == before, "the model was changed"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FRESH)
def test_fresh_process_gives_the_same(name, files, workspace):
    case, folders = CASES[name], [workspace / "fresh", workspace / "forked"]
    for folder in folders:
        folder.mkdir()
        case.set_up(folder, files)
    fresh = RunningCommand(*case.command, cwd=folders[0]).wait(2 * TIMEOUT)
    forked, _ = run_forked(case.command, folders[1], TIMEOUT)
    messages = [line.replace(str(folders[0]), str(folders[1])) for line in error_lines(fresh)]
    assert (fresh.code, messages) == (forked.code, error_lines(forked))


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_refused(outcome: Outcome, mentions: str) -> None:
    assert outcome.code in (1, 2, 3), outcome
    messages = error_lines(outcome)
    assert len(messages) == 1, outcome
    assert mentions in messages[0], messages


def check_right(expected: Arrays, result: Arrays) -> None:
    assert expected.keys() == result.keys()
    for name, array in expected.items():
        tolerance = 1e-4 * np.abs(array).max()
        np.testing.assert_allclose(result[name].squeeze(), array, rtol=0, atol=tolerance, err_msg=name)


def check_no_partial_result(outcome: Outcome, folder: Path) -> None:
    out = folder / "out"
    tables = [path for path in (out / "scans.csv", *out.rglob("scores.csv")) if path.is_file()]
    if outcome.code == 3 and tables:  # the other scans are prepared or scored, without the one that failed
        failed = error_lines(outcome)[0].split(": ")[1]
        assert all(f"\n{failed}," not in table.read_text() for table in tables)
        return
    written = [path.name for path in out.rglob("*") if path.is_file()]
    assert set(written) <= INCOMPLETE, "a partial result"


def error_lines(outcome: Outcome) -> list[str]:
    return [line for line in (outcome.err + "\n" + outcome.out).splitlines() if line.startswith(PROBLEM)]


def _stray_lines(err: str) -> list[str]:
    """Lines that are neither the error message nor progress."""
    lines = (line for line in err.splitlines() if line.strip() and not PROGRESS.search(line))
    return [line for line in lines if not line.startswith(PROBLEM)]


def read_results(folder: Path, command: str) -> Arrays:
    """Read without our own code."""
    if command == "prepare":
        with (folder / "out" / "slices.csv").open(newline="") as file:
            labels = np.array([len(row["label"]) for row in csv.DictReader(file)])  # each label has its own length
        return {"slices": np.load(folder / "out" / "slices.npy"), "labels": labels}
    if command == "score":
        (scan,) = csv.DictReader((folder / "out" / "scores.csv").open(newline=""))
        names = [name for name in scan if name not in ("scan", "patient", "predicted", "truth")]
        return {"scores": np.array([float(scan[name] or "nan") for name in names])}
    (place,) = (path.parent for path in (folder / "out").rglob("summary.json"))
    images = {name: nib.load(place / f"{name}.nii.gz") for name in ("anomaly_map", "mask")}
    return {name: np.asarray(image.dataobj) for name, image in images.items()} | {"affine": images["mask"].affine}


def _model_files(folder: Path) -> dict[str, bytes]:
    """Of a copy that the command could change."""
    model = folder / "model7"
    paths = (path for path in model.rglob("*") if path.is_file() and not path.is_symlink() and path.name != ".lock")
    return {} if model.is_symlink() else {str(path.relative_to(model)): path.read_bytes() for path in paths}
