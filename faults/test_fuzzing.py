"""Coverage-guided fuzzing of the readers, by atheris: nothing but our own errors may be raised.

In a process for each reader. Atheris (libFuzzer) records which lines of a reader an input reaches, and mutates those
inputs that reach new ones. It also stops a reader that exceeds MAX_SECONDS or MAX_MEMORY. The random seed is
--fault-seed.
"""

import base64
import gzip
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_SECONDS, MAX_MEMORY = 10, 1024  # MiB; for one input
MAX_BYTES = 8192  # of one input


NAMES = {"dicom": "x.dcm", "model": "weights.safetensors", "manifest": "manifest.json"}  # of the file; others: x.nii
READERS = ("nifti", "gzip", "dicom", "calibration", "model", "labels", "split", "manifest")


def import_readers() -> dict[str, Callable[[Path], object]]:
    """In the process that fuzzes, the imports must be instrumented."""
    import torch

    from anofpdm.calibration.calibration_file import from_json, to_json
    from anofpdm.cohorts.csv_tables import read_labels, read_split
    from anofpdm.cohorts.store import open_cohort
    from anofpdm.network.predictor import load_trained
    from anofpdm.scans.dicom.read import preview
    from anofpdm.scans.nifti import read_grid, read_volume

    read_nifti = lambda path: (read_grid(path), read_volume(path))  # noqa: E731
    readers: tuple[Callable[[Path], object], ...] = (
        read_nifti,
        read_nifti,
        lambda path: preview(path, ("flair",)),
        lambda path: to_json(from_json(path.read_bytes().decode(errors="replace"), str(path))),
        lambda path: load_trained(path.parent, torch.device("cpu")),
        lambda path: read_labels(path).slice_labels("q0", "q0", 5),
        read_split,
        lambda path: open_cohort(path.parent),
    )
    return dict(zip(READERS, readers, strict=True))


@pytest.fixture(scope="module")
def first_inputs():
    """By reader."""
    from faults.bad_files import base, cohorts, models, nifti_headers, nifti_scan

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base.make_valid_files(root)
        scan = gzip.decompress((root / base.FLAIR).read_bytes())
        return {
            "nifti": [scan, nifti_headers.to_nifti2(scan)],
            "gzip": [nifti_scan.compress(scan), nifti_scan.compress(scan[:900]) * 2],
            "dicom": [path.read_bytes() for path in sorted((root / "study").iterdir())[:2]],
            "calibration": [(root / "model7" / "calibration.json").read_bytes()],
            "model": [models.small_model(root / "small")],
            "labels": [base.LABELS.encode(), base.LABELS.replace(",", "\t").encode()],
            "split": [base.SPLIT.encode()],
            "manifest": [cohorts.MANIFEST.encode()],
        }


@pytest.mark.sample(3)
@pytest.mark.parametrize("reader", READERS)
def test_coverage_guided_fuzzing(reader, first_inputs, pytestconfig, tmp_path, extent, record_property):
    pytest.importorskip("atheris", reason="needs atheris, which has no wheel for this machine")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, content in enumerate(first_inputs[reader]):
        (corpus / f"input{number}").write_bytes(content)
    seed = pytestconfig.getoption("--fault-seed") + 1  # libFuzzer takes 0 as the time of day
    seconds = extent.fuzz_seconds
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-timeout={MAX_SECONDS}", f"-rss_limit_mb={MAX_MEMORY}",
               f"-max_len={MAX_BYTES}", f"-artifact_prefix={tmp_path}/", "-print_final_stats=1"]  # fmt: skip
    command = [sys.executable, "-m", "faults.test_fuzzing", reader, str(corpus), *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 120, check=False)
    crashes = [path for path in tmp_path.iterdir() if path.is_file()]
    shown = "".join(f"\n{path.name}: {base64.b64encode(path.read_bytes())[:3000].decode()}" for path in crashes)
    assert (run.returncode, shown) == (0, ""), f"seed {seed}: {run.stderr[-3000:]}{shown}"
    inputs = int(run.stderr.rsplit("stat::number_of_executed_units:", 1)[1].split()[0])
    assert inputs >= seconds, "fewer than one input per second"
    record_property("inputs of atheris", inputs)


def _fuzz(reader: str, options: list[str]) -> None:
    """In a process of its own: libFuzzer does not return."""
    import atheris

    with atheris.instrument_imports(include=["anofpdm", "pydicom"]):
        read = import_readers()[reader]
    from anofpdm.errors import AnoFPDMError

    folder = Path(options[0]).with_name("current")  # beside the corpus
    folder.mkdir()

    def read_once(data: bytes) -> None:
        path = folder / NAMES.get(reader, "x.nii")
        path.write_bytes(data)
        try:
            read(path)
        except AnoFPDMError as error:
            if not str(error):
                raise

    atheris.Setup([sys.argv[0], *options], read_once)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz(sys.argv[1], sys.argv[2:])
