"""Options shared by several commands."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.options import Precision, WeightFormat

if TYPE_CHECKING:
    import torch


def _shipped_or_folder(name: str) -> Path:
    from anofpdm.models.registry import model_folder

    return _parse(name, model_folder)


def _writable(name: str) -> Path:
    from anofpdm.models.registry import writable_folder

    return _parse(name, writable_folder)


def _parse(name: str, find: Callable[[str], Path]) -> Path:
    from anofpdm.errors import ModelError

    try:
        return find(name)
    except ModelError as problem:
        raise typer.BadParameter(str(problem)) from None


SHIPPED = "Folder of a trained and calibrated model, or the name of one that ships (anofpdm models)."
Model = Annotated[Path, typer.Argument(parser=_shipped_or_folder, metavar="MODEL", help=SHIPPED)]
OptionalModel = Annotated[Path | None, typer.Argument(parser=_shipped_or_folder, metavar="[MODEL]", help=SHIPPED)]
OptionalModelOption = Annotated[
    Path | None, typer.Option("--model", parser=_shipped_or_folder, metavar="MODEL", help=SHIPPED)
]
OwnModel = Annotated[
    Path, typer.Argument(parser=_writable, metavar="MODEL", help="Folder of a trained model; results are saved in it.")
]
FromModel = Annotated[
    Path | None,
    typer.Option(
        "--from",
        parser=_shipped_or_folder,
        metavar="MODEL",
        help="Fine-tune: start with the weights of this model, a folder or the name of one that ships.",
    ),
]
Workers = Annotated[int, typer.Option(min=0, help="Worker processes; 0 means one per CPU core.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Score = Annotated[str, typer.Option(help="Scored modalities, e.g. flair,t2. Default: all.")]
Strengths = Annotated[str, typer.Option(help="Candidate guidance strengths, separated by commas.")]
STRENGTHS = "0,1,2,3,4,5,8,12,20,30"
PrecisionOption = Annotated[
    Precision, typer.Option(help="Arithmetic of the diffusion model. auto: fp16 on a GPU, fp32 on a CPU.")
]
Weights = Annotated[
    WeightFormat, typer.Option(help="Format of the saved weights. float16: half the size; int8: a quarter.")
]
Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Slices per batch, halved when memory runs out. Default: 50 on a GPU, 8 on a CPU."),
]
KeepIsolated = Annotated[
    bool,
    typer.Option(
        "--keep-isolated",
        help="Use labels of the table that are unlike those of both adjacent slices. By default they are left out of "
        "training and validation, as probable errors, where slices are thin (up to 3 mm).",
    ),
]
FillLabels = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="MM",
        help="Training and validation slices without a label, between two that have the same one and are at most this "
        "far apart, get it, too; e.g. 20 where every tenth slice of 2 mm is labelled. 0: none.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace results of another model, other options or another input, instead of refusing."
    ),
]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")]


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_numbers(text: str, option: str, lowest: int = 0) -> tuple[float, ...]:
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write numbers, e.g. 0,2,4", param_hint=option) from None
    if not all(lowest <= number < float("inf") for number in numbers):
        raise typer.BadParameter(f"{text!r}: numbers must be at least {lowest}", param_hint=option)
    return numbers


def worker_count(workers: int) -> int:
    from anofpdm.util.workers import cpu_cores

    return workers or cpu_cores()


def resolve_device(device: str) -> "torch.device":
    """The device of that name; an error names the option."""
    from anofpdm.errors import ConfigError
    from anofpdm.util import distributed

    try:
        return distributed.resolve_device(device)
    except ConfigError as problem:
        raise ConfigError(f"--{problem}") from None
