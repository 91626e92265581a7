"""Calibration of the evidence methods with image-level labels of the validation split, stored by encoding."""

from dataclasses import replace
from pathlib import Path

from anofpdm.calibration.calibration_file import from_json, to_json
from anofpdm.calibration.fit_calibration import CalibrationConfig, gather_labelled
from anofpdm.choices import Signal, StrengthBy
from anofpdm.errors import CalibrationError, EvaluationError
from anofpdm.method.calibration import Calibration
from anofpdm.study.comparison.job import EvaluationJob
from anofpdm.study.comparison.methods import EvidenceMethod
from anofpdm.util.files import write_atomically
from anofpdm.util.progress import Progress


def calibrate_methods(job: EvaluationJob, methods: dict[str, EvidenceMethod]) -> dict[str, Calibration]:
    """By method; all of one encoding. Calibrations in the folder are kept: results were made with them."""
    options, signals = job.config.calibration, {name: calibrated_signal(method) for name, method in methods.items()}
    calibrations = {}
    for name, method in sorted(methods.items(), key=lambda item: signals[item[0]] == Signal.ERROR):
        by = StrengthBy.COSINE if method.paper_strength else options.strength_by
        path = calibration_path(job.out, method.encoding, by, signals[name])
        if not job.world.all_gather(path.is_file())[0]:
            _write_calibrations(job, replace(options, encoding=method.encoding, signal=signals[name]))
        calibration = from_json(path.read_text(), str(path))
        calibrations[name] = calibration if method.signal == Signal.AUTO else for_signal(calibration, method.signal)
    return calibrations


def for_signal(calibration: Calibration, signal: Signal) -> Calibration:
    """For maps of another signal. Strength, detectors and M_max hold; a threshold from healthy maps does not."""
    if signal == calibration.settings.signal:
        return calibration
    if calibration.strength_by != StrengthBy.COSINE:
        raise CalibrationError(f"the strength was chosen by maps of another signal; calibrate for {signal}")
    fitted = tuple(replace(fit, healthy_threshold=None) for fit in calibration.fitted)
    return replace(calibration, settings=replace(calibration.settings, signal=signal), fitted=fitted)


def calibration_path(out: Path, encoding: str, strength_by: str, signal: str) -> Path:
    by = "" if strength_by == StrengthBy.COSINE else f"-by-{strength_by}"
    of = "" if signal == Signal.ERROR else f"-of-{signal}"
    return out / f"calibration-{encoding}{by}{of}.json"


def calibrated_signal(method: EvidenceMethod) -> Signal:
    """Only thresholds from healthy slices depend on the signal; the paper's methods have none and share one file."""
    return Signal.ERROR if method.paper_strength else method.signal


def _write_calibrations(job: EvaluationJob, options: CalibrationConfig) -> None:
    """One pass of the network gives every rule for the strength, and the error signal in addition to the requested."""
    task, ours = f"Calibrating ({options.encoding})", options.strength_by
    progress: Progress = lambda _task, done, total, _note="": job.progress(task, done, total)  # noqa: E731
    gathered = gather_labelled(job.model, job.cohort, options, progress, job.world)
    with job.world.raise_in_all():
        if job.world.is_main:
            for signal, by in sorted({(Signal.ERROR, StrengthBy.COSINE), (Signal.ERROR, ours), (options.signal, ours)}):
                calibration = gathered.fit(replace(options, signal=signal, strength_by=by))
                _write_calibration(calibration_path(job.out, options.encoding, by, signal), calibration)


def _write_calibration(path: Path, calibration: Calibration) -> None:
    if not path.is_file():
        write_atomically(path, to_json(calibration).encode())
        return
    stored = from_json(path.read_text(), str(path))
    if (stored.strength, stored.settings) != (calibration.strength, calibration.settings):
        raise EvaluationError(f"{path}: a new calibration gives another strength or other levels; use another --out")
