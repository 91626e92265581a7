"""A student as an ONNX file, for those who run networks without torch."""

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from anofpdm.errors import ConfigError
from anofpdm.student.model import Student
from anofpdm.student.network import StudentNet
from anofpdm.util.files import write_atomically

OPSET = 18


class BothWays(nn.Module):
    """Of a slice and of its mirror image, as the student is asked."""

    def __init__(self, network: StudentNet):
        super().__init__()
        self.network = network

    def forward(self, slices: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] -> log odds of lesion [N, H, W], and of the whole slice being unhealthy [N]."""
        (odds, whole), (mirrored, whole_mirrored) = self.network(slices), self.network(slices.flip(-1))
        return (odds + mirrored.flip(-1)) / 2, (whole + whole_mirrored) / 2


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The exporter speaks of packages that nobody needs here."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def check_can_export() -> None:
    if importlib.util.find_spec("onnxscript") is None:
        raise ConfigError("exporting to ONNX needs two packages more; pip install 'anofpdm[onnx]'")


def export_onnx(student: Student, path: Path) -> None:
    """Input `slices` [n, C, size, size] in -1 to 1, outputs `log_odds` [n, size, size] and `slice_log_odds` [n]; what
    it needs to be used is in the file's metadata: modalities, neighbours, and what calls a slice unhealthy."""
    check_can_export()
    config = student.config
    network = BothWays(student.network).cpu().eval()
    example = torch.zeros(2, config.in_channels, config.size, config.size)
    with warnings.catch_warnings(), torch.no_grad(), _quietly():
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
    made = program.model_proto
    said = {"config": asdict(config), "calibration": student.calibration.said(), "teacher": student.teacher_sha256}
    for name, value in said.items():
        entry = made.metadata_props.add()
        entry.key, entry.value = f"anofpdm_{name}", json.dumps(value)
    write_atomically(path, made.SerializeToString())
