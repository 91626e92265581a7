"""Participant level: masks, maps and reports of some or all participants."""

from dataclasses import dataclass
from pathlib import Path

from anofpdm.bids_app.dataset import RAW, check_source, write_dataset
from anofpdm.choices import Engine
from anofpdm.cohorts.layouts.bids import find_subjects
from anofpdm.errors import CohortError
from anofpdm.scans.modalities import InputModalities
from anofpdm.segment import outputs
from anofpdm.segment.inputs import Target
from anofpdm.segment.many import BatchSegmentation, RunReport, result_files
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.scan_files import select_modalities
from anofpdm.util.artifacts import encode
from anofpdm.util.distributed import World
from anofpdm.util.files import write_atomically
from anofpdm.util.progress import Progress, silent


@dataclass(frozen=True)
class BidsRun:
    source: Path
    out: Path
    participants: tuple[str, ...] = ()  # sub-01, ...; empty: all
    sessions: tuple[str, ...] = ()  # ses-1, ...; empty: all
    validate: bool = True

    def includes(self, scan: str) -> bool:
        """A scan is named sub-01 or sub-01_ses-1."""
        participant, _, session = scan.partition("_")
        return (not self.participants or participant in self.participants) and (
            not self.sessions or session in self.sessions
        )

    def targets(self, modalities: InputModalities | tuple[str, ...]) -> list[Target]:
        """Scans of the selected participants; a participant without any is an error."""
        subjects = [subject for subject in find_subjects(self.source) if subject.images]
        chosen = [subject for subject in subjects if self.includes(subject.name)]
        patients = {subject.patient for subject in chosen}
        if missing := [name for name in self.participants if name not in patients]:
            known = ", ".join(sorted({subject.patient for subject in subjects})[:5]) or "none"
            raise CohortError(f"{self.source}: no scan of {', '.join(missing)} (participants with scans: {known}, ...)")
        if not chosen:
            raise CohortError(f"{self.source}: no scan found; expected files such as sub-01/anat/sub-01_T1w.nii.gz")
        return [Target(subject, bids=True) for subject in select_modalities(chosen, modalities)]

    def run(
        self,
        request: SegmentRequest,
        world: World,
        progress: Progress = silent,
        *,
        overwrite: bool = False,  # results of another model, other options or another input
    ) -> RunReport:
        description = check_source(self.source) if self.validate else {}
        targets = self.targets(request.inputs)
        if world.is_main:
            self.out.mkdir(parents=True, exist_ok=True)
            write_dataset(self.out, self.source, description)
        shared = bool(self.participants or self.sessions)  # jobs of other participants may write into the same folder
        batch = BatchSegmentation(request, targets, self.out, shared=shared, overwrite=overwrite)
        report = batch.run(world, progress)
        done = {*report.segmented, *report.skipped}
        for target in targets:
            if world.is_main and target.subject.name in done:
                write_sidecars(target, self.source, self.out, request)
        return report


def write_sidecars(target: Target, source: Path, out: Path, request: SegmentRequest) -> None:
    """JSON files beside mask and map: units, and which files they were made from."""
    images, result = target.subject.images, result_files(target, out)
    files = [f"bids:{RAW}:{path.absolute().relative_to(source.absolute()).as_posix()}" for path in images.values()]
    common = {
        "Sources": files,
        "SpatialReference": files[0],  # the grid of results is that of the first file
        "ModelSha256": request.model_sha256,
        "Engine": str(request.engine.name),
        "MissingModalities": list(request.inputs.missing(images)),
    }
    student = request.engine.name == Engine.STUDENT
    units = "probability of lesion, from 0 to 1" if student else "arbitrary; larger is more anomalous"
    contents = {
        outputs.MASK: {"Type": "Lesion", "Description": "Predicted lesion mask", "Units": "1 is lesion, 0 is not"},
        outputs.ANOMALY_MAP: {"Description": "Map that the mask was thresholded from", "Units": units},
    }
    for file, content in contents.items():
        path = result.path(file)
        write_atomically(path.with_name(path.name.replace(".nii.gz", ".json")), encode(content | common))
