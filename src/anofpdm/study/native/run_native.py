"""Segment the scans of a split with each engine, and score the masks against those in the source folder."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import AnoFPDMError, ConfigError, ScanWarning
from anofpdm.network.checkpoint import CONFIG
from anofpdm.scans import write_nifti
from anofpdm.scoring.masks import Labels, read_mask, read_mask_on
from anofpdm.scoring.pairs import Pair, Pairing
from anofpdm.scoring.score_pairs import ScoringReport, score_pairs
from anofpdm.segment import outputs
from anofpdm.segment.inputs import Target
from anofpdm.segment.many import BatchSegmentation, RunReport, result_files
from anofpdm.segment.request import SegmentRequest
from anofpdm.student.student import FOLDER as STUDENT
from anofpdm.study.missing import name_without
from anofpdm.study.native.split_scans import SplitScans
from anofpdm.util.distributed import World
from anofpdm.util.files import remove_temporary_files
from anofpdm.util.progress import Progress, silent

LABELS: tuple[Labels, Labels] = (None, "all")  # of predicted and true masks: as in preparation, all above 0 is lesion
TRUTH = "truth"  # folder for the union of several masks of one scan


@dataclass(frozen=True)
class NativeEvaluation:
    scans: SplitScans
    out: Path  # a folder per engine in it
    workers: int = 1  # processes for scoring

    def __post_init__(self) -> None:
        if self.out.resolve().is_relative_to(self.scans.source.resolve()):
            raise ConfigError(f"--out {self.out}: inside --native {self.scans.source}; choose a folder outside of it")

    def remove_temporary_files(self) -> None:
        """Of a run that was killed; requires the lock of the folder."""
        for folder in (self.out, self.out / TRUTH):
            remove_temporary_files(folder)

    def run(
        self,
        request: SegmentRequest,
        world: World | None = None,
        progress: Progress = silent,
        without: tuple[str, ...] = (),  # optional modalities that are left out
    ) -> "EngineReport":
        """With one engine. In several processes, each segments its share; the first one scores."""
        world, name = world or World(), name_without(request.engine.name, without)
        targets = [_leave_out(target, without) for target in self.scans.targets(request.inputs)]
        folder = self.out / name
        batch = BatchSegmentation(request, targets, folder, files=(), remedy="give another --out")
        report = EngineReport(name, folder, batch.run(world, progress))
        if world.is_main:
            report.scoring = score_pairs(self._pairing(targets, report), LABELS, self.workers, progress)
        return report

    def _pairing(self, targets: Sequence[Target], report: "EngineReport") -> Pairing:
        pairing = Pairing(failed=dict(report.failed))
        reason = f"no lesion mask in {self.scans.source}; add it, or remove the scan"
        pairing.failed |= dict.fromkeys(self.scans.without_mask, reason)
        for target in targets:
            subject = target.subject
            if subject.name in report.failed:
                continue
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", ScanWarning)
                    truth = find_truth(subject, self.out / TRUTH)
            except (AnoFPDMError, OSError) as problem:
                pairing.failed[subject.name] = str(problem)
                continue
            report.truth_warnings += [(subject.name, str(warning.message)) for warning in caught]
            mask = result_files(target, report.folder).path(outputs.MASK)
            pairing.pairs.append(Pair(subject.name, subject.patient, mask, truth))
        return pairing


@dataclass
class EngineReport:
    engine: str  # with the modalities that were left out
    folder: Path  # of masks and scores
    segmentation: RunReport
    scoring: ScoringReport = field(default_factory=ScoringReport)
    truth_warnings: list[tuple[str, str]] = field(default_factory=list)  # scan and text, of masks that were joined

    @property
    def failed(self) -> dict[str, str]:
        """Scans that were not segmented, and why."""
        return self.segmentation.failed

    @property
    def estimates(self) -> dict[str, float]:
        """DICE by scan that was segmented, where the engine has estimates."""
        summaries = {**self.segmentation.skipped, **self.segmentation.segmented}
        estimates = {scan: summary.estimated_dice for scan, summary in summaries.items()}
        return {scan: estimate for scan, estimate in estimates.items() if estimate is not None}

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Scan and text."""
        texts = [(name, text) for name, some in self.segmentation.warnings.items() for text in some]
        scored = [(scan.pair.name, text) for scan in self.scoring.scans for text in scan.warnings]
        return texts + self.truth_warnings + scored


def _leave_out(target: Target, modalities: tuple[str, ...]) -> Target:
    images = {name: path for name, path in target.subject.images.items() if name not in modalities}
    return replace(target, subject=replace(target.subject, images=images))


def find_truth(subject: Subject, folder: Path) -> Path:
    """The subject's mask file; of several, their union, written to `folder`."""
    first, *others = subject.masks
    if not others:
        return first
    union, grid = read_mask(first, "all")
    for path in others:
        union = union | read_mask_on(grid, path, "all", first)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"{subject.name}_mask.nii.gz"
    write_nifti(written, union.astype(np.uint8), grid)
    return written


def is_trained_on(cohort: Cohort, folder: Path) -> bool:
    """Whether the model in `folder`, or its student where that is all, was trained on this cohort with this split."""
    try:
        alone = not (folder / CONFIG).is_file()
        config = json.loads((folder / STUDENT / CONFIG if alone else folder / CONFIG).read_text())
        hashes = (config["distillation"] if alone else config)["cohort"]["tables_sha256"]
        return bool(hashes["split.csv"] == cohort.manifest.tables_sha256["split.csv"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
