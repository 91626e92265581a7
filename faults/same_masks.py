"""Masks of this checkout against those of an earlier commit, voxel by voxel: what a refactoring must not change.

    python faults/same_masks.py COMMIT [--data FOLDER] [--diffusion]

Both versions segment the same scans, each in a process of its own: phantoms by the models of phantoms with both
engines, and, where --data names the folder of real scans, these by the models of real brains. --diffusion adds the
diffusion engine on one real scan of each model, some minutes on a CPU. Ends with code 1 where more than one voxel in
100,000 of any scan differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-5  # fraction of a scan's voxels
PHANTOMS = {"tumour": ("flair", "t1", "t1ce", "t2"), "stroke": ("t1w",)}  # as in the names of their files
SERIES = ("flair", "t1", "t1ce", "t2")


@dataclass(frozen=True)
class Case:
    model: str
    name: str
    files: dict[str, str]
    engine: str = "student"
    raw: str = "never"


def phantom_cases(folder: Path) -> Iterator[Case]:
    for kind in PHANTOMS:
        truth = ("seg.nii.gz", "mask.nii.gz")
        scans = sorted({path.parent for path in (folder / kind).rglob("*.nii.gz")})
        for scan in scans:
            images = [path for path in scan.glob("*.nii.gz") if not path.name.endswith(truth)]
            files = {_modality(path): str(path) for path in images}
            for engine in ("student", "diffusion"):
                yield Case(f"phantom-{kind}", scan.name if kind == "tumour" else scan.parents[1].name, files, engine)


def _modality(path: Path) -> str:
    return path.name.removesuffix(".nii.gz").split("_")[-1].lower().removesuffix("w")


def real_cases(data: Path, *, diffusion: bool) -> Iterator[Case]:
    for scan in sorted((data / "brats_gli_raw").iterdir()):
        files = {series: str(scan / f"{scan.name}_{series}.nii.gz") for series in SERIES}
        flair = {"flair": files["flair"]}
        yield from (Case("glioma", scan.name, files), Case("glioma", f"{scan.name}, FLAIR alone", flair))
        yield Case("lgg", scan.name, flair)
    strokes = sorted((data / "arc_raw").rglob("*_T1w.nii.gz"))
    yield from (Case("stroke", path.name.split("_")[0], {"t1": str(path)}) for path in strokes)
    study = {series: str(data / "raw_glioma" / f"TCGA-FG-6692_{series}.nii.gz") for series in SERIES}
    yield Case("glioma", "raw glioma", study, raw="auto")
    names = {"flair": "FLAIR", "t1": "T1W", "t2": "T2W"}
    study = {series: str(data / "raw_ms" / f"study1_{name}.nii.gz") for series, name in names.items()}
    yield Case("glioma", "raw MS", study, raw="auto")
    if diffusion:
        yield Case("glioma", scan.name, files, "diffusion")
        yield Case("lgg", scan.name, flair, "diffusion")
        yield Case("stroke", strokes[0].name.split("_")[0], {"t1": str(strokes[0])}, "diffusion")


def segment_all(cases: list[Case], out: Path) -> None:
    """In the process of a version: masks into numbered files."""
    import anofpdm

    models: dict[str, anofpdm.Model] = {}
    for number, case in enumerate(cases):
        model = models.setdefault(case.model, anofpdm.load(case.model, device="cpu"))
        np.save(out / f"{number}.npy", model.segment(case.files, engine=case.engine, raw=case.raw).mask)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--diffusion", action="store_true")
    parser.add_argument("--masks", type=Path, help=argparse.SUPPRESS)  # given to the process of a version
    parser.add_argument("--phantoms", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.masks:
        segment_all(list_cases(options.phantoms, options.data, diffusion=options.diffusion), options.masks)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return compare_versions(options, Path(folder))


def list_cases(phantoms: Path, data: Path | None, *, diffusion: bool) -> list[Case]:
    return [*phantom_cases(phantoms), *(real_cases(data, diffusion=diffusion) if data else ())]


def compare_versions(options: argparse.Namespace, folder: Path) -> int:
    earlier, phantoms = folder / "earlier", folder / "phantoms"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", earlier, options.commit], cwd=ROOT, check=True)
    try:
        for kind in PHANTOMS:
            made = [phantoms / kind, "--kind", kind, "--patients", "2", "--seed", "2024", "--slices", "60"]
            subprocess.run([sys.executable, "-m", "anofpdm", "phantom", *made], env=_source(ROOT), check=True)
        for name, root in {"before": earlier, "after": ROOT}.items():
            (folder / name).mkdir()
            arguments = [sys.executable, __file__, *sys.argv[1:], "--masks", folder / name, "--phantoms", phantoms]
            subprocess.run(arguments, env=_source(root), check=True)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", earlier], cwd=ROOT, check=True)
    cases = list_cases(phantoms, options.data, diffusion=options.diffusion)
    shares = [share_changed(folder, number) for number in range(len(cases))]
    for case, share in zip(cases, shares, strict=True):
        print(f"{case.model}, {case.engine}, {case.name}: {'identical' if not share else f'{share:.2e} changed'}")
    return int(max(shares) > TOLERANCE)


def share_changed(folder: Path, number: int) -> float:
    before, after = (np.load(folder / name / f"{number}.npy") for name in ("before", "after"))
    return float((before != after).mean()) if before.shape == after.shape else 1.0


def _source(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src")}


if __name__ == "__main__":
    sys.exit(main())
