"""Teaching a student: the model draws the training slices, the student learns them, labels say where it may speak.

Nothing here can reach a drawn lesion: a cohort has no way to one, and a teacher's masks come from image-level labels.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from anofpdm import __version__
from anofpdm.calibration.fit import check_fits, slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import CalibrationError, TrainingError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, DecisionSettings, decide
from anofpdm.method.many_slices import batch_for, evidence_of, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.student.card import FILE as CARD
from anofpdm.student.card import card
from anofpdm.student.model import FOLDER, Student, asked, calibrated, channels_of, save_student
from anofpdm.student.network import StudentConfig, StudentNet
from anofpdm.student.targets import Lessons, Pixels, neighbours_of, usual_neighbours
from anofpdm.student.training import Schooling, teach
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, translate_write_errors, write_atomically

WORK = "drawn"  # folder of what the teacher has drawn, scan by scan
STEEPNESS = 3  # of how certain a teacher is, around its threshold

Listener = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


@dataclass(frozen=True)
class Options:
    schooling: Schooling = field(default_factory=Schooling)
    choices: DecisionSettings | None = None  # how the teacher draws; none given: as it segments
    width: int = 32
    neighbours_mm: tuple[float, ...] | None = None  # none given: the slices next to each
    rounds: int = 1  # from the second on, the student before is the teacher
    half_weights: bool = False
    batch: int | None = None


def distill(
    teacher: TrainedModel,
    calibration: Calibration,
    cohort: Cohort,
    options: Options,
    world: World | None = None,
    on_progress: Listener = lambda _what, _done, _total: None,
) -> Student | None:
    """The student, saved beside its teacher by the first process; the others have none."""
    world = world or World()
    check_fits(teacher, cohort)
    choices = options.choices or replace(OURS, context_mm=calibration.context_mm)
    calibration.with_context(choices.context_mm)
    options = replace(options, choices=choices)
    rows = cohort.rows("train")
    if not len(rows):
        raise TrainingError(f"{cohort.path}: no slice in its training split to teach a student with")
    modalities = tuple(teacher.modalities[channel] for channel in calibration.settings.channels)
    neighbours_mm = options.neighbours_mm
    if neighbours_mm is None:
        neighbours_mm = usual_neighbours(slice_positions(cohort, rows))
    config = StudentConfig(modalities, teacher.size, neighbours_mm, options.width)
    val = cohort.rows("val")
    if not {HEALTHY, UNHEALTHY} <= set(cohort.labels[val].tolist()):  # said before any time is spent
        raise CalibrationError(
            f"{cohort.path}: a student is calibrated on healthy and unhealthy slices of the val split, "
            "and one kind is missing there; label some, or prepare with another --split"
        )
    with _sole_teacher(teacher, world):
        return _taught_student(teacher, calibration, cohort, config, options, world, on_progress)


@contextlib.contextmanager
def _sole_teacher(teacher: TrainedModel, world: World) -> Iterator[None]:
    """The student's folder for this run alone, without what a killed one left there."""
    folder = teacher.folder / FOLDER
    with translate_write_errors(folder):
        folder.mkdir(exist_ok=True)
    with folder_lock(folder) if world.is_main else contextlib.nullcontext():
        if world.is_main:
            for place in (folder, *folder.glob(f"{WORK}/*")):
                remove_temporary_files(place)
        world.all_gather(None)  # nobody writes there before
        yield


def _taught_student(
    teacher: TrainedModel,
    calibration: Calibration,
    cohort: Cohort,
    config: StudentConfig,
    options: Options,
    world: World,
    on_progress: Listener,
) -> Student | None:
    rows, val, modalities = cohort.rows("train"), cohort.rows("val"), config.modalities
    masks = teacher_masks(teacher, calibration, cohort, rows, options, world, on_progress)
    if masks is None:
        world.all_gather(None)  # until the first process has taught
        return None
    if not (masks > 127).any():
        raise TrainingError(
            "the teacher drew no lesion in the whole training split; calibrate it first, or train longer"
        )
    places = slice_positions(cohort, rows)
    together = neighbours_of(places, config.neighbours_mm)
    lessons = Lessons(_pixels(cohort, rows, modalities), masks, together, cohort.labels[rows])
    network = taught_in_rounds(config, lessons, places, options, teacher.device, on_progress)
    if options.half_weights:
        network.half().float()  # what is saved is what is calibrated
    decision = calibrated(
        network,
        _pixels(cohort, val, modalities),
        cohort.labels[val],
        cohort.patients[val],
        slice_positions(cohort, val),
        teacher.device,
    )
    student = Student(network, decision, teacher.sha256, teacher.device)
    taught = _taught(teacher, calibration, cohort, masks, options)
    save_student(teacher.folder, student, taught, half=options.half_weights)
    write_atomically(teacher.folder / FOLDER / CARD, card(student, taught).encode())
    world.all_gather(None)
    return student


