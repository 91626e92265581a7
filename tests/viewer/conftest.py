"""A model that knows nothing but answers, a server in a process of its own, and clients for it."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import toys

SHAPE = (32, 36, 24)


def calibrated(folder: Path, levels: int) -> Path:
    """A model whose work can be made longer: more levels, the same answer. Half of the slices are called unhealthy."""
    import torch

    from anofpdm.method.calibration import CONTEXT_MM, Calibration, Fitted, to_json
    from anofpdm.method.detection import Accuracy, CurveDetector
    from anofpdm.method.evidence import Settings
    from anofpdm.network.predictor import load_trained

    trained = load_trained(folder, torch.device("cpu"))
    accuracy = Accuracy(1.0, 1.0)
    detector = CurveDetector(np.full(levels, -10.0), np.ones(levels), np.zeros(levels), 1.0, 1.0)
    said = Calibration(
        settings=Settings(tuple(range(0, 10 * levels, 10)), (0,)), strength=1.0, best_strength=1.0, cut=2.0,
        divergence_max=0.1, detector="cosine", cosine_accuracy=accuracy, candidates=(), accuracy_ratio=0.98,
        n_healthy=1, n_unhealthy=1, n_patients=2, modalities=("flair", "t2"), checkpoint_sha256=trained.sha256,
        fitted=tuple(Fitted(mm, detector, accuracy, 0.5) for mm in (0.0, CONTEXT_MM)),
    )  # fmt: skip
    (folder / "calibration.json").write_text(to_json(said))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Done with a scan in a moment."""
    folder = untrained(tmp_path_factory.mktemp("quick"))
    return calibrated(folder, 4)


@pytest.fixture(scope="session")
def slow_model(model, tmp_path_factory):
    """Takes a while, so that it can be met in the middle."""
    folder = tmp_path_factory.mktemp("slow") / "model"
    shutil.copytree(model, folder)
    return calibrated(folder, 99)


def untrained(folder: Path) -> Path:
    import torch

    from anofpdm.network import checkpoint
    from anofpdm.network.unet import UNet, preset

    torch.manual_seed(0)
    network = UNet(preset("tiny", 2))
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    said = {"format": checkpoint.FORMAT, "task": "guided", "modalities": ["flair", "t2"], "size": 32, "step": 0}
    (folder / "model").mkdir()
    checkpoint.save_model(folder / "model", network.state_dict(), {**said, "network": {**network.config.__dict__}})
    return folder / "model"


@pytest.fixture(scope="session")
def scan(tmp_path_factory):
    return scan_files(tmp_path_factory.mktemp("scan"), 0)


def scan_files(folder: Path, seed: int) -> dict[str, Path]:
    """FLAIR and T2 of a small head; no two seeds are alike."""
    return {
        name: toys.save(folder / f"{name}.nii.gz", toys.head(SHAPE, 10 * seed + number))
        for number, name in enumerate(("flair", "t2"))
    }
