"""Distillation: a teacher pseudo-labels the training split, a student is trained on it, calibrated and saved."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.special import expit

from anofpdm import __version__
from anofpdm.calibration.fit_calibration import check_model_fits, slice_positions
from anofpdm.choices import WeightFormat
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import CalibrationError, ConfigError, TrainingError
from anofpdm.labels import HEALTHY, UNHEALTHY, estimated_note
from anofpdm.method.calibration import Calibration
from anofpdm.method.gather import batch_for
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.weight_format import restore, store
from anofpdm.student.edges import move_edges
from anofpdm.student.fit_detector import fit_student_calibration
from anofpdm.student.predict import predict_passes
from anofpdm.student.student import FOLDER, Student, save_student
from anofpdm.student.student_batches import PseudoLabels
from anofpdm.student.student_network import (
    StudentConfig,
    StudentNet,
    cohort_pixels,
    default_neighbours_mm,
    neighbour_rows,
)
from anofpdm.student.targets import CACHE, HASHED, DiffusionTeacher, fingerprint, pseudo_label
from anofpdm.student.train_student import StudentTrainingConfig, train_student
from anofpdm.student.typical import describe_cohort, fit_typical
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, translate_write_errors, write_atomically
from anofpdm.util.progress import Progress, portion, silent


@dataclass(frozen=True)
class DistillConfig:
    training: StudentTrainingConfig = field(default_factory=StudentTrainingConfig)
    modalities: tuple[str, ...] | None = None  # none given: those that the teacher's masks are based on
    optional: tuple[str, ...] = ()  # those of them that a scan may lack
    students: int = 1  # more: the one that is saved learns from the mean prediction of as many others
    width: int = 32
    neighbours_mm: tuple[float, ...] | None = None  # none given: one slice on each side
    weights: WeightFormat = WeightFormat.FLOAT32  # of the saved student
    batch: int | None = None  # of the teacher; none given: by device


def distill(
    model: TrainedModel,
    calibration: Calibration,
    cohort: Cohort,
    config: DistillConfig,
    world: World | None = None,
    progress: Progress = silent,
) -> Student | None:
    """Train a student and save it in the model's folder. Returned by the main process; None in the others."""
    world = world or World()
    check_model_fits(model, cohort)
    teacher = DiffusionTeacher(model, calibration, config.batch or batch_for(model.device))
    network_config = _student_config(teacher, cohort, config)
    folder, rows, student = model.folder / FOLDER, cohort.rows("train"), None
    with _locked_folder(folder, world):
        masks = pseudo_label(teacher, cohort, rows, folder, world, progress)
        if masks is not None:
            network = _train(teacher, cohort, network_config, masks, config, progress)
            # Calibrate the weights as they will be read back.
            network.load_state_dict(restore(store(network.state_dict(), config.weights)))
            numbers = describe_cohort(cohort, rows, network_config.modalities)
            student = Student(
                network,
                fit_student_calibration(network, cohort, model.device),
                model.sha256,
                model.device,
                expects=model.expects,
                foreground=calibration.foreground,
                typical=fit_typical(numbers, network_config.modalities, config.optional),
            )
            _save(teacher, cohort, config, student, masks)
        world.all_gather(None)  # the other processes wait for the main one
    return student


def _student_config(teacher: DiffusionTeacher, cohort: Cohort, config: DistillConfig) -> StudentConfig:
    rows = cohort.rows("train")
    if not len(rows):
        raise TrainingError(f"{cohort.path}: no slice in its training split to train a student on")
    if not {HEALTHY, UNHEALTHY} <= set(cohort.assumed_labels[cohort.rows("val")].tolist()):
        raise CalibrationError(
            f"{cohort.path}: a student is calibrated on healthy and unhealthy slices of the val split, "
            "and one kind is missing there; label some, or prepare with another --split"
        )
    used = {*teacher.modalities, *config.optional}
    modalities = config.modalities or tuple(name for name in cohort.modalities if name in used)
    if unknown := [name for name in (*modalities, *config.optional) if name not in cohort.modalities]:
        raise TrainingError(
            f"{cohort.path}: has no {', '.join(unknown)}; its modalities are {', '.join(cohort.modalities)}"
        )
    neighbours_mm = config.neighbours_mm
    if neighbours_mm is None:
        neighbours_mm = default_neighbours_mm(slice_positions(cohort, rows))
    if config.training.thick_slices and not (len(neighbours_mm) == 2 and neighbours_mm[0] == -neighbours_mm[1] < 0):
        raise ConfigError(
            "--thick-slices needs a student with one neighbouring slice below and one above; use --neighbours auto"
        )
    return StudentConfig(modalities, cohort.slices.shape[-1], neighbours_mm, config.width, optional=config.optional)


