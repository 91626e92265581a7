"""Errors and warnings for the user: what is wrong, where, and what to do about it."""

import warnings


class AnoFPDMError(Exception):
    """An error that the user can fix. The command line prints it as one line, without a traceback."""


class ScanError(AnoFPDMError):
    """A scan that cannot be read, or whose geometry is ambiguous."""


class CohortError(AnoFPDMError):
    """An invalid folder of scans, label file, split file or prepared cohort."""


class ConfigError(AnoFPDMError):
    """An invalid configuration."""


class ModelError(AnoFPDMError):
    """A model folder that is missing, damaged or does not fit."""


class TrainingError(AnoFPDMError):
    """A training run that cannot start or continue."""


class MethodError(AnoFPDMError):
    """Noise levels, guidance strengths or slices that the method cannot handle."""


class CalibrationError(AnoFPDMError):
    """Too few labels to calibrate, or a calibration that is missing, damaged or of another model."""


class EvaluationError(AnoFPDMError):
    """Masks, maps or patients that cannot be compared with the ground truth."""


class NotEnoughMemoryError(AnoFPDMError):
    """Memory that does not suffice even for one slice."""


class OutputError(AnoFPDMError):
    """A file that cannot be written: disk full, or no permission."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, for example from a job scheduler."""


NO_ORIENTATION = "no orientation in the header"  # part of the warning of a scan whose left and right are unknown


class ScanWarning(UserWarning):
    """A usable scan with something about it to check."""


class ContrastWarning(ScanWarning):
    """An image that contradicts the modality it was given as; its mask is not rated."""


def warn_scan(text: str) -> None:
    warnings.warn(text, ScanWarning, stacklevel=3)
