"""Options that take one of a few words. Free of heavy imports: the command line lists them in its help."""

from enum import StrEnum
from typing import TypeVar

from anofpdm.errors import ConfigError

Option = TypeVar("Option", bound=StrEnum)


class Engine(StrEnum):
    """What draws the masks. `auto`: the student, where the model has one."""

    AUTO = "auto"
    DIFFUSION = "diffusion"
    STUDENT = "student"


class Encoding(StrEnum):
    """How the next noisier slice is made: by DDIM inversion, or with fresh noise at every level."""

    DDIM = "ddim"
    DDPM = "ddpm"


class Signal(StrEnum):
    """What is averaged over noise levels into the anomaly map. `auto`: chosen in calibration, by image-level labels."""

    AUTO = "auto"
    ERROR = "error"  # S_t, as in the paper
    GRADIENT = "gradient"
    GRADIENT_WEIGHTED = "gradient-weighted"
    GRADIENT_ABOVE = "gradient-above"  # without the lowest tenth of the levels
    AGREEMENT = "agreement"  # geometric mean of error and gradient-above


class Detector(StrEnum):
    """What decides whether a slice is unhealthy. `calibrated`: the more accurate one."""

    CALIBRATED = "calibrated"
    COSINE = "cosine"
    CURVE = "curve"
    NONE = "none"


class Threshold(StrEnum):
    """Of the anomaly map: a quantile (the paper), a percentile of healthy slices, or their geometric mean."""

    QUANTILE = "quantile"
    HEALTHY = "healthy"
    BOTH = "both"


class StrengthBy(StrEnum):
    """What chooses the guidance strength: the cosine of the error curves (the paper), or the maps."""

    COSINE = "cosine"
    MAP = "map"


class WeightFormat(StrEnum):
    """Of saved weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"  # with a scale per output channel


class Precision(StrEnum):
    """Of the network's arithmetic. `auto`: fp16 on a GPU, fp32 on a CPU."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Layout(StrEnum):
    """Folder layouts that `prepare` reads."""

    BRATS21 = "brats21"
    ATLAS2 = "atlas2"
    BIDS = "bids"
    NIFTI = "nifti"


class PhantomKind(StrEnum):
    """Synthetic scans: tumours in four modalities, or strokes in T1."""

    TUMOUR = "tumour"
    STROKE = "stroke"


class Preset(StrEnum):
    """Size of the network."""

    TINY = "tiny"
    COMPACT = "compact"
    SMALL = "small"
    PAPER = "paper"


class Task(StrEnum):
    """What a network is trained for: the method (guided), or one of the methods it is compared with."""

    GUIDED = "guided"
    UNCONDITIONAL = "unconditional"
    HEALTHY = "healthy"
    CLASSIFIER = "classifier"


class Noise(StrEnum):
    """Noise that slices are trained with. Simplex noise is for the AnoDDPM baseline."""

    GAUSSIAN = "gaussian"
    SIMPLEX = "simplex"


class Raw(StrEnum):
    """Whether series of a scan are registered and stripped first. `auto`: where they need it."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Template(StrEnum):
    """Space that scans are brought to."""

    NONE = "none"
    MNI152 = "mni152"


class ExportFormat(StrEnum):
    """Formats that a student is exported to."""

    ONNX = "onnx"
    MONAI = "monai"


class AnalysisLevel(StrEnum):
    """Of a BIDS App."""

    PARTICIPANT = "participant"
    GROUP = "group"


class Split(StrEnum):
    """Part of a cohort."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


def parse(kind: type[Option], word: str) -> Option:
    """The option of that name, for callers who pass plain strings."""
    try:
        return kind(word)
    except ValueError:
        raise ConfigError(f"unknown {kind.__name__.lower()} {word!r}; choose one of {', '.join(kind)}") from None
