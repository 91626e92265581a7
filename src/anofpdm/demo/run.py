"""The bundled models on synthetic brains (phantoms) that they were not trained on; needs no data and no internet.

Output: out/scans (the phantoms), out/results (masks and reports), out/index.html (a page that compares with the truth).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from anofpdm.cohorts.inputs import Target, find_targets
from anofpdm.cohorts.phantoms.cohort import write_phantoms
from anofpdm.demo.page import DemoResult, render_page
from anofpdm.errors import CohortError
from anofpdm.evaluation.metrics.volumes import score_volume
from anofpdm.options import Engine
from anofpdm.segment.model import Model, load
from anofpdm.util.files import folder_lock, write_atomically
from anofpdm.util.progress import Progress, silent

BUNDLED = Path(__file__).parents[1] / "models"
PAGE, MARKER = "index.html", "demo.txt"
FOLDERS = ("scans", "results")
SEED = 2024
MODEL_SEEDS = (1, 2, 11, 12)  # of the phantoms that the bundled models were trained, calibrated and evaluated on
SLICES = 60  # per phantom: 2.5 mm apart, as in training
TRUTH_SUFFIXES = {"tumour": "seg", "stroke": "T1lesion_mask"}  # of the files with the true lesion


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
    _check_replaceable(out)
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        _clear(out)
        results: list[DemoResult] = []
        for kind in TRUTH_SUFFIXES:
            scans = out / "scans" / kind
            write_phantoms(scans, kind, patients, seed, slices=slices)
            results += _segment_phantoms(load(BUNDLED / kind, device), scans, kind, out, progress)
        write_atomically(out / PAGE, render_page(results, out, new_brains=seed not in MODEL_SEEDS).encode())
    return results


def _check_replaceable(out: Path) -> None:
    if any((out / name).exists() for name in FOLDERS) and not (out / MARKER).is_file():
        raise CohortError(f"{out}: has scans or results that were not made by a demo; choose another --out")


def _clear(out: Path) -> None:
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    write_atomically(out / MARKER, b"Made by `anofpdm demo`; the next demo in this folder replaces it.\n")


def _segment_phantoms(model: Model, scans: Path, kind: str, out: Path, progress: Progress) -> Iterator[DemoResult]:
    """All scans by the default engine; the first one by the diffusion engine, too, which takes longer."""
    targets = find_targets([str(scans)], model.trained.modalities)
    default = model.request().engine.name
    runs = [(target, default) for target in targets]
    if default != Engine.DIFFUSION:
        runs.insert(1, (targets[0], Engine.DIFFUSION))
    for target, engine in runs:
        yield _segment(model, target, engine, kind, out, progress)


def _segment(model: Model, target: Target, engine: Engine, kind: str, out: Path, progress: Progress) -> DemoResult:
    name, images = target.subject.name, target.subject.images

    def update(task: str, done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        progress(f"{name}, {engine}", done, total)

    result = model.segment(images, engine=engine, progress=update)
    folder = out / "results" / engine / name
    result.save(folder, title=f"{name}, {engine}")
    detected = {int(row["slice"]): bool(row["detected"]) for row in result.slices}
    folder_of_scan = next(iter(images.values())).parent
    truth = next(path for path in folder_of_scan.iterdir() if path.name.endswith(f"{TRUTH_SUFFIXES[kind]}.nii.gz"))
    return DemoResult(kind, name, engine, folder, result, score_volume(result.mask, result.grid, detected, truth))
