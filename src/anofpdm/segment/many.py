"""Segmenting many scans: one after another, over several processes, going on where an earlier run stopped."""

import contextlib
import json
import shlex
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anofpdm import __version__
from anofpdm.cohorts.inputs import Target
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import AnoFPDMError, OutputError, ScanError, ScanWarning
from anofpdm.method.decision import DecisionSettings
from anofpdm.report.explanation import Explain, normalize_explain
from anofpdm.segment.model import Model, Segmentation, brain_said, file_sha256
from anofpdm.segment.outputs import (
    ANOMALY_MAP,
    BIDS_DESCRIPTION,
    DICOM_CAPTURE,
    DICOM_SEG,
    MASK,
    OVERVIEW,
    REPORT,
    SUMMARY,
    bids_suffix,
)
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import Study


@dataclass(frozen=True)
class Options:
    choices: DecisionSettings | None = None  # none given: as the model has them
    engine: str = "auto"
    seed: int | None = None
    batch: int | None = None  # slices at a time; none given: as suits the device
    brain_mask: Path | None = None
    skull_strip: str | None = None  # a command with {input} and {output}
    pictures: bool = True
    reports: bool = True
    strict: bool = False
    dicom: bool = False  # results as DICOM too, where the scan was
    explain: Explain = None  # slices of which the diffusion model is asked as well

    def wanted(self, target: Target) -> tuple[str, ...]:
        """Files that a finished scan has."""
        pages = (*([OVERVIEW] if self.pictures else []), *([REPORT] if self.reports else []))
        return (
            MASK,
            ANOMALY_MAP,
            *pages,
            *((DICOM_SEG, DICOM_CAPTURE) if self.dicom and target.study is not None else ()),
        )


@dataclass
class Report:
    done: dict[str, float] = field(default_factory=dict)  # scan to millilitres
    already: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)


Listener = Callable[[str, int, int], None]  # name of the scan, steps done, steps in all


def segment_all(
    model: Model,
    targets: Sequence[Target],
    out: Path,
    options: Options,
    world: World | None = None,
    on_progress: Listener = lambda _name, _done, _total: None,
) -> Report:
    """This process's share of the targets. A scan that fails is listed, and the others are done."""
    world = world or World()
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out) if world.is_main else contextlib.nullcontext():
        if world.is_main:
            remove_temporary_files(out)
        if world.is_main and any(target.bids for target in targets):
            write_atomically(out / BIDS_DESCRIPTION, _bids_description())
        return _segment_share(model, targets, out, options, world, on_progress)


def _segment_share(
    model: Model, targets: Sequence[Target], out: Path, options: Options, world: World, on_progress: Listener
) -> Report:
    report, share = Report(), list(targets)[world.rank :: world.count]
    levels = len(model.calibration.settings.levels)
    for number, target in enumerate(share):
        name = target.subject.name

        def show(done: int, total: int, name: str = name, number: int = number) -> None:
            on_progress(name, int(levels * (number + done / total)), levels * len(share))

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScanWarning)  # they are in the report
                _segment_one(model, target, out, options, report, show)
        except OutputError:
            raise  # a full disk has no room for the next scan either
        except (AnoFPDMError, OSError) as problem:
            report.failed[name] = str(problem)
            if options.strict:
                raise
        show(1, 1)
    return report


def _segment_one(
    model: Model, target: Target, out: Path, options: Options, report: Report, show: Callable[[int, int], None]
) -> None:
    if target.subject.problem:
        raise ScanError(f"{target.subject.name}: {target.subject.problem}")
    with target.open() as subject:
        try:
            _segment_opened(model, target, subject, out, options, report, show)
        except ScanError as problem:
            if target.study is None:
                raise
            raise ScanError(_with_series(str(problem), target.study, subject.images)) from None


