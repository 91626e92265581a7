"""Every bad file is refused in one line that mentions it; every unusual but valid file gives the right result.

Never a traceback, a hang, a partial or wrong result, or more than 1 GiB of memory.
"""

import contextlib
import csv
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from faults.bad_files import all_cases
from faults.bad_files.base import Case, Make, ValidFiles, make_valid_files, prepare_cohort
from faults.bad_files.references import REFERENCES
from faults.forkserver import ForkServer, Run, run_fresh
from faults.summary import BAD_FILES

CASES = all_cases()
MAX_MEMORY = 1 << 30
TIMEOUT = 120  # seconds, on a machine that does other work, too
FRESH = list(CASES)[:: len(CASES) // 15]  # also run as fresh processes
PROBLEM = ("anofpdm: ", "failed: ")  # how the line of an error message begins
PROGRESS = re.compile(r"━| 0/|…|: \d+%(, .* left)?$")
INCOMPLETE = {"journal.jsonl", "slices.npy", "masks.npy", ".lock"}  # files of a cohort that has no manifest yet

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    process = ForkServer()
    yield process
    process.close()


@pytest.fixture(scope="module")
def files(server: ForkServer) -> Iterator[ValidFiles]:
    with _temporary_folder() as root:
        made = make_valid_files(root)
        assert server.run(prepare_cohort(made), root).code == 0
        yield made


@pytest.fixture(scope="module")
def expected(files: ValidFiles, server: ForkServer) -> dict[str, Arrays]:
    """The results with valid files."""
    return {name: _run_reference(server, files, make) for name, make in REFERENCES.items()}


@pytest.mark.sample(3, by=lambda name: CASES[name].kind)
@pytest.mark.parametrize("name", CASES)
def test_refused_or_right(
    name: str, files: ValidFiles, server: ForkServer, expected: dict[str, Arrays], record
) -> None:
    case = CASES[name]
    with _temporary_folder() as folder:
        arguments = case.make(folder, files)
        before = _model_files(folder)
        run = server.run(arguments, folder, timeout=TIMEOUT, unprivileged=case.unprivileged)
        record(BAD_FILES, case.kind, run.seconds, run.peak)
        check_harmless(run)
        if case.valid:
            check_right(run, expected[case.reference or arguments[0]], read_results(folder, arguments[0]))
        else:
            check_refused(run, case)
            check_no_partial_result(run, folder)
            assert _model_files(folder) == before, "the model was changed"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FRESH)
def test_fresh_process_gives_the_same(name: str, files: ValidFiles, server: ForkServer) -> None:
    case = CASES[name]
    with _temporary_folder() as first, _temporary_folder() as second:
        fresh = run_fresh(case.make(first, files), first, timeout=2 * TIMEOUT)
        forked = server.run(case.make(second, files), second)
    check_harmless(fresh)
    messages = [line.replace(str(first), str(second)) for line in error_lines(fresh)]
    assert (fresh.code, messages) == (forked.code, error_lines(forked))


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_harmless(run: Run) -> None:
    assert not run.timed_out, f"still running after {run.seconds:.0f} s"
    assert "Traceback" not in run.err + run.out, run.err
    assert run.peak < MAX_MEMORY, f"{run.peak >> 20} MiB"


def check_refused(run: Run, case: Case) -> None:
    assert run.code in (1, 2, 3), run
    messages = error_lines(run)
    assert len(messages) == 1, run
    assert case.mentions in messages[0], messages
    assert not _stray_lines(run.err), run.err


def check_right(run: Run, expected: Arrays, result: Arrays) -> None:
    assert run.code == 0, run
    assert not _stray_lines(run.err), run.err
    assert expected.keys() == result.keys()
    for name, array in expected.items():
        tolerance = 1e-4 * np.abs(array).max()
        np.testing.assert_allclose(result[name].squeeze(), array, rtol=0, atol=tolerance, err_msg=name)


def check_no_partial_result(run: Run, folder: Path) -> None:
    out = folder / "out"
    tables = [path for path in (out / "scans.csv", *out.rglob("scores.csv")) if path.is_file()]
    if run.code == 3 and tables:  # the other scans are prepared or scored, without the one that failed
        assert all(f"\n{error_lines(run)[0].split(': ')[1]}," not in table.read_text() for table in tables)
        return
    written = [path.name for path in out.rglob("*") if path.is_file()]
    assert set(written) <= INCOMPLETE, "a partial result"


def error_lines(run: Run) -> list[str]:
    return [line for line in (run.err + "\n" + run.out).splitlines() if line.startswith(PROBLEM)]


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


def _run_reference(server: ForkServer, files: ValidFiles, make: Make) -> Arrays:
    with _temporary_folder() as folder:
        arguments = make(folder, files)
        run = server.run(arguments, folder)
        assert run.code == 0, run
        result = read_results(folder, arguments[0])
        assert all(array.any() for array in result.values())
        return result


def _model_files(folder: Path) -> dict[str, bytes]:
    model = folder / "model7"
    paths = (path for path in model.rglob("*") if path.is_file() and not path.is_symlink() and path.name != ".lock")
    return {str(path.relative_to(model)): path.read_bytes() for path in paths}


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Not one of pytest's, which keeps large files."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
