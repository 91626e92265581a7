"""Export of a student to ONNX, to run it without torch."""

import importlib.util
import json
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

from anofpdm.errors import ConfigError
from anofpdm.export.whole_scan import BothPasses
from anofpdm.student.student import Student
from anofpdm.util.artifacts import to_plain
from anofpdm.util.files import write_atomically

OPSET = 18


class MirrorMean(BothPasses):
    """Mean logits of each slice and its mirror image: what masks are decided on."""

    def forward(self, slices: Tensor) -> tuple[Tensor, Tensor]:
        pixel_logits, slice_logits = super().forward(slices)
        return pixel_logits.mean(dim=1), slice_logits.mean(dim=1)


def check_can_export() -> None:
    if importlib.util.find_spec("onnxscript") is None:
        raise ConfigError("ONNX export needs additional packages; run: pip install 'anofpdm[onnx]'")


def export_onnx(student: Student, path: Path) -> None:
    """Input `slices` [n, C, size, size] in -1 to 1, outputs `log_odds` [n, size, size] and `slice_log_odds` [n]. The
    file's metadata hold the modalities, the neighbours and the calibration."""
    check_can_export()
    config = student.config
    network = MirrorMean(student.network).cpu().eval()
    example = torch.zeros(2, config.in_channels, config.size, config.size)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # no messages about optional packages
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["slices"],
            output_names=["log_odds", "slice_log_odds"],
            dynamic_shapes={"slices": {0: torch.export.Dim("n", min=1)}},
            verbose=False,
        )
    student.network.to(student.device)
    assert program is not None
    exported = program.model_proto
    metadata = {"config": config, "calibration": student.calibration, "teacher": student.teacher_sha256}
    for name, value in metadata.items():
        entry = exported.metadata_props.add()
        entry.key, entry.value = f"anofpdm_{name}", json.dumps(to_plain(value))
    write_atomically(path, exported.SerializeToString())
