"""Pseudo-labels: masks that the diffusion model predicts for the training slices.

No lesion mask is read: a cohort gives no access to one, and the diffusion model is based on image-level labels only.
"""

import hashlib
import io
import json
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from anofpdm import __version__
from anofpdm.calibration.fit import slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import concatenate
from anofpdm.method.gather import EvidenceRequest, batch_for, evidence_batches, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.student.model import FOLDER
from anofpdm.student.network import Pixels, stack_slices
from anofpdm.util.distributed import World
from anofpdm.util.files import translate_write_errors, write_atomically
from anofpdm.util.progress import Progress, silent

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

    def __len__(self) -> int:
        return len(self.masks)

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """[n, C * (1 + neighbours), H, W] float32, slice by slice."""
        return stack_slices(self.pixels, self.neighbours[rows])

    def augmented_batch(
        self, rows: np.ndarray, inputs: np.ndarray, generator: torch.Generator, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Inputs and their masks [n, H, W], augmented together."""
        x = torch.from_numpy(inputs).to(device)
        mask = torch.from_numpy(self.masks[rows]).to(device, torch.float32)[:, None] / 255
        stacked = self.neighbours.shape[1]
        chances = torch.rand(len(rows), CHANCES + x.shape[1] // stacked, generator=generator) * 2 - 1
        brightness = chances[:, CHANCES:].repeat(1, stacked)  # the same for neighbours: they are of one scan
        unchanged = torch.zeros(len(rows), 1)  # a mask has no brightness
        chances = torch.cat([chances[:, :CHANCES], brightness, unchanged], dim=1)
        augmented = augment(torch.cat([x, 2 * mask - 1], dim=1), chances.to(device))
        return augmented[:, :-1], (augmented[:, -1] + 1) / 2


@dataclass(frozen=True)
class Teacher:
    """The diffusion model, and how it predicts pseudo-labels."""

    model: TrainedModel
    calibration: Calibration
    decision: DecisionSettings
    batch: int | None = None  # none given: by device

    def fingerprint(self, cohort: Cohort) -> str:
        """Of everything that pseudo-labels depend on."""
        return fingerprint(
            __version__,
            self.model.sha256,
            self.model.predict.precision,
            asdict(self.calibration),
            asdict(self.decision),
            [cohort.manifest.get(name) for name in HASHED],
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
    scans = list(dict.fromkeys(cohort.scans[rows].tolist()))
    files = [cache / f"{number:06d}.npz" for number in range(len(scans))]
    share = range(world.rank, len(scans), world.count)
    for done, number in enumerate(share):
        if not files[number].is_file():
            buffer = io.BytesIO()
            masks = pseudo_label_scan(teacher, cohort, rows[cohort.scans[rows] == scans[number]])
            np.savez_compressed(buffer, masks=masks)
            write_atomically(files[number], buffer.getvalue())
        progress("Pseudo-labelling", done + 1, len(share))
    world.all_gather(None)
    if not world.is_main:
        return None
    masks = np.zeros((len(rows), teacher.model.size, teacher.model.size), dtype=np.uint8)
    for scan, file in zip(scans, files, strict=True):
        masks[cohort.scans[rows] == scan] = np.load(file)["masks"]
    return masks


def pseudo_label_scan(teacher: Teacher, cohort: Cohort, rows: np.ndarray) -> np.ndarray:
    """uint8 [n, H, W] masks of one scan's slices. Empty for slices labelled healthy, and for unlabelled ones in which
    nothing is detected."""
    model, calibration = teacher.model, teacher.calibration
    masks = np.zeros((len(rows), model.size, model.size), dtype=np.uint8)
    labels = cohort.labels[rows]
    candidates = np.flatnonzero(labels != HEALTHY)
    if not len(candidates):
        return masks
    batch = teacher.batch or batch_for(model.device)
    evidence = concatenate(
        evidence_batches(
            model.predict,
            lambda some: cohort.pixels(rows[candidates[some]]),
            slice_seeds(cohort.indices[rows[candidates]], calibration.seed),
            EvidenceRequest(calibration.settings, [calibration.strength], model.device, batch),
        )
    )
    decisions = decide(evidence, calibration, teacher.decision, slice_positions(cohort, rows[candidates]))
    probability = soft_threshold(decisions.maps, decisions.threshold)
    probability[(labels[candidates] == NULL) & ~decisions.detected] = 0
    masks[candidates] = np.round(255 * probability)
    return masks


def soft_threshold(maps: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """[n, H, W] maps and [n] thresholds -> probabilities: 0.5 at the threshold, near 1 far above, near 0 far below."""
    above = maps**STEEPNESS
    below = np.broadcast_to(thresholds[:, None, None] ** STEEPNESS, maps.shape)
    return np.divide(above, above + below, out=np.zeros(maps.shape), where=above > 0)
