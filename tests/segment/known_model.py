"""A model whose answers are known, and scans for it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from anofpdm.labels import HEALTHY
from anofpdm.method.calibration import Calibration, ContextFit
from anofpdm.method.detection import Accuracy, CurveDetector
from anofpdm.method.evidence import EvidenceSettings
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.segment.engines import Diffusion
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.many import BatchSegmentation
from anofpdm.segment.model import Model
from anofpdm.segment.outputs import SUMMARY
from tests import dicom_toys, toys

SHAPE, SIZE = (40, 44, 36), 64
BRAIN, LESION = 1.0, 0.0  # of network slices, in [-1, 1]


class Rounding:
    """Denoiser of slices with three values; healthy slices have no LESION. Elementwise, exact at low noise."""

    device, precision = torch.device("cpu"), "fp32"

    def __call__(self, x, t, labels):
        schedule = NoiseSchedule.linear()
        signal, spread = schedule.signal_and_noise(t, x)
        value = x / signal
        tissue = torch.where(value > (BRAIN + LESION) / 2, BRAIN, LESION)
        tissue = torch.where((labels == HEALTHY)[:, None, None, None], torch.full_like(x, BRAIN), tissue)
        clean = torch.where(value < (LESION - 1) / 2, -1.0, tissue)
        return (x - signal * clean) / spread


def calibration(**changes):
    levels = (0, 20, 40)
    detector = CurveDetector(np.full(3, -10.0), np.ones(3), np.ones(3), 0.0, 1.0)
    accuracy = Accuracy(1.0, 1.0)
    values = {
        "settings": EvidenceSettings(levels, (0,)), "strength": 0.0, "best_strength": 0.0, "cut": 0.9,
        "divergence_max": 0.1, "detector": "curve", "cosine_accuracy": accuracy, "candidates": (),
        "accuracy_ratio": 0.98, "n_healthy": 1, "n_unhealthy": 1, "n_patients": 2,
        "modalities": ("flair", "t2"), "checkpoint_sha256": "same",
        "fitted": (ContextFit(0.0, detector, accuracy, 0.5),),
    }  # fmt: skip
    return Calibration(**{**values, **changes})


def known_model(**changes):
    trained = TrainedModel(Path("nowhere"), Rounding(), ("flair", "t2"), SIZE, "same")  # type: ignore[arg-type]
    return Model(Diffusion(trained, calibration(**changes), "0" * 64), None)


def with_network(model, **changes):
    network = replace(model.diffusion.network, **changes)
    return replace(model, diffusion=replace(model.diffusion, network=network))


def segment_all(model, scans, out, files=(), *, overwrite=False, **options):
    """Many scans: targets, or what they are found in. Returns the report."""
    request = model.request(**options)
    targets = scans if isinstance(scans, list) else find_targets([str(scans)], request.inputs, raw=request.raw)
    return BatchSegmentation(request, targets, out, files, overwrite=overwrite).run()


def save_dicom(folder, series, **tags):
    """A DICOM study: description to voxels; series are numbered from 3."""
    for number, (description, voxels) in enumerate(series.items(), start=3):
        dicom_toys.Series(voxels, SeriesNumber=number, SeriesDescription=description, **tags).save(
            folder / f"s{number}"
        )
    return folder


def summary_of(folder):
    return json.loads((folder / SUMMARY).read_text())


BY_HEALTHY = {"threshold": "healthy", "smallest": 0, "context": 0.0, "peak": 0.0}  # options of Model.segment


def scan_files(folder, axes="LPS", spacing=(1.0, 1.0, 1.0), centre=(6.0, -5.0, 4.0), radius=7.0, name="p"):
    """A head of one value with a darker ball in it; returns files, the ball and the affine."""
    affine = toys.affine_of(axes, spacing, shape=SHAPE)
    head = toys.ball(affine, SHAPE, (0, 0, 0), 17)
    lesion = toys.ball(affine, SHAPE, centre, radius)
    voxels = np.where(lesion, 50, np.where(head, 100, 0)).astype(np.int16)
    scales = {"flair": 1, "t2": 2}  # the same after normalisation; equal images are refused
    files = {m: toys.save(folder / f"{name}_{m}.nii.gz", scale * voxels, affine) for m, scale in scales.items()}
    return files, lesion, affine