def _segment_opened(
    model: Model,
    target: Target,
    subject: Subject,  # with NIfTI files, whatever the target was
    out: Path,
    options: Options,
    report: Report,
    show: Callable[[int, int], None],
) -> None:
    folder, name = place_of(target, out)
    seed = model.calibration.seed if options.seed is None else options.seed
    brain_from = f"command {options.skull_strip}" if options.skull_strip else None
    choices = options.choices or model.usual_choices
    explain = normalize_explain(options.explain) if model.engine(options.engine) == "student" else None
    settings = model.settings(choices, seed, brain_from or brain_said(options.brain_mask), options.engine, explain)
    there = all((folder / name(file)).is_file() for file in options.wanted(target))
    if there and (before := _finished(folder / name(SUMMARY), settings, subject.images)) is not None:
        report.already[subject.name] = before
        return
    with tempfile.TemporaryDirectory() as space:
        brain = options.brain_mask
        if options.skull_strip:
            brain = strip_skull(options.skull_strip, next(iter(subject.images.values())), Path(space))
        result = model.segment(
            subject.images,
            engine=options.engine,
            brain_mask=brain,
            brain_from=brain_from,
            choices=choices,
            seed=seed,
            batch=options.batch,
            explain=explain,
            on_progress=show,
        )
    if target.study is not None:
        _tell_of_series(result.summary, target.study, subject.images)
    remove_temporary_files(folder)
    for file in (DICOM_SEG, DICOM_CAPTURE):  # of an earlier run, with another mask
        (folder / name(file)).unlink(missing_ok=True)
    result.save(folder, name, picture=options.pictures, report=options.reports, title=subject.name)
    if target.study is not None and options.dicom:  # last: where it cannot be done, the NIfTI mask is there
        _write_dicom(result, target.study, folder, name, subject.name)
    report.done[subject.name] = result.volume_ml
    if result.summary["warnings"]:
        report.warnings[subject.name] = result.summary["warnings"]


def _tell_of_series(summary: dict[str, Any], study: "Study", images: Mapping[str, Path]) -> None:
    """Instead of the temporary files that they were turned into; whose hashes stay, being always the same."""
    for name, said in study.to_dict().items():
        summary["inputs"][name] |= {**said, "file": _with_series(str(images[name]), study, images)}
    summary["warnings"] = [_with_series(text, study, images) for text in summary["warnings"]]


def _with_series(text: str, study: "Study", images: Mapping[str, Path]) -> str:
    for name, said in study.to_dict().items():
        text = text.replace(str(images[name]), f"{study.path.name}, series {said['series']} ({said['description']})")
    return text


def _write_dicom(result: Segmentation, study: "Study", folder: Path, name: Callable[[str], str], title: str) -> None:
    from anofpdm.scans.dicom.seg import write_capture, write_seg

    write_seg(folder / name(DICOM_SEG), result.mask, study)
    write_capture(folder / name(DICOM_CAPTURE), result.picture(title), study)


def place_of(target: Target, out: Path) -> tuple[Path, Callable[[str], str]]:
    """The folder for a scan's results, and what each of our files is called there."""
    name = target.subject.name
    if not target.bids:
        return out / name, str
    return out.joinpath(*name.split("_"), "anat"), lambda file: name + bids_suffix(file)


def _finished(summary: Path, settings: dict[str, Any], images: dict[str, Path]) -> float | None:
    """Its volume, if this very scan was segmented with these very settings."""
    try:
        said = json.loads(summary.read_text())
        same_files = all(said["inputs"][name]["sha256"] == file_sha256(path) for name, path in images.items())
        same = json.loads(json.dumps(settings)) == said["settings"] and same_files
        return float(said["volume_ml"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def strip_skull(command: str, image: Path, space: Path) -> Path:
    """Run the user's own tool; wherever its output is above 0 there is brain."""
    output = space / "brain.nii.gz"
    if "{input}" not in command or "{output}" not in command:
        raise ScanError(f"--skull-strip {command!r}: write {{input}} and {{output}} where the files go")
    try:
        parts = shlex.split(command)
    except ValueError as problem:
        raise ScanError(f"--skull-strip {command!r}: cannot be read ({problem}); close its quotes") from None
    words = [word.replace("{input}", str(image)).replace("{output}", str(output)) for word in parts]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError as problem:
        raise ScanError(f"--skull-strip: {words[0]} could not be started ({problem.strerror})") from None
    if done.returncode or not output.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        reason = f"ended with code {done.returncode}" if done.returncode else "wrote no output"
        raise ScanError(f"--skull-strip: {words[0]} {reason} for {image}: {said[0]}")
    return output


def _bids_description() -> bytes:
    said = {
        "Name": "Lesion masks by AnoFPDM",
        "BIDSVersion": "1.9.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "anofpdm", "Version": __version__}],
    }
    return json.dumps(said, indent=2).encode()
