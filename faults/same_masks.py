"""Masks of this checkout against those of an earlier commit, voxel by voxel: what a refactoring must not change.

    python faults/same_masks.py COMMIT [--data FOLDER] [--diffusion]

Both versions segment the same scans with the same commands: phantoms by the models of phantoms with both engines, and,
where --data names the folder of real scans, these by the models of real brains. --diffusion adds the diffusion engine
on one real scan of each model, some minutes on a CPU. Ends with code 1 where more than one voxel in 100,000 of any scan
differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-5  # fraction of a scan's voxels
KINDS = ("tumour", "stroke")  # of phantoms
SERIES = ("flair", "t1", "t1ce", "t2")
AS_IT_IS = ("--raw", "never")
WITH_DIFFUSION = (*AS_IT_IS, "--engine", "diffusion")
FAST = ("--device", "cpu", "--no-report", "--no-pictures")

Words = tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--diffusion", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        earlier, phantoms = folder / "earlier", folder / "phantoms"
        run("git", "worktree", "add", "--quiet", "--detach", earlier, options.commit)
        try:
            for kind in KINDS:
                made = ("--kind", kind, "--patients", 2, "--seed", 2024, "--slices", 60)
                run(sys.executable, "-m", "anofpdm", "phantom", phantoms / kind, *made)
            commands = [*phantom_commands(phantoms), *(real_commands(options.data) if options.data else ())]
            commands += diffusion_commands(options.data) if options.data and options.diffusion else ()
            shares = [compare(words, earlier, folder / str(number)) for number, words in enumerate(commands)]
        finally:
            run("git", "worktree", "remove", "--force", earlier)
    return int(max(shares) > TOLERANCE)


# ---- what is segmented: arguments of `anofpdm segment` ---------------------------------------------------------------


def phantom_commands(phantoms: Path) -> Iterator[Words]:
    for kind in KINDS:
        for engine in ("student", "diffusion"):
            yield (f"phantom-{kind}", str(phantoms / kind), *AS_IT_IS, "--engine", engine)


def real_commands(data: Path) -> Iterator[Words]:
    for flair, *others in tumours(data):
        yield from (("glioma", flair, *others, *AS_IT_IS), ("glioma", flair, *AS_IT_IS), ("lgg", flair, *AS_IT_IS))
    for stroke in strokes(data):
        yield ("stroke", stroke, *AS_IT_IS)
    yield ("glioma", *(f"{series}={data}/raw_glioma/TCGA-FG-6692_{series}.nii.gz" for series in SERIES))
    names = {"flair": "FLAIR", "t1": "T1W", "t2": "T2W"}
    yield ("glioma", *(f"{series}={data}/raw_ms/study1_{name}.nii.gz" for series, name in names.items()))


def diffusion_commands(data: Path) -> Iterator[Words]:
    *_, series = tumours(data)
    yield from (("glioma", *series, *WITH_DIFFUSION), ("lgg", series[0], *WITH_DIFFUSION))
    yield ("stroke", strokes(data)[0], *WITH_DIFFUSION)


def tumours(data: Path) -> list[list[str]]:
    scans = sorted((data / "brats_gli_raw").iterdir())
    return [[f"{series}={scan}/{scan.name}_{series}.nii.gz" for series in SERIES] for scan in scans]


def strokes(data: Path) -> list[str]:
    return [f"t1={path}" for path in sorted((data / "arc_raw").rglob("*_T1w.nii.gz"))]


# ---- by both versions ------------------------------------------------------------------------------------------------


def compare(words: Words, earlier: Path, folder: Path) -> float:
    """The largest share of a scan's voxels that differ."""
    for version, root in {"before": earlier, "after": ROOT}.items():
        command = (sys.executable, "-m", "anofpdm", "segment", *words, "--out", folder / version, *FAST)
        run(*command, PYTHONPATH=str(root / "src"))
    names = sorted(path.relative_to(folder / "after") for path in (folder / "after").rglob("*mask.nii.gz"))
    share = max(share_changed(folder / "before" / name, folder / "after" / name) for name in names)
    print(f"{' '.join(words)}: {'identical' if not share else f'{share:.2e} changed'}", flush=True)
    return share


def share_changed(before: Path, after: Path) -> float:
    first, second = (np.asarray(nib.Nifti1Image.from_filename(path).dataobj) for path in (before, after))
    return float((first != second).mean()) if first.shape == second.shape else 1.0


def run(*command: object, **environment: str) -> None:
    words = [str(word) for word in command]
    subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, stdout=sys.stderr, check=True)


if __name__ == "__main__":
    sys.exit(main())
