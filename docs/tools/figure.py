"""Draws the figures of the README from phantoms: python -m docs.tools.figure

docs/method.svg shows how the method works, with the pictures and numbers of one slice; docs/result.png shows results of
a model that ships. Takes some minutes on a CPU.
"""

import base64
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import anofpdm
from anofpdm.method import NoiseSchedule, forward_evidence
from anofpdm.method.forward_process import Level
from anofpdm.method.guidance import guided_estimate
from anofpdm.phantoms.phantom_cohort import write_phantoms
from anofpdm.scans import AxialPlanes, mask_slices, read_scan, read_volume, scan_slices
from anofpdm.segment.model import Model
from anofpdm.segment.result import Segmentation
from anofpdm.util.drawing import BLUE, OUTLINE, annotate, arrange, encode_png, grey_tile, heat_tile
from docs.tools.method_svg import Pictures, draw_method

DOCS = Path(__file__).resolve().parents[1]
SEED, PATIENTS = 2024, 4  # of phantoms that the model was not trained on
EXPLAINED = 1  # number of the phantom in the figure of the method
SHOWN = (60, 180, 300, 420)  # noise levels in the figure
TILE = 150
CROP = slice(5, -5)  # pixels of a slice that are shown; the rest is background


@dataclass(frozen=True)
class Result:
    """A phantom, segmented."""

    pixels: np.ndarray  # [n, C, H, W]
    truth: np.ndarray  # bool [n, H, W]
    segmentation: Segmentation

    @property
    def largest(self) -> int:
        """The slice with most of the lesion; of a healthy brain, the middle one."""
        area = self.truth.sum(axis=(1, 2))
        return int(area.argmax()) if area.any() else len(area) // 2


def main() -> None:
    model = anofpdm.load("phantom-tumour", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        write_phantoms(Path(folder), "tumour", PATIENTS, SEED)
        scans = sorted(path for path in Path(folder).iterdir() if path.is_dir())
        results = [segment(model, scan) for scan in scans]
        explained = segment(model, scans[EXPLAINED], "diffusion")
    (DOCS / "result.png").write_bytes(draw_results(results, model.modalities.index("flair")))
    (DOCS / "method.svg").write_text(draw_method(gather_pictures(model, explained)))


def segment(model: Model, scan: Path, engine: str = "auto") -> Result:
    files = {name: scan / f"{scan.name}_{name}.nii.gz" for name in model.modalities}
    image = read_scan(files)
    slices = scan_slices(image, model.size)
    mask = read_volume(scan / f"{scan.name}_seg.nii.gz", allow_constant=True).voxels
    truth = mask_slices(mask, AxialPlanes(image.grid, model.size), slices.indices)
    return Result(slices.pixels, truth, model.segment(files, engine=engine))


def gather_pictures(model: Model, result: Result) -> Pictures:
    """Of the slice with most of the lesion, and of a slice without one for comparison."""
    without = np.flatnonzero(~result.truth.any(axis=(1, 2)))
    healthy = int(without[np.abs(without - result.largest).argmin()])  # the nearest
    assert model.diffusion is not None
    trained, calibration = model.diffusion.network, model.diffusion.calibration
    schedule, flair = NoiseSchedule.linear(), model.modalities.index("flair")
    rows: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []

    def on_level(level: Level, _: object) -> None:
        strengths = torch.tensor([calibration.strength])
        guided = guided_estimate(level.x, level.healthy, level.unguided, level.t, strengths, schedule)[:, 0]
        if level.t in SHOWN:
            noisy, healthy, unguided = (tensor[0, flair].numpy() for tensor in (level.x, guided, level.clean))
            rows.append((level.t, noisy, np.clip(healthy, -1, 1), unguided))

    evidence = forward_evidence(
        trained.predict,
        torch.from_numpy(result.pixels[[result.largest, healthy]]),
        levels=calibration.settings.levels,
        strengths=[calibration.strength],
        schedule=schedule,
        seeds=[0, 1],
        channels=calibration.settings.channels,
        on_level=on_level,
    )
    decisions = result.segmentation.decisions
    row, shown = result.largest, grey(result.pixels[result.largest, flair])
    return Pictures(
        unhealthy=picture(shown),
        healthy=picture(grey(result.pixels[healthy, flair])),
        levels=tuple((t, picture(grey(x)), picture(grey(g)), picture(grey(u))) for t, x, g, u in rows),
        map=picture(heat_tile(decisions.maps[row][CROP, CROP], float(decisions.maps[row].max()), TILE)),
        mask=picture(annotate(shown, {OUTLINE: decisions.masks[row][CROP, CROP]})),
        steps=calibration.settings.levels,
        divergence=tuple(tuple(curve) for curve in evidence.divergence[:, 0].tolist()),
    )


def grey(pixels: np.ndarray) -> Image.Image:
    return grey_tile(pixels[CROP, CROP], TILE)


def picture(tile: Image.Image) -> str:
    """As an address that holds the picture itself."""
    return f"data:image/png;base64,{base64.b64encode(encode_png(tile.quantize(64))).decode()}"


def draw_results(results: Sequence[Result], channel: int) -> bytes:
    """A column per phantom: slice, map, outlines of the mask (red) and of the true one (blue)."""
    columns = []
    for result in results:
        decisions, row = result.segmentation.decisions, result.largest
        image = grey(result.pixels[row, channel])
        outlines = {BLUE: result.truth[row][CROP, CROP], OUTLINE: decisions.masks[row][CROP, CROP]}
        heat = heat_tile(decisions.maps[row][CROP, CROP], 1.0, TILE)
        tiles = annotate(image, {}, "RL"), annotate(heat, {}, "RL"), annotate(image, outlines, "RL")
        columns.append(arrange([[tile] for tile in tiles], gap=0))
    return encode_png(arrange([columns], gap=0).quantize(128))


if __name__ == "__main__":
    main()
