"""Every bad input ends in one line that names it and a code that is not 0; every unusual one in the right result.

Never in a traceback, a hang, half a result, a wrong one, or more than 1 GiB of memory.
"""

import contextlib
import csv
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bad_inputs
import nibabel as nib
import numpy as np
import pytest
from bad_inputs import Case, Good
from commands import record
from warm import Ran, Warm, fresh

CASES = {case.name: case for case in bad_inputs.all_cases()}
MOST_MEMORY = 1 << 30
TIMEOUT = 60
FRESH = list(CASES)[:: len(CASES) // 15]  # also as processes of their own
PROBLEM = ("anofpdm: ", "failed: ")  # how a line begins that says what went wrong


RUNS: dict[str, list[Ran]] = {}  # by kind of input


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()
    for kind, runs in RUNS.items():
        peak = max(ran.peak for ran in runs) >> 20
        record(f"bad inputs: {kind}", len(runs), f"at most {max(r.seconds for r in runs):.1f} s, {peak} MiB")


@pytest.fixture(scope="session")
def good(warm: Warm) -> Iterator[Good]:
    with _open_folder() as root:
        made = bad_inputs.make_good(root)
        assert warm.run(bad_inputs.prepare_cohort(made), root).code == 0
        yield made


@pytest.fixture(scope="session")
def plain(good: Good, warm: Warm) -> dict[str, dict[str, np.ndarray]]:
    """What each command makes of what is right."""
    return {command: _results(warm, good, make) for command, make in bad_inputs.PLAIN.items()}


@pytest.mark.parametrize("name", CASES)
def test_refused_or_right(name: str, good: Good, warm: Warm, plain: dict[str, dict[str, np.ndarray]]) -> None:
    case = CASES[name]
    with _open_folder() as folder:
        argv = case.make(folder, good)
        before = _model_files(folder)
        ran = warm.run(argv, folder, timeout=TIMEOUT, obeying=case.obeying)
        RUNS.setdefault(case.kind, []).append(ran)
        check_harmless(ran)
        if case.right:
            check_right(ran, plain[case.like or argv[0]], results(folder, argv[0]))
        else:
            check_refused(ran, case)
            check_nothing_begun(ran, folder)
            assert _model_files(folder) == before, "the model was changed"


@pytest.mark.parametrize("name", FRESH)
def test_a_process_of_its_own_says_the_same(name: str, good: Good, warm: Warm) -> None:
    case = CASES[name]
    with _open_folder() as one, _open_folder() as other:
        ran = fresh(case.make(one, good), one, timeout=2 * TIMEOUT)
        forked = warm.run(case.make(other, good), other)
    check_harmless(ran)
    said = [line.replace(str(one), str(other)) for line in problems(ran)]
    assert (ran.code, said) == (forked.code, problems(forked))


# ---- what is looked at -----------------------------------------------------------------------------------------------


def check_harmless(ran: Ran) -> None:
    assert not ran.timed_out, f"still at it after {ran.seconds:.0f} s"
    assert "Traceback" not in ran.err + ran.out, ran.err
    assert ran.peak < MOST_MEMORY, f"{ran.peak >> 20} MiB"


def check_refused(ran: Ran, case: Case) -> None:
    assert ran.code in (1, 2, 3), ran
    said = problems(ran)
    assert len(said) == 1, ran
    assert case.names in said[0], said
    assert not _stray(ran.err), ran.err


def check_right(ran: Ran, expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    assert ran.code == 0, ran
    assert not _stray(ran.err), ran.err
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].squeeze(), array, rtol=0, atol=1e-4 * np.abs(array).max(), err_msg=name)


def check_nothing_begun(ran: Ran, folder: Path) -> None:
    scans = folder / "out" / "scans.csv"
    if ran.code == 3 and scans.is_file():  # others are prepared all the same; not the one that failed
        assert f"\n{problems(ran)[0].split(': ')[1]}," not in scans.read_text()
    else:
        assert not results_begun(folder), "half a result"


def problems(ran: Ran) -> list[str]:
    return [line for line in (ran.err + "\n" + ran.out).splitlines() if line.startswith(PROBLEM)]


def _stray(err: str) -> list[str]:
    """Lines that are neither the message nor a progress bar."""
    bar = ("━", " 0/", "…")
    lines = (line for line in err.splitlines() if line.strip() and not any(mark in line for mark in bar))
    return [line for line in lines if not line.startswith(PROBLEM)]


def results(folder: Path, command: str) -> dict[str, np.ndarray]:
    """Read by others than us."""
    if command == "prepare":
        with (folder / "out" / "slices.csv").open(newline="") as file:
            labels = np.array([len(row["label"]) for row in csv.DictReader(file)])  # no two are of one length
        return {"slices": np.load(folder / "out" / "slices.npy"), "labels": labels}
    (place,) = (path.parent for path in (folder / "out").rglob("summary.json"))
    images = {name: nib.load(place / f"{name}.nii.gz") for name in ("anomaly_map", "mask")}
    return {name: np.asarray(image.dataobj) for name, image in images.items()} | {"affine": images["mask"].affine}


def results_begun(folder: Path) -> list[str]:
    """Files in the output folder that say or seem to say that something was done."""
    unfinished = {"journal.jsonl", "slices.npy", "masks.npy", ".lock"}  # of a cohort that has no manifest
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    return sorted(path.name for path in files if path.name not in unfinished)


def _results(warm: Warm, good: Good, make) -> dict[str, np.ndarray]:
    with _open_folder() as folder:
        argv = make(folder, good)
        ran = warm.run(argv, folder)
        assert ran.code == 0, ran
        found = results(folder, argv[0])
        assert all(array.any() for array in found.values())
        return found


def _model_files(folder: Path) -> dict[str, bytes]:
    model = folder / "model7"
    return {path.name: path.read_bytes() for path in model.rglob("*") if path.is_file() and not path.is_symlink()}


@contextlib.contextmanager
def _open_folder() -> Iterator[Path]:
    """Outside of pytest's own, which keeps what is large."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
