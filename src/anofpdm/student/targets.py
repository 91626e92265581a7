"""Pseudo-labels: masks that the diffusion model predicts for the training slices.

No lesion mask is read: a cohort gives no access to one, and the diffusion model is based on image-level labels only.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from anofpdm import __version__
from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import Evidence, EvidenceRequest
from anofpdm.method.gather import batch_for, evidence_batches, regroup, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.student.student import FOLDER
from anofpdm.student.student_network import Pixels
from anofpdm.util.distributed import World
from anofpdm.util.files import translate_write_errors, write_atomically
from anofpdm.util.progress import Progress, silent
from anofpdm.util.workers import map_in_threads

CACHE = "pseudo_labels"  # subfolder of the student's, one file per scan
STEEPNESS = 3  # exponent of the soft threshold
HASHED = ("slices_sha256", "tables_sha256")  # of a cohort's manifest


@dataclass(frozen=True)
class PseudoLabels:
    """Training slices with the teacher's masks; one entry per slice."""

    pixels: Pixels
    masks: np.ndarray  # uint8 [N, H, W]: probability of lesion times 255; empty where the slice is labelled healthy
    neighbours: np.ndarray  # [N, 1 + neighbours] rows: the slice itself, and its neighbours
    labels: np.ndarray  # [N] image-level labels


@dataclass(frozen=True)
class Teacher:
    """The diffusion model, and how it predicts pseudo-labels."""

    model: TrainedModel
    calibration: Calibration
    decision: DecisionSettings
    batch: int | None = None  # none given: by device

    @property
    def scored(self) -> tuple[str, ...]:
        """Modalities that its maps are based on."""
        return tuple(self.model.modalities[channel] for channel in self.calibration.settings.channels)

    def fingerprint(self, cohort: Cohort) -> str:
        """Of everything that pseudo-labels depend on."""
        return fingerprint(
            __version__,
            self.model.sha256,
            self.model.predict.precision,
            asdict(self.calibration),
            asdict(self.decision),
            [getattr(cohort.manifest, name) for name in HASHED],
        )


def fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def pseudo_label(
    teacher: Teacher, cohort: Cohort, rows: np.ndarray, world: World, progress: Progress = silent
) -> np.ndarray | None:
    """uint8 [n, H, W] masks, in the main process; None in the others. Scans are shared among processes, and each one's
    masks are cached on disk, so that an interrupted run resumes."""
    cache = teacher.model.folder / FOLDER / CACHE / teacher.fingerprint(cohort)[:16]
    with translate_write_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
    scans = [np.flatnonzero(cohort.scans[rows] == scan) for scan in dict.fromkeys(cohort.scans[rows].tolist())]
    files = [cache / f"{number:06d}.npz" for number in range(len(scans))]
    share = range(world.rank, len(scans), world.count)
    missing = [number for number in share if not files[number].is_file()]

    def save(job: tuple[int, Evidence | None]) -> None:
        number, evidence = job
        buffer = io.BytesIO()
        np.savez_compressed(buffer, masks=mask_scan(teacher, cohort, rows[scans[number]], evidence))
        write_atomically(files[number], buffer.getvalue())

    evidence = evidence_of_scans(teacher, cohort, [rows[scans[number]] for number in missing])
    jobs = zip(missing, evidence, strict=True)
    for done, _ in enumerate(map_in_threads(save, jobs), len(share) - len(missing) + 1):
        progress("Pseudo-labelling", done, len(share))
    world.all_gather(None)
    if not world.is_main:
        return None
    masks = np.zeros((len(rows), teacher.model.size, teacher.model.size), dtype=np.uint8)
    for scan, file in zip(scans, files, strict=True):
        masks[scan] = np.load(file)["masks"]
    return masks


def evidence_of_scans(teacher: Teacher, cohort: Cohort, scans: Sequence[np.ndarray]) -> Iterator[Evidence | None]:
    """Evidence of those rows of each scan that are not labelled healthy; None where all are. Batches do not end with a
    scan: large ones of equal size keep a GPU busy."""
    model, calibration = teacher.model, teacher.calibration
    candidates = [_not_healthy(cohort, scan) for scan in scans]
    rows = np.concatenate([np.empty(0, int), *candidates])
    groups: Iterator[Evidence] = iter(())
    if len(rows):
        batch = teacher.batch or batch_for(model.device)
        request = EvidenceRequest(calibration.settings, [calibration.strength], model.device, batch)
        batches = evidence_batches(
            model.predict,
            lambda some: cohort.slices[rows[some]],
            slice_seeds(cohort.indices[rows], calibration.seed),
            request.in_even_batches(len(rows)),
        )
        groups = regroup(batches, [len(some) for some in candidates if len(some)])
    for some in candidates:
        yield next(groups) if len(some) else None


def mask_scan(teacher: Teacher, cohort: Cohort, rows: np.ndarray, evidence: Evidence | None) -> np.ndarray:
    """uint8 [n, H, W] masks of one scan's slices. Empty for slices labelled healthy, and for unlabelled ones in which
    nothing is detected."""
    masks = np.zeros((len(rows), teacher.model.size, teacher.model.size), dtype=np.uint8)
    if evidence is None:
        return masks
    candidates = _not_healthy(cohort, rows)
    decisions = decide(evidence, teacher.calibration, teacher.decision, slice_positions(cohort, candidates))
    probability = soft_threshold(decisions.maps, decisions.threshold)
    probability[(cohort.labels[candidates] == NULL) & ~decisions.detected] = 0
    masks[cohort.labels[rows] != HEALTHY] = np.round(255 * probability)
    return masks


def _not_healthy(cohort: Cohort, rows: np.ndarray) -> np.ndarray:
    return rows[cohort.labels[rows] != HEALTHY]


def soft_threshold(maps: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """[n, H, W] maps and [n] thresholds -> probabilities: 0.5 at the threshold, near 1 far above, near 0 far below."""
    above = maps**STEEPNESS
    total = above + thresholds[:, None, None] ** STEEPNESS
    return np.divide(above, total, out=np.zeros(maps.shape), where=above > 0)
