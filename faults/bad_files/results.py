"""Scans that cannot be right although their files are intact, and folders that hold other results."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from faults.bad_files.base import AFFINE, Case, Make, ValidFiles, head, segment, segment_flair, segment_valid
from tests import toys

KIND, EARLIER = "implausible scan, other result", "earlier"


def cases() -> Iterator[Case]:
    for engine in ("diffusion", "student"):
        yield Case(f"{engine}: voxels in centimetres", KIND, _scaled(0.1, engine), mentions="smaller than the head")
        yield Case(f"{engine}: voxels too large", KIND, _scaled(4.0, engine), mentions="for a head")
        yield Case(f"{engine}: one image twice", KIND, _twice(engine), mentions="exactly the image of")
        yield Case(f"{engine}: into another model's result", KIND, _over(engine), mentions="was made by another")
    yield Case("join a nested summary", KIND, _join(b"[" * 100_000), mentions="damaged")
    yield Case("join a summary of another type", KIND, _join(b"[1, 2]"), mentions="damaged")


def _scaled(factor: float, engine: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        grid = AFFINE.copy()
        grid[:3] *= factor
        for seed, modality in enumerate(("flair", "t1", "t1ce", "t2")):
            toys.save(folder / "in" / f"p_{modality}.nii.gz", head(seed), grid)
        return segment(files, "in", engine=engine)

    return make


def _twice(engine: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copy(files.scan_path("t2"), folder / "f.nii.gz")
        return segment_flair(files, "f.nii.gz", engine=engine)

    return make


def _over(engine: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        settings = {"engine": "student", "model_sha256": "0"}
        summary = {"volume_ml": 1.0, "model": "another", "settings": settings, "inputs": {}}
        _write(folder, json.dumps(summary).encode())
        return [{"out": EARLIER}.get(word, word) for word in segment_valid(files, engine=engine)]

    return make


def _join(summary: bytes) -> Make:
    def make(folder: Path, _files: ValidFiles) -> list[str]:
        _write(folder, summary)
        return ["join", EARLIER]

    return make


def _write(folder: Path, summary: bytes) -> None:
    path = folder / EARLIER / "p" / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(summary)
