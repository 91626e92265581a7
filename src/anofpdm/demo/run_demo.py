"""The bundled models on synthetic brains (phantoms) that they were not trained on; needs no data and no internet.

Output: out/scans (the phantoms), out/results (masks and reports), out/index.html (a page that compares with the truth).
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from anofpdm import __version__
from anofpdm.choices import Engine, PhantomKind
from anofpdm.errors import CohortError
from anofpdm.models import registry
from anofpdm.phantoms.phantom_cohort import write_phantoms
from anofpdm.report.render import render
from anofpdm.scans import AxialPlanes, mask_slices
from anofpdm.scoring.masks import count_correct_slices, read_mask_on
from anofpdm.scoring.metrics.scan import ScanScores, score_masks
from anofpdm.segment.inputs import Target, find_targets
from anofpdm.segment.model import Model, load
from anofpdm.segment.outputs import REPORT
from anofpdm.segment.result import Segmentation
from anofpdm.util.files import folder_lock, write_atomically
from anofpdm.util.progress import Progress, silent

BUNDLED = registry.FOLDER
PAGE, MARKER = "index.html", "demo.txt"
FOLDERS = ("scans", "results")
SEED = 2024
MODEL_SEEDS = (1, 2, 11, 12)  # of the phantoms that the bundled models were trained, calibrated and evaluated on
SLICES = 60  # per phantom: 2.5 mm apart, as in training


@dataclass(frozen=True)
class DemoResult:
    name: str
    engine: Engine
    result: Segmentation
    score: ScanScores
    slices_correct: int  # correctly detected as healthy or unhealthy
    picture: bytes  # PNG: the overview with the true lesion

    @property
    def title(self) -> str:
        return f"{self.name}, {self.engine}"

    @property
    def folder(self) -> Path:
        """In the demo's folder."""
        return Path("results", self.engine, self.name)


def run_demo(
    out: Path,
    *,
    device: str | torch.device = "auto",
    patients: int = 2,  # of each kind
    seed: int = SEED,
    slices: int = SLICES,
    progress: Progress = silent,
) -> list[DemoResult]:
    """Write phantoms, segment them and write the page. Replaces the output of an earlier demo."""
    if out.exists() and not out.is_dir():
        raise CohortError(f"{out} is a file; the demo needs a folder")
    if any((out / name).exists() for name in FOLDERS) and not (out / MARKER).is_file():
        raise CohortError(f"{out}: has scans or results that were not made by a demo; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        for name in FOLDERS:
            shutil.rmtree(out / name, ignore_errors=True)
        write_atomically(out / MARKER, b"Made by `anofpdm demo`; the next demo in this folder replaces it.\n")
        results: list[DemoResult] = []
        for kind in PhantomKind:
            scans = out / "scans" / kind
            write_phantoms(scans, kind, patients, seed, slices=slices)
            results += _segment_phantoms(load(BUNDLED / f"phantom-{kind}", device), scans, out, progress)
        page = render(
            "demo.html",
            runs=results,
            brains=len({run.name for run in results}),
            new_brains=seed not in MODEL_SEEDS,
            engines=any(run.engine != Engine.DIFFUSION for run in results),
            report=REPORT,
            version=__version__,
        )
        write_atomically(out / PAGE, page.encode())
    return results


def _segment_phantoms(model: Model, scans: Path, out: Path, progress: Progress) -> Iterator[DemoResult]:
    """All scans by the default engine; the first one by the diffusion engine, too, which takes longer."""
    targets = find_targets([str(scans)], model.modalities)
    default = model.request().engine.name
    runs = [(target, default) for target in targets]
    if default != Engine.DIFFUSION:
        runs.insert(1, (targets[0], Engine.DIFFUSION))
    for target, engine in runs:
        yield _segment(model, target, engine, out, progress)


def _segment(model: Model, target: Target, engine: Engine, out: Path, progress: Progress) -> DemoResult:
    title = f"{target.subject.name}, {engine}"

    def update(task: str, done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        progress(title, done, total)

    result = model.segment(target.subject.images, engine=engine, progress=update)
    detected = {int(row["slice"]): bool(row["detected"]) for row in result.slices}
    (mask_file,) = target.subject.masks
    truth = read_mask_on(result.grid, mask_file, "all", "the scan")
    score = score_masks(result.mask, truth, tuple(result.grid.spacing_mm.tolist()))
    shown = mask_slices(truth, AxialPlanes(result.grid, model.size), result.display.indices)
    correct = count_correct_slices(truth, result.grid, detected)
    run = DemoResult(target.subject.name, engine, result, score, correct, result.overview(title, shown))
    result.save(out / run.folder, title=title)
    return run
