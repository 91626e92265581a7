"""Synthetic segmentations with known numbers, to compare pages with."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET
from PIL import Image
from scipy import ndimage

from anofpdm.method.decision import Decisions, DecisionSettings, SliceEvidence
from anofpdm.method.mask import MaskSettings
from anofpdm.report.display import DecisionRules, DisplayData, SliceSpace, average_estimate
from anofpdm.report.summary import InputFile, Summary
from anofpdm.scans import AxialPlanes, Grid
from anofpdm.scans.findings import find_lesions
from anofpdm.segment.result import Segmentation
from anofpdm.util.drawing import encode_png
from tests import toys

PICTURE = encode_png(Image.new("RGB", (1194, 224)))
SIZE, LEVELS, CUT = 32, (0, 100, 200, 300, 400), 0.99


SETTINGS = {
    "anofpdm": "0.1.0", "model_sha256": "4f" * 32, "calibration_sha256": "a1" * 32, "scored": ["flair"],
    "brain_mask": None, "decision": {"mask": {"smallest": 40}},
}  # fmt: skip


def decisions_of(rng, drawn, detector):
    n = len(drawn)
    lesion = drawn.any(axis=(1, 2))
    maps = ndimage.gaussian_filter(drawn.astype(np.float32), (0, 1, 1)) + 0.05 * rng.random(drawn.shape, np.float32)
    odds = np.where(lesion, 2.5, -2.5) + rng.normal(size=n)
    similarity = np.where(lesion, 0.97, 0.995) + 0.001 * rng.random(n)
    detected = {"none": np.ones(n, bool), "cosine": similarity <= CUT}.get(detector, odds >= 0)
    score = {"none": maps.max(axis=(1, 2)), "cosine": CUT - similarity}.get(detector, odds)
    masks = drawn & detected[:, None, None]
    return Decisions(
        maps=maps, masks=masks, outlines=masks.astype(np.float32), drawn=drawn, score=score,
        log_odds=odds, threshold=np.full(n, 0.5), highest_threshold=np.full(n, 0.5), evidence=SliceEvidence(
            np.arange(n), similarity, rng.choice(LEVELS, n), rng.random(n) / 100, rng.uniform(0.9, 0.98, n), LEVELS,
            *(rng.random((n, len(LEVELS))) / 100 for _ in range(3)),
        ),
    )  # fmt: skip


def segmented(
    *,
    n=9,
    first=3,
    size=SIZE,
    detector="curve",
    threshold="quantile",
    modalities=("flair", "t2"),
    files=None,
    warnings=(),
    engine="diffusion",
    curves=True,
    radius=7.0,
    axes="LPS",
    changes=None,
    study=None,
    rules=None,
):
    """A ball of noise with a spherical lesion; slices are numbered from `first`."""
    rng = np.random.default_rng(3)
    shape = (size, size, first + n + 2)
    affine = toys.affine_of(axes, (2.0, 2.0, 3.0), shape=shape)
    grid, indices = Grid.from_affine(shape, affine), np.arange(first, first + n)
    planes = AxialPlanes(grid, size)
    head = planes.axial(toys.ball(affine, shape, (0, 0, 0), size * 0.9))
    lesion = planes.axial(toys.ball(affine, shape, (14, -10, 1), radius))
    pixels = np.where(head[indices][:, None], rng.uniform(-0.5, 1, (n, len(modalities), *head.shape[1:])), -1)
    decisions = decisions_of(rng, lesion[indices], detector)
    if not curves:
        decisions = replace(decisions, evidence=None)
    for name, value in (changes or {}).items():
        object.__setattr__(decisions if hasattr(decisions, name) else decisions.evidence, name, value)
    decided = DecisionSettings(detector, mask=MaskSettings(threshold))
    rules = rules or DecisionRules(engine, decided, CUT)
    estimate = None if decisions.estimated_dice is None else average_estimate(decisions)
    mask = planes.to_native(decisions.masks, indices) >= 0.5
    anomaly_map = planes.to_native(decisions.maps, indices)
    files = files or {name: f"/data/{name}.nii.gz" for name in modalities}
    return Segmentation(
        mask=mask, anomaly_map=anomaly_map, grid=grid, slices=[],
        findings=find_lesions(mask, anomaly_map, affine), decisions=decisions,
        summary=Summary(
            volume_ml=float(mask.sum() * grid.voxel_ml), estimated_dice=estimate, slices=n,
            slices_detected=int(decisions.detected.sum()),
            settings=dict(SETTINGS), warnings=list(warnings), seconds=1.5,
            inputs={name: InputFile(path, "0" * 64) for name, path in files.items()}, study=study or UNSET,
        ),
        display=DisplayData(
            pixels.astype(np.float16), indices, planes.pixel_mm, tuple(modalities),
            SliceSpace(grid, np.eye(4)), rules,
        ),
        pictures=dict.fromkeys((study or {"series": ()})["series"], PICTURE),
    )  # fmt: skip


NASTY = "</script ><script >alert(1)</script><img src=x onerror=alert(2)>&amp;\"'<!--\u2028"
STUDY = {
    "folder": "/data/preparation", "reference": "flair", "series": {
        "flair": {"file": "flair.nii.gz", "brain_ml": 1400.0, "seconds": {"brain": 5.0}, "reused": []},
        "t2": {
            "file": NASTY, "brain_ml": 1390.0, "seconds": {"brain": 5.0, "registration": 7.0}, "reused": ["brain"],
            "registration": {"kept": False, "moved_mm": 3.14, "rotated_degrees": 18.2}, "agreement": {"dice": 0.96},
        },
    },
}  # fmt: skip
KINDS = {
    "raw study": {"study": STUDY},
    "default": {},
    "cosine": {"detector": "cosine", "threshold": "both", "modalities": ("flair",)},
    "no detector": {"detector": "none", "threshold": "healthy"},
    "student": {"detector": "student", "engine": "student", "curves": False},
    "estimated": {"engine": "student", "curves": False, "changes": {"estimated_dice": np.linspace(0.5, 0.9, 9)}},
    "no findings": {"radius": -1.0},
    "one slice": {"n": 1, "first": 6},
    "non-finite": {"changes": dict.fromkeys(("score", "threshold", "quantile", "end_step"), np.full(9, np.nan))},
    "names with markup": {
        "modalities": (NASTY, "t2"),
        "files": {NASTY: NASTY, "t2": NASTY},
        "warnings": [NASTY],
        "engine": NASTY,
    },
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def any_kind(request):
    return segmented(**request.param)