def _save(
    teacher: DiffusionTeacher, cohort: Cohort, config: DistillConfig, student: Student, masks: np.ndarray
) -> None:
    counts = {"slices": len(masks), "with_lesion": int((masks > 127).any((1, 2)).sum())}
    provenance = {
        "anofpdm": __version__,
        "calibration": fingerprint(asdict(teacher.calibration)),
        "cohort": {name: getattr(cohort.manifest, name) for name in HASHED},
        "precision": teacher.model.predict.precision,
        "config": asdict(config),
    }
    save_student(teacher.model.folder, student, provenance | counts, config.weights)
    card = student_card(student, config.training, **counts)
    write_atomically(teacher.model.folder / FOLDER / "README.md", card.encode())


@contextlib.contextmanager
def _locked_folder(folder: Path, world: World) -> Iterator[None]:
    """Lock the student's folder for this run, and remove temporary files of killed ones."""
    with translate_write_errors(folder):
        folder.mkdir(exist_ok=True)
    with folder_lock(folder, needed=world.is_main):
        if world.is_main:
            for subfolder in (folder, *folder.glob(f"{CACHE}/*")):
                remove_temporary_files(subfolder)
        world.all_gather(None)  # no process writes there before the clean-up
        yield


def _train(
    teacher: DiffusionTeacher,
    cohort: Cohort,
    network_config: StudentConfig,
    masks: np.ndarray,
    config: DistillConfig,
    progress: Progress,
) -> StudentNet:
    """The student, after those from whose mean prediction it learns."""
    if not (masks > 127).any():
        raise TrainingError(
            "the teacher found no lesion in the whole training split; calibrate it first, or train it longer"
        )
    rows, names, device = cohort.rows("train"), network_config.modalities, teacher.model.device
    optional = {name: names.index(name) for name in network_config.optional}
    data = PseudoLabels(
        cohort_pixels(cohort, rows, names),
        # Edges are moved by what the pseudo-labels are based on; with further modalities, masks lose a point.
        move_edges(masks, cohort_pixels(cohort, rows, teacher.modalities)),
        neighbour_rows(slice_positions(cohort, rows), network_config.neighbours_mm),
        cohort.labels[rows],
        [*optional.values()],
        [channel for name, channel in optional.items() if name not in teacher.modalities],
    )
    others = config.students if config.students > 1 else 0
    share, minutes = 1 / (others + 1), config.training.minutes
    training = replace(config.training, minutes=None if minutes is None else minutes * share)
    mean = np.zeros(masks.shape, np.float32)
    for number in range(others):
        seeded, part = replace(training, seed=training.seed + 1 + number), portion(progress, number * share, share)
        network = train_student(network_config, data, seeded, device, part)
        mean += expit(predict_passes(network, data.pixels, data.neighbours, device)[0].mean(axis=1)) / others
    if others:
        mean[data.labels == HEALTHY] = 0
        data = replace(data, masks=np.round(255 * mean).astype(np.uint8))
    return train_student(network_config, data, training, device, portion(progress, others * share, share))


def student_card(student: Student, training: StudentTrainingConfig, slices: int, with_lesion: int) -> str:
    config, calibration = student.config, student.calibration
    limits = [f"{training.steps} steps"] if training.steps else []
    limits += [f"{training.minutes:g} minutes"] if training.minutes else []
    offsets = ", ".join(f"{offset:g}" for offset in config.neighbours_mm)
    counted = ", by a nominal distance: slices are counted" if student.expects.nominal_slice_mm else ""
    estimated = estimated_note(calibration.n_estimated)
    rating = (
        "accuracy on other patients unknown, as all slices are of one patient"
        if math.isnan(calibration.accuracy)
        else f"accuracy {calibration.accuracy:.3f} and AUC {calibration.auc:.3f}, cross-validated over patients"
    )
    return f"""# Student network

A U-Net of width {config.width} that segments a slice in a single pass of {config.size} x {config.size} pixels.

 - Input: {", ".join(config.modalities)} of the slice; a scan may lack {", ".join(config.optional) or "none of them"}.
 - Neighbouring slices that are further inputs (mm from it{counted}): {offsets or "none"}.
 - Teacher: the diffusion model in the parent folder (`{student.teacher_sha256}`). Its masks are the pseudo-labels.
 - Training slices: {slices}, {with_lesion} of them with a lesion in the pseudo-label.
 - Human annotation: image-level labels only. No lesion mask was used.
 - Training: at most {" or ".join(limits)}, batch size {training.batch}, learning rate {training.learning_rate:g},
   seed {training.seed}; anofpdm {__version__}.
 - Calibration: {calibration.n_healthy} healthy and {calibration.n_unhealthy} unhealthy slices{estimated}; {rating}.

Limits: the student reproduces its teacher's errors, and is valid only for scans like those it was trained on. It does
not explain its masks; `anofpdm segment --explain` computes an explanation with the diffusion model. A research tool,
not a medical device. All settings: `config.json`.
"""
