"""The readers, fed with bytes that a fuzzer bends towards lines not yet seen: nothing but our own errors comes out.

Atheris (libFuzzer) watches which lines of the readers an input reaches and builds on those that reach new ones. It also
ends a reader that takes longer than SLOWEST or more than MOST_MEMORY. Seeds are the good files of the corpus, and the
random numbers are those of --fault-seed. Every reader gets its share of the minutes in a process of its own.
"""

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from commands import record

SECONDS = float(os.environ.get("FUZZ_SECONDS", "300"))  # over all readers
SLOWEST, MOST_MEMORY = 10, 1024  # seconds, MiB: for one input
LONGEST = 8192  # bytes of one
READERS = ("nifti", "gzip", "dicom", "calibration", "model", "labels", "split", "manifest")


def _nifti(path: Path) -> None:
    from anofpdm.scans import read_volume
    from anofpdm.scans.nifti import read_grid

    read_grid(path)
    read_volume(path)


def _dicom(path: Path) -> None:
    from anofpdm.scans.dicom.read import preview

    preview(path, ("flair",))


def _calibration(path: Path) -> None:
    from anofpdm.calibration.files import from_json, to_json

    to_json(from_json(path.read_bytes().decode(errors="replace"), str(path)))


def _model(path: Path) -> None:
    import torch

    from anofpdm.network.predictor import load_trained

    load_trained(path.rename(path.parent / "weights.safetensors").parent, torch.device("cpu"))


def _labels(path: Path) -> None:
    from anofpdm.cohorts.tables import read_labels

    read_labels(path).of("q0", 5)


def _split(path: Path) -> None:
    from anofpdm.cohorts.tables import read_split

    read_split(path)


def _manifest(path: Path) -> None:
    from anofpdm.cohorts.store import open_cohort

    open_cohort(path.rename(path.parent / "manifest.json").parent)


def seeds() -> dict[str, dict[str, bytes]]:
    """Good files, and bad ones of the corpus, by reader."""
    import bad_folders
    import bad_inputs
    import bad_models
    import bad_scans

    with tempfile.TemporaryDirectory() as root:
        good = bad_inputs.make_good(Path(root))
        scans = {"scan": good.scan(), "second": bad_scans.saved(good.voxels(), bad_scans.nib.Nifti2Image)}
        packed = {"packed": bad_scans.packed(good.scan()), "two": bad_scans.packed(good.scan()[:900]) * 2}
        calibration = (good.model / "calibration.json").read_bytes()
        return {
            "nifti": scans,
            "gzip": packed,
            "dicom": {path.name: path.read_bytes() for path in sorted(good.study.iterdir())[:2]},
            "calibration": {"whole": calibration},
            "model": {"small": bad_models.small_model()},
            "labels": {"labels": bad_folders.LABELS.encode(), "tabs": bad_folders.LABELS.replace(",", "\t").encode()},
            "split": {"split": bad_folders.SPLIT.encode()},
            "manifest": {"manifest": bad_models.MANIFEST.encode()},
        }


@pytest.fixture(scope="session")
def seeded() -> dict[str, dict[str, bytes]]:
    return seeds()


@pytest.mark.parametrize("reader", READERS)
def test_nothing_but_our_own_errors(reader: str, seeded, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel for this machine")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, content in seeded[reader].items():
        (corpus / name).write_bytes(content)
    seed = request.config.getoption("--fault-seed") + 1  # 0 would be the time of day
    print(f"seed {seed}")
    share = int(SECONDS / len(READERS))
    words = [f"-max_total_time={share}", f"-seed={seed}", f"-timeout={SLOWEST}", f"-rss_limit_mb={MOST_MEMORY}",
             f"-max_len={LONGEST}", f"-artifact_prefix={tmp_path}/", "-print_final_stats=1"]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, __file__, reader, str(corpus), *words], capture_output=True, text=True, timeout=share + 120
    )
    found = [path for path in tmp_path.iterdir() if path.is_file()]
    shown = "".join(f"\n{path.name}: {base64.b64encode(path.read_bytes())[:3000].decode()}" for path in found)
    assert (ran.returncode, shown) == (0, ""), f"seed {seed}: {ran.stderr[-3000:]}{shown}"
    inputs = int(ran.stderr.rsplit("stat::number_of_executed_units:", 1)[1].split()[0])
    assert inputs > 1000, "too few to mean anything"
    record(f"fuzzed inputs: {reader}", inputs, f"{share} s, {len(list(corpus.iterdir()))} that reached new lines")


def _fuzz(reader: str, words: list[str]) -> None:
    """In a process of its own: libFuzzer does not return."""
    import atheris

    with atheris.instrument_imports(include=["anofpdm", "pydicom"]):
        import anofpdm.cohorts.store
        import anofpdm.cohorts.tables
        import anofpdm.method.calibration
        import anofpdm.network.predictor
        import anofpdm.scans.dicom.read  # noqa: F401
    from anofpdm.errors import AnoFPDMError

    read = {"gzip": _nifti}.get(reader) or globals()[f"_{reader}"]
    space = Path(words[0]).with_name("space")  # beside the corpus
    space.mkdir()

    def once(data: bytes) -> None:
        path = space / ("x.dcm" if reader == "dicom" else "x.nii")
        path.write_bytes(data)
        try:
            read(path)
        except AnoFPDMError as problem:
            if not str(problem):
                raise

    atheris.Setup([sys.argv[0], *words], once)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz(sys.argv[1], sys.argv[2:])
