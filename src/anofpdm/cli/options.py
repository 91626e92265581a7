"""Options shared by several commands."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from anofpdm.choices import Engine, Precision, Raw, WeightFormat

if TYPE_CHECKING:
    import torch


def _shipped_or_folder(name: str) -> Path:
    from anofpdm.models import registry

    return _find_model(registry.model_folder, name)


def _writable(name: str) -> Path:
    from anofpdm.models import registry

    return _find_model(registry.writable_folder, name)


def _find_model(find: Callable[[str], Path], name: str) -> Path:
    from anofpdm.errors import ModelError

    try:
        return find(name)
    except ModelError as problem:
        raise BadParameter(str(problem)) from None


SHIPPED = "Folder of a trained and calibrated model, or the name of one that ships (anofpdm models)."
Model = Annotated[Path, Argument(parser=_shipped_or_folder, metavar="MODEL", help=SHIPPED)]
OptionalModel = Annotated[Path | None, Argument(parser=_shipped_or_folder, metavar="[MODEL]", help=SHIPPED)]
OptionalModelOption = Annotated[
    Path | None, Option("--model", parser=_shipped_or_folder, metavar="MODEL", help=SHIPPED)
]
OwnModel = Annotated[
    Path, Argument(parser=_writable, metavar="MODEL", help="Folder of a trained model; results are saved in it.")
]
FromModel = Annotated[
    Path | None,
    Option(
        "--from",
        parser=_shipped_or_folder,
        metavar="MODEL",
        help="Fine-tune: start with the weights of this model, a folder or the name of one that ships.",
    ),
]


def worker_count(workers: int) -> int:
    from anofpdm.util.workers import cpu_cores

    return workers or cpu_cores()


Workers = Annotated[int, Option(min=0, callback=worker_count, help="Worker processes; 0 means one per CPU core.")]
Seed = Annotated[int, Option(min=0, max=2**63 - 1, help="Random seed.")]
Score = Annotated[str, Option(help="Scored modalities, e.g. flair,t2. Default: all.")]
Strengths = Annotated[str, Option(help="Candidate guidance strengths, separated by commas.")]
STRENGTHS = "0,1,2,3,4,5,8,12,20,30"
PRECISION_HELP = "Arithmetic of the diffusion model. auto: fp16 on a GPU, fp32 on a CPU."
PrecisionOption = Annotated[Precision, Option(help=PRECISION_HELP)]
Weights = Annotated[WeightFormat, Option(help="Format of the saved weights. float16: half the size; int8: a quarter.")]
BATCH_HELP = "Slices per batch, halved when memory runs out. Default: 50 on a GPU, 8 on a CPU."
Batch = Annotated[int | None, Option(min=1, help=BATCH_HELP)]
PreparedCohort = Annotated[Path, Argument(help="Prepared cohort. Its lesion masks are not used.")]
LabelTable = Annotated[
    Path | None,
    Option(
        help="CSV file (subject,slice,label) of image-level labels. Default: SRC/labels.csv (nifti), or labels derived "
        "from lesion masks (the other layouts)."
    ),
]
KeepIsolated = Annotated[
    bool,
    Option(
        "--keep-isolated",
        help="Keep labels of the CSV file that differ from those of both adjacent slices. By default they are excluded "
        "from training and validation as probable errors, where slices are at most 3 mm apart.",
    ),
]
FillLabels = Annotated[
    float,
    Option(
        min=0,
        metavar="MM",
        help="Give an unlabelled training or validation slice the label of the labelled slices below and above it, if "
        "they agree and are at most this far apart; e.g. 20 where every tenth slice of 2 mm is labelled. 0: off.",
    ),
]
Modalities = Annotated[
    str, Option(help="Modalities to use, in this order, e.g. flair,t1. Default: all that are found.")
]
RAW, DIFFUSION = "Raw studies", "Diffusion engine only"
PreparedRaw = Annotated[
    Raw,
    Option(help="Register and skull-strip the series of a scan first. auto: where they have different grids."),
]
EngineOption = Annotated[
    Engine,
    Option(metavar="ENGINE", help="Network: student, diffusion, or auto, the student if the model has one."),
]
RawOption = Annotated[
    Raw,
    Option(help="Register and skull-strip the series of a scan first. auto: where they need it.", rich_help_panel=RAW),
]
DiffusionBatch = Annotated[int | None, Option(min=1, help=BATCH_HELP, rich_help_panel=DIFFUSION)]
DiffusionPrecision = Annotated[Precision, Option(help=PRECISION_HELP, rich_help_panel=DIFFUSION)]
Smallest = Annotated[
    int | None,
    Option(min=0, metavar="PIXELS", help="Drop components of at most this size (of 128 x 128). Default: 40."),
]


def _inside_0_and_1(probability: float | None) -> float | None:
    if probability is not None and not 0 < probability < 1:
        raise BadParameter(f"{probability:g} is not above 0 and below 1")
    return probability


ThresholdProbability = Annotated[
    float | None,
    Option(
        callback=_inside_0_and_1,
        metavar="0..1",
        help="Lesion probability from which a pixel belongs to the mask (student engine). Default: 0.5, lower in faint "
        "and in small lesions.",
    ),
]


def _device_name(device: str) -> str:
    """A typo is a usage error, before torch is imported."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise BadParameter(f"{device!r}: use auto, cpu, cuda, cuda:1 or mps")
    return device


Device = Annotated[str, Option(callback=_device_name, help="auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")]
Overwrite = Annotated[
    bool,
    Option(
        "--overwrite", help="Replace results of another model, other options or another input, instead of refusing."
    ),
]


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_numbers(text: str, option: str, lowest: int = 0) -> tuple[float, ...]:
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise BadParameter(f"{text!r}: write numbers, e.g. 0,2,4", param_hint=option) from None
    if not all(lowest <= number < float("inf") for number in numbers):
        raise BadParameter(f"{text!r}: numbers must be at least {lowest}", param_hint=option)
    return numbers


def resolve_device(name: str) -> "torch.device":
    """The device of that name; where torchrun started several processes, the GPU of this one."""
    from anofpdm.errors import ConfigError
    from anofpdm.util import distributed

    try:
        device = distributed.resolve_device(name)
    except ConfigError as problem:
        raise ConfigError(f"--{problem}") from None
    return distributed.set_local_device(device)
