"""What can go wrong, in words for the person at the keyboard: what, where, and what to do about it."""


class AnoFPDMError(Exception):
    """A mistake that the user can mend. The command line prints it as one line, without a traceback."""


class ScanError(AnoFPDMError):
    """A scan that cannot be read, or whose place in space is unclear."""


class CohortError(AnoFPDMError):
    """A folder of scans, a label file, a split or a prepared cohort that is not what it should be."""


class ConfigError(AnoFPDMError):
    """Settings that cannot be."""


class ModelError(AnoFPDMError):
    """A model folder that is missing, damaged, or not the one that is needed."""


class TrainingError(AnoFPDMError):
    """A training run that cannot begin or cannot go on."""


class MethodError(AnoFPDMError):
    """Levels, strengths or slices that the method cannot work with."""


class CalibrationError(AnoFPDMError):
    """Labels that do not suffice to calibrate, or a calibration that is missing, damaged or another model's."""


class EvaluationError(AnoFPDMError):
    """Masks, maps or patients that cannot be compared with the truth."""


class OutputError(AnoFPDMError):
    """A file that cannot be written: a full disk, a folder that may not be written to."""


class Terminated(KeyboardInterrupt):
    """A polite kill (SIGTERM): Ctrl-C by a scheduler."""


class ScanWarning(UserWarning):
    """A scan that can be used, though something about it deserves a look."""
