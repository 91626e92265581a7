"""Memory that runs out: batches are halved, then the CPU takes the scan, then that scan alone fails."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from anofpdm.errors import NotEnoughMemoryError
from anofpdm.segment.model import load
from anofpdm.segment.segment_scan import read
from anofpdm.student.predict import CpuStudent
from anofpdm.student.student_network import StudentNet
from tests.commands import run
from tests.optional_toys import save_model, scan_files
from tests.segment import known_model

META = torch.device("meta")  # stands for a GPU: another device than the CPU
NO_BLOCK = (
    "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)
PROBLEMS = [
    MemoryError(),
    RuntimeError("std::bad_alloc"),
    RuntimeError(NO_BLOCK),
    RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
]


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    for name in ("p1", "p2"):
        scan_files(folder, name)
    return folder


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return load(save_model(tmp_path_factory.mktemp("student")), "cpu")


@pytest.fixture(scope="module")
def whole(student, scans):
    """The result with enough memory."""
    result = student.segment(files_of(scans))
    assert result.mask.any()
    return result


def limit_student(monkeypatch, largest, problem):
    passes = CpuStudent.passes

    def limited(self, x):
        if len(x) > largest:
            raise problem
        return passes(self, x)

    monkeypatch.setattr(CpuStudent, "passes", limited)


def files_of(scans):
    return {modality: scans / f"p1_{modality}.nii.gz" for modality in ("flair", "t1", "t2")}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: str(problem)[:20])
@pytest.mark.parametrize("largest", [1, 3])
def test_a_student_gives_the_same_mask_in_smaller_batches(problem, largest, student, whole, scans, monkeypatch):
    limit_student(monkeypatch, largest, problem)
    result = student.segment(files_of(scans))
    np.testing.assert_array_equal(result.mask, whole.mask)
    assert not result.summary.warnings


class Limited(known_model.Rounding):
    """Of a device, or a CPU, with memory for so many slices."""

    def __init__(self, largest, problem, device="cpu"):
        self.largest, self.problem, self.device = largest, problem, torch.device(device)

    def __call__(self, x, t, labels):
        if len(x) > self.largest:
            raise self.problem
        return super().__call__(x, t, labels)


@pytest.mark.parametrize(
    ("limit", "warnings"),
    [((3, PROBLEMS[1]), []), ((3, PROBLEMS[-1]), []), ((0, PROBLEMS[-1], "meta"), ["not enough memory on meta; "])],
    ids=["smaller batches", "of a GPU", "the CPU takes it"],
)
@pytest.mark.filterwarnings("ignore:not enough memory on meta")
def test_the_diffusion_engine_gives_the_same_mask(limit, warnings, tmp_path, monkeypatch):
    files, _, _ = known_model.scan_files(tmp_path)
    model = known_model.known_model()
    whole = model.segment(files, **known_model.BY_HEALTHY)
    monkeypatch.setattr("anofpdm.segment.engines.load_trained", lambda *_: model.diffusion.network)
    result = known_model.with_network(model, predict=Limited(*limit)).segment(files, **known_model.BY_HEALTHY)
    assert whole.mask.any()
    np.testing.assert_array_equal(result.mask, whole.mask)
    assert [text[:27] for text in result.summary.warnings if "memory" in text] == warnings


def test_the_cpu_takes_a_scan_that_does_not_fit_on_the_student_s_device(student, whole, scans, monkeypatch):
    forward = StudentNet.forward

    def only_on_cpu(network, x):
        if x.device == META:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(network, x)

    monkeypatch.setattr(StudentNet, "forward", only_on_cpu)
    elsewhere = replace(student, student=replace(student.student, device=META))
    with pytest.warns(match="not enough memory on meta; computed on the CPU instead"):
        result = elsewhere.segment(files_of(scans))
    np.testing.assert_array_equal(result.mask, whole.mask)
    assert any("not enough memory on meta" in text for text in result.summary.warnings)
    assert result.summary.settings == whole.summary.settings  # it is complete for a run that has the memory


def test_a_scan_without_memory_fails_alone(student, scans, tmp_path, monkeypatch):
    def short_for_p1(files, *words):
        if "p1" in str(files["flair"]):
            raise MemoryError
        return read(files, *words)

    monkeypatch.setattr("anofpdm.segment.segment_scan.read", short_for_p1)
    report = known_model.segment_all(student, scans, tmp_path / "out")
    assert report.failed == {"p1": "not enough memory; end other programs, or use a machine with more"}
    assert list(report.segmented) == ["p2"]


def test_one_slice_without_memory_is_one_clear_line(student, scans, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        limit_student(patch, 0, MemoryError())
        report = known_model.segment_all(student, scans, tmp_path / "out")
        assert set(report.failed.values()) == {
            "not enough memory for a single slice; end other programs, or use a machine with more"
        }
        with pytest.raises(NotEnoughMemoryError):
            student.segment(files_of(scans))
    assert len(known_model.segment_all(student, scans, tmp_path / "out").segmented) == 2


def test_other_errors_are_not_taken_for_missing_memory(student, scans, tmp_path, monkeypatch):
    limit_student(monkeypatch, 0, RuntimeError("sizes of tensors must match"))
    with pytest.raises(RuntimeError, match="sizes"):
        known_model.segment_all(student, scans, tmp_path / "out")


@pytest.mark.parametrize("problem", PROBLEMS[:2], ids=lambda problem: str(problem)[:20])
def test_weights_that_do_not_fit_end_in_one_line(problem, student, scans, tmp_path, monkeypatch):
    def no_memory(*_words, **_options):
        raise problem

    monkeypatch.setattr("anofpdm.student.student.StudentNet.load_state_dict", no_memory)
    done = run("segment", student.folder, scans, "--out", tmp_path / "out", "--device", "cpu", code=1)
    assert done.stderr == "anofpdm: not enough memory; end other programs, or use a machine with more\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_small_limit_of_the_process_ends_in_one_line():
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))"
    command = "from anofpdm.cli.main import app; app(['segment', 'phantom-stroke', 'scan.nii.gz', '--out', 'out'])"
    done = subprocess.run([sys.executable, "-c", f"{limit}; {command}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("anofpdm: not enough memory: this process is limited to 700 MiB (ulimit -v)")
    assert done.stderr.count("\n") == 1
