"""Names that the command line lists. Free of heavy imports."""

from enum import StrEnum


class Setup(StrEnum):
    """Slices that a method is scored on: those with a lesion, without a detector; or all, with its detector."""

    UNHEALTHY = "unhealthy"
    MIXED = "mixed"


class MethodChoice(StrEnum):
    """Methods that can be evaluated. `all`: every method whose models are given."""

    ALL = "all"
    ANODDPM_GAUSSIAN = "anoddpm-gaussian"
    ANODDPM_SIMPLEX = "anoddpm-simplex"
    DDIM_CLASSIFIER = "ddim-classifier"
    DDIM_CLASSIFIER_FREE = "ddim-classifier-free"
    CG_CDM = "cg-cdm"
    ANOFPDM_DDIM = "anofpdm-ddim"
    ANOFPDM_DDPM = "anofpdm-ddpm"
    ANOFPDM_DDIM_LAST = "anofpdm-ddim-last"
    ANOFPDM_DDPM_LAST = "anofpdm-ddpm-last"
    GRADIENT = "gradient"
    GRADIENT_LAST = "gradient-last"
    GRADIENT_WEIGHTED = "gradient-weighted"
    GRADIENT_ABOVE = "gradient-above"
    ANOFPDM_CURVE = "anofpdm-curve"
    ANOFPDM_HEALTHY = "anofpdm-healthy"
    ANOFPDM_CONTEXT = "anofpdm-context"
    ANOFPDM_PEAK = "anofpdm-peak"
    ANOFPDM_BY_MAP = "anofpdm-by-map"
    ANOFPDM_OURS = "anofpdm-ours"
    ANOFPDM_AGREEMENT = "anofpdm-agreement"
    ANOFPDM_DEFAULT = "anofpdm-default"
    ANOFPDM_STUDENT = "anofpdm-student"


DEFAULT_METHODS = (MethodChoice.ANOFPDM_DDIM, MethodChoice.ANOFPDM_OURS, MethodChoice.ANOFPDM_AGREEMENT)
SETUPS = tuple(Setup)
EMPTY = "all-empty"  # the row that predicts nothing
MODEL_TASKS = {  # networks of comparison methods: training task and noise
    "healthy": ("healthy", "gaussian"),
    "simplex": ("healthy", "simplex"),
    "unconditional": ("unconditional", "gaussian"),
    "classifier": ("classifier", "gaussian"),
}
