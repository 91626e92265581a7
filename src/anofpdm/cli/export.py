"""anofpdm export: a model's student, for other programs."""

from pathlib import Path
from typing import Annotated

from typer import Option

from anofpdm.choices import ExportFormat
from anofpdm.cli.options import Model


def export(
    model: Model,
    out: Annotated[Path, Option(help="File (onnx) or new folder (monai).")],
    to: Annotated[ExportFormat, Option("--format", help="onnx, or monai: a MONAI bundle.")],
) -> None:
    """Export the student of a model to run without this package."""
    import torch

    from anofpdm.errors import ModelError
    from anofpdm.segment.model import load

    loaded = load(model, torch.device("cpu"))
    if loaded.student is None:
        raise ModelError(loaded.student_problem or f"{model}: no student; train one with `anofpdm distill`")
    if to is ExportFormat.ONNX:
        from anofpdm.export.onnx import export_onnx

        export_onnx(loaded.student, out)
    else:
        from anofpdm.export.monai_bundle import BundleSource, export_monai

        export_monai(BundleSource(loaded.student, model), out)
    print(f"{'ONNX file' if to is ExportFormat.ONNX else 'MONAI bundle'} written to {out}")