def taught_in_rounds(
    config: StudentConfig,
    lessons: Lessons,
    places: SlicePositions,
    options: Options,
    device: torch.device,
    on_progress: Listener,
) -> StudentNet:
    """The student of the last round."""

    def learned(lessons: Lessons, number: int) -> StudentNet:
        name = "the student learns" + (f", round {number + 1}" if number else "")
        schooling = replace(options.schooling, seed=options.schooling.seed + number)
        return teach(
            config, lessons, schooling, device, lambda share, _loss: on_progress(name, thousandths(share), 1000)
        )

    network = learned(lessons, 0)
    for number in range(1, options.rounds):
        network = learned(replace(lessons, masks=_own_masks(network, lessons, places, device)), number)
    return network


def thousandths(share: float) -> int:
    return round(1000 * min(share, 1))


def _own_masks(network: StudentNet, lessons: Lessons, places: SlicePositions, device: torch.device) -> np.ndarray:
    """uint8 [N, H, W]: how certain it is, for the next student to learn; not at all where a person said healthy."""
    certain = np.round(255 * expit(asked(network, lessons.pixels, places, device)[0])).astype(np.uint8)
    certain[lessons.labels == HEALTHY] = 0
    return certain


def _taught(
    teacher: TrainedModel, calibration: Calibration, cohort: Cohort, masks: np.ndarray, options: Options
) -> dict[str, Any]:
    """Where it comes from."""
    return {
        "anofpdm": __version__,
        "slices": len(masks),
        "with_a_lesion": int((masks > 127).any((1, 2)).sum()),
        "calibration": fingerprint(asdict(calibration)),
        "cohort": {name: cohort.manifest.get(name) for name in ("slices_sha256", "tables_sha256")},
        "precision": teacher.predict.precision,
        "options": asdict(options),
    }


def _pixels(cohort: Cohort, rows: np.ndarray, modalities: tuple[str, ...]) -> Pixels:
    channels = channels_of(cohort.modalities, modalities)
    return lambda some: cohort.pixels(rows[some])[:, channels]


# ---- the teacher draws -----------------------------------------------------------------------------------------------


def teacher_masks(
    teacher: TrainedModel,
    calibration: Calibration,
    cohort: Cohort,
    rows: np.ndarray,
    options: Options,
    world: World,
    on_progress: Listener,
) -> np.ndarray | None:
    """uint8 [n, H, W], 255 for certain, for the first process. Scan by scan, each kept on disk: stopped halfway, it
    goes on; several processes share them."""
    said = fingerprint(
        __version__,
        teacher.sha256,
        teacher.predict.precision,
        asdict(calibration),
        asdict(options)["choices"],
        [cohort.manifest.get(name) for name in ("slices_sha256", "tables_sha256")],
    )
    work = teacher.folder / FOLDER / WORK / said[:16]
    with translate_write_errors(work):
        work.mkdir(parents=True, exist_ok=True)
    scans = list(dict.fromkeys(cohort.scans[rows].tolist()))
    files = [work / f"{number:06d}.npz" for number in range(len(scans))]
    share = range(world.rank, len(scans), world.count)
    for done, number in enumerate(share):
        if not files[number].is_file():
            of_scan = rows[cohort.scans[rows] == scans[number]]
            _write(files[number], drawn_by_teacher(teacher, calibration, cohort, of_scan, options))
        on_progress("the teacher draws", done + 1, len(share))
    world.all_gather(None)
    if not world.is_main:
        return None
    drawn = np.zeros((len(rows), teacher.size, teacher.size), dtype=np.uint8)
    for scan, file in zip(scans, files, strict=True):
        drawn[cohort.scans[rows] == scan] = np.load(file)["drawn"]
    return drawn


def fingerprint(*said: object) -> str:
    """Of everything that decides what a teacher draws."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def drawn_by_teacher(
    teacher: TrainedModel, calibration: Calibration, cohort: Cohort, rows: np.ndarray, options: Options
) -> np.ndarray:
    """Of one scan: nothing where a person said healthy; where nobody said anything, the detector decides."""
    drawn = np.zeros((len(rows), teacher.size, teacher.size), dtype=np.uint8)
    labels = cohort.labels[rows]
    asked = np.flatnonzero(labels != HEALTHY)
    if not len(asked):
        return drawn
    evidence = evidence_of(
        teacher.predict,
        lambda some: cohort.pixels(rows[asked[some]]),
        slice_seeds(cohort.indices[rows[asked]], calibration.seed),
        settings=calibration.settings,
        strengths=[calibration.strength],
        device=teacher.device,
        batch=options.batch or batch_for(teacher.device),
    )
    places: SlicePositions = slice_positions(cohort, rows[asked])
    found = decide(evidence, calibration, options.choices or OURS, places)
    certain = chance_of(found.maps, found.threshold)
    certain[(labels[asked] == NULL) & ~found.detected] = 0
    drawn[asked] = np.round(255 * certain)
    return drawn


def chance_of(maps: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """[n, H, W]: half where a map reaches its slice's threshold, nearly one far above it, nearly nothing far below."""
    above, below = maps**STEEPNESS, np.broadcast_to(cuts[:, None, None] ** STEEPNESS, maps.shape)
    return np.divide(above, above + below, out=np.zeros(maps.shape), where=above > 0)


def _write(path: Path, drawn: np.ndarray) -> None:
    space = io.BytesIO()
    np.savez_compressed(space, drawn=drawn)
    write_atomically(path, space.getvalue())
