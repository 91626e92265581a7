"""Pseudo-labels: masks that a teacher predicts for the training slices.

No lesion mask is read: a cohort gives no access to one, and a teacher is based on image-level labels only.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from anofpdm import __version__
from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import OURS, decide
from anofpdm.method.evidence import Evidence, EvidenceRequest
from anofpdm.method.gather import evidence_batches, regroup, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.util.distributed import World
from anofpdm.util.files import translate_write_errors, write_atomically
from anofpdm.util.progress import Progress, silent
from anofpdm.util.workers import map_in_threads

CACHE = "pseudo_labels"  # subfolder of the student's, one file per scan
STEEPNESS = 3  # exponent of the soft threshold
HASHED = ("slices_sha256", "tables_sha256")  # of a cohort's manifest


@dataclass(frozen=True)
class DiffusionTeacher:
    """A calibrated model. Its masks are those of `anofpdm segment` with default settings, but soft."""

    model: TrainedModel
    calibration: Calibration
    batch: int

    @property
    def modalities(self) -> tuple[str, ...]:
        """Those that its masks are based on."""
        return tuple(self.model.modalities[channel] for channel in self.calibration.settings.channels)

    def fingerprint(self, cohort: Cohort) -> str:
        """Of everything that its masks depend on."""
        hashes = [getattr(cohort.manifest, name) for name in HASHED]
        precision = self.model.predict.precision
        return fingerprint(__version__, self.model.sha256, precision, asdict(self.calibration), hashes)

    def masks(self, cohort: Cohort, scans: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Of the rows of each scan, none of them labelled healthy: uint8 [n, H, W], probability of lesion times 255.
        Batches do not end with a scan: large ones of equal size keep a GPU busy."""
        calibration, rows = self.calibration, np.concatenate([np.empty(0, int), *scans])
        request = EvidenceRequest(calibration.settings, [calibration.strength], self.model.device, self.batch)
        batches = evidence_batches(
            self.model.predict,
            lambda some: cohort.slices[rows[some]],
            slice_seeds(cohort.indices[rows], calibration.seed),
            request.in_even_batches(len(rows)),
        )
        jobs = zip(scans, regroup(batches, [len(scan) for scan in scans]), strict=True)
        return map_in_threads(lambda job: self._mask_scan(cohort, *job), jobs)

    def _mask_scan(self, cohort: Cohort, rows: np.ndarray, evidence: Evidence) -> np.ndarray:
        """Empty for unlabelled slices in which nothing is detected."""
        decision = replace(OURS, context_mm=self.calibration.context_mm)
        decisions = decide(evidence, self.calibration, decision, slice_positions(cohort, rows))
        probability = soft_threshold(decisions.maps, decisions.threshold)
        probability[(cohort.labels[rows] == NULL) & ~decisions.detected] = 0
        return np.round(255 * probability).astype(np.uint8)


def fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def pseudo_label(
    teacher: DiffusionTeacher, cohort: Cohort, rows: np.ndarray, folder: Path, world: World, progress: Progress = silent
) -> np.ndarray | None:
    """uint8 [n, H, W] masks, in the main process; None in the others. They are empty for slices labelled healthy. Scans
    are shared among processes, and each one's masks are cached in the folder, so that an interrupted run resumes."""
    cache = folder / CACHE / teacher.fingerprint(cohort)[:16]
    with translate_write_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
    candidates = np.flatnonzero(cohort.labels[rows] != HEALTHY)
    scans = cohort.scans[rows[candidates]]
    files = {
        cache / f"{number:06d}.npz": candidates[scans == scan]
        for number, scan in enumerate(dict.fromkeys(scans.tolist()))
    }
    share = [*files][world.rank :: world.count]
    missing = [file for file in share if not file.is_file()]

    def save(job: tuple[Path, np.ndarray]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, masks=job[1])
        write_atomically(job[0], buffer.getvalue())

    masks_of_scans = teacher.masks(cohort, [rows[files[file]] for file in missing])
    saved = map_in_threads(save, zip(missing, masks_of_scans, strict=True))
    for done, _ in enumerate(saved, len(share) - len(missing) + 1):
        progress("Pseudo-labelling", done, len(share))
    world.all_gather(None)
    if not world.is_main:
        return None
    masks = np.zeros((len(rows), *cohort.slices.shape[2:]), dtype=np.uint8)
    for file, scan in files.items():
        masks[scan] = np.load(file)["masks"]
    return masks


def soft_threshold(maps: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """[n, H, W] maps and [n] thresholds -> probabilities: 0.5 at the threshold, near 1 far above, near 0 far below."""
    above = maps**STEEPNESS
    total = above + thresholds[:, None, None] ** STEEPNESS
    return np.divide(above, total, out=np.zeros(maps.shape), where=above > 0)
