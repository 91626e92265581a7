"""A student in ONNX predicts what it predicts in torch."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.segment.model import load
from anofpdm.student.student_network import mirror_passes
from anofpdm.util.artifacts import to_plain

NAME = "phantom-stroke"


def test_onnx_predicts_the_same(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "student.onnx"
    done = CliRunner().invoke(app, ["export", NAME, "--format", "onnx", "--out", str(file)])
    assert done.exit_code == 0, done.output
    student = load(NAME, "cpu").student
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    shape = (student.config.in_channels, student.config.size, student.config.size)
    slices = np.random.default_rng(4).uniform(-1, 1, (12, *shape)).astype(np.float32)
    for count in (1, 12):
        logits, slice_logits = session.run(None, {"slices": slices[:count]})
        with torch.no_grad():
            expected = mirror_passes(student.network, torch.from_numpy(slices[:count]))
        np.testing.assert_allclose(logits, expected[0].mean(dim=1), atol=1e-3)
        np.testing.assert_allclose(slice_logits, expected[1].mean(dim=1), atol=1e-3)
    payload = session.get_modelmeta().custom_metadata_map
    assert json.loads(payload["anofpdm_config"])["modalities"] == list(student.config.modalities)
    assert json.loads(payload["anofpdm_calibration"]) == to_plain(student.calibration)
