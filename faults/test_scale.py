"""Cohorts as large as BraTS21: the time of `prepare` grows with the number of patients, its memory does not."""

import os
import shutil
import time
from pathlib import Path

import nibabel as nib
import numpy as np

from faults.processes import RunningCommand, group_members, memory_kib
from tests import toys

SHAPE, SIZE = (28, 28, 20), 48  # the large cohort takes more disk space than MAX_MEMORY allows memory to grow
MAX_MEMORY = 1.3  # peak of the large cohort to that of the small one
MAX_TIME = 1.4  # seconds per patient, large cohort to small


def make_patients(folder: Path, count: int) -> Path:
    """FLAIR, T2 and a mask of each, in the BraTS21 layout; no two are equal."""
    affine = toys.affine_of(shape=SHAPE)
    brain = toys.head(SHAPE, 0, affine)
    lesions = [toys.ball(affine, SHAPE, (3, -2, 1), radius).astype(np.uint8) for radius in (-1, 4)]
    for number in range(count):
        rng, stem = np.random.default_rng(number), f"P{number:05d}"
        (folder / stem).mkdir(parents=True)
        for modality in ("flair", "t2"):
            voxels = np.where(brain > 0, brain + rng.integers(1, 30, SHAPE, dtype=np.int16), 0)
            nib.save(nib.Nifti1Image(voxels, affine), folder / stem / f"{stem}_{modality}.nii.gz")
        nib.save(nib.Nifti1Image(lesions[number % 2], affine), folder / stem / f"{stem}_seg.nii.gz")
    return folder


def measure_prepare(source: Path, folder: Path) -> dict[str, float]:
    before, start = os.times(), time.monotonic()
    running = RunningCommand("prepare", "brats21", source, folder, "--size", str(SIZE), "--workers", "2")
    peaks: dict[int, int] = {}
    while not running.ended:
        for pid in group_members(running.pid):
            peaks[pid] = max(memory_kib(pid, "VmHWM"), peaks.get(pid, 0))
        time.sleep(0.1)
    seconds, after = time.monotonic() - start, os.times()
    outcome = running.wait()
    assert outcome.code == 0, outcome
    assert len(peaks) >= 3, "a process and two workers"
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "CPU seconds": cpu, "peak KiB of all processes": sum(peaks.values()),
            "KiB of slices": (folder / "slices.npy").stat().st_size >> 10}  # fmt: skip


def test_prepare_many_patients(workspace, extent, record_property):
    """CPU time, which other processes disturb less, and wall-clock time, which includes the start."""
    measured = []
    for patients in extent.patients:
        source = make_patients(workspace / "scans", patients)
        measured.append(measure_prepare(source, workspace / "cohort"))
        for name, value in measured[-1].items():
            record_property(f"{name}, {patients} patients", value)
        for folder in (source, workspace / "cohort"):
            shutil.rmtree(folder)
    small, large = measured
    peak = small["peak KiB of all processes"]
    assert large["KiB of slices"] > (MAX_MEMORY - 1) * peak or not extent.measured, "the cohort is too small to tell"
    assert large["peak KiB of all processes"] <= MAX_MEMORY * peak
    for name in ("seconds", "CPU seconds"):
        assert large[name] / extent.patients[1] <= MAX_TIME * small[name] / extent.patients[0], name
