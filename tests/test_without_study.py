"""The product works with src/anofpdm/study deleted: its modules, its commands, a segmentation and its score."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ("report/test_overview.py", "scoring/test_slice_scores.py")
IMPORT_EVERYTHING = """
import importlib, pkgutil, anofpdm
optional = {"fastapi", "pydicom", "highdicom", "onnx", "onnxscript", "triton"}
for module in pkgutil.walk_packages(anofpdm.__path__, "anofpdm."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.split(".")[0] in optional, (module.name, error)
assert importlib.util.find_spec("anofpdm.study") is None
print(anofpdm.__file__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a copy of the package without `study`."""
    folder = tmp_path_factory.mktemp("without study")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("study", "__pycache__"))
    return folder


def run(folder, *words, cwd=None, code=0):
    """Output of Python with that copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=cwd or folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_module_can_be_imported(folder):
    assert str(folder) in run(folder, "-c", IMPORT_EVERYTHING)


def test_research_commands_are_not_offered(folder):
    listed = run(folder, "-m", "anofpdm", "--help")
    assert "segment" in listed
    assert "evaluate" not in listed


def test_a_phantom_is_segmented_and_scored(folder):
    run(folder, "-m", "anofpdm", "phantom", "scans", "--kind", "tumour", "--patients", 1, "--size", 64, "--slices", 8)
    words = ("--engine", "student", "--no-report", "--no-pictures", "--device", "cpu")
    run(folder, "-m", "anofpdm", "segment", "phantom-tumour", "scans", "--out", "masks", *words)
    mask, truth = (next(folder.glob(f"{name}.nii.gz")) for name in ("masks/**/mask", "scans/**/*_seg"))
    assert "DICE" in run(folder, "-m", "anofpdm", "score", mask, truth, "--label", "all")


def test_networks_of_comparison_methods_are_refused(folder):
    run(folder, "-m", "anofpdm", "phantom", "few", "--kind", "tumour", "--patients", 4, "--size", 32, "--slices", 4)
    run(folder, "-m", "anofpdm", "prepare", "brats21", "few", "cohort", "--size", 32)
    train = ("-m", "anofpdm", "train", "cohort", "--out", "model", "--preset", "tiny", "--steps", 1, "--device", "cpu")
    refused = run(folder, *train, "--task", "classifier", code=1)
    assert "--task classifier and --noise simplex need the folder `study` of this package" in refused


def test_tests_of_the_product_pass(folder):
    """A failure is a failed command."""
    run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(ROOT / "tests" / name for name in TESTS), cwd=ROOT)
