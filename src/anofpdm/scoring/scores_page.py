"""Files of a scored folder: tables, and a self-contained page with plots and the best, median and worst scans."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from anofpdm import __version__
from anofpdm.errors import AnoFPDMError, ScanWarning
from anofpdm.report.blocks import to_markdown
from anofpdm.report.render import render
from anofpdm.scans import AxialPlanes, Grid, mask_slices, read_volume
from anofpdm.scans.grid import bounding_box
from anofpdm.scans.slices import foreground_percentile
from anofpdm.scoring.alignment import align
from anofpdm.scoring.masks import Labels, read_pair
from anofpdm.scoring.pairs import Pair, find_image
from anofpdm.scoring.score_pairs import ScoredScan, ScoringReport
from anofpdm.scoring.scores_tables import format_score, lesions_csv, scores_csv, text_blocks, to_json
from anofpdm.scoring.summary import summarise
from anofpdm.util import drawing
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically

PAGE = "index.html"
TRUE, PREDICTED = (110, 196, 130), drawing.ORANGE  # colours of outlines
SIZE, TILE, TILES = 512, 220, 5  # pixels of a whole slice, and of the part that is shown
SMALLEST_PART = 128
CHART = (540, 300)


def write_report(
    report: ScoringReport, out: Path, labels: tuple[Labels, Labels] = (None, None), images: Path | None = None
) -> None:
    """`images`: a file, or a folder of images, shown behind the outlines."""
    out.mkdir(parents=True, exist_ok=True)
    summary = summarise(report.scans)
    blocks = text_blocks(report, summary)
    with folder_lock(out):
        remove_temporary_files(out)  # of a run that was killed
        files = {
            "scores.csv": scores_csv(report),
            "lesions.csv": lesions_csv(report),
            "scores.json": to_json(report, summary, labels),
            "scores.md": to_markdown(blocks).encode(errors="replace"),
        }
        for name, data in files.items():
            write_atomically(out / name, data)
        charts = {}
        if len(report.scans) > 1:
            charts["Bland-Altman plot of volumes"] = drawing.encode_png(volume_chart(report.scans))
            charts["DICE against the true volume"] = drawing.encode_png(dice_chart(report.scans))
        examples = {
            f"{title}{scan.pair.name}, DICE {format_score('dice', scan.scores.dice)}": drawing.encode_png(
                draw_scan(scan.pair, labels, images)
            )
            for title, scan in choose_examples(report.scans).items()
        }
        page = render(
            "scores.html", blocks=blocks, charts=charts, examples=examples, files=list(files), version=__version__
        )
        write_atomically(out / PAGE, page.encode(errors="replace"))


def choose_examples(scans: Sequence[ScoredScan]) -> dict[str, ScoredScan]:
    """Best, median and worst by DICE, of the scans with a lesion if there are any."""
    shown = [scan for scan in scans if scan.scores.truth_ml] or scans
    ordered = sorted(shown, key=lambda scan: -scan.scores.dice)
    if len(ordered) < 2:
        return dict(zip([""], ordered, strict=False))
    titles = {0: "Best: ", len(ordered) // 2: "Median: ", len(ordered) - 1: "Worst: "}  # of two: the best and the worst
    return {title: ordered[place] for place, title in titles.items()}


# ---- charts ----------------------------------------------------------------------------------------------------------


def volume_chart(scans: Sequence[ScoredScan]) -> Image.Image:
    """Bland-Altman: difference against mean of the two volumes, with mean difference and limits of agreement."""
    volumes = np.array([(scan.scores.predicted_ml, scan.scores.truth_ml) for scan in scans])
    mean, difference = volumes.mean(axis=1), volumes[:, 0] - volumes[:, 1]
    bias, spread = float(difference.mean()), 1.96 * float(difference.std(ddof=1))
    low, high, ends = bias - spread, bias + spread, [mean.min(), mean.max()]
    lines = [
        drawing.Line(mean, difference, drawing.BLUE, dots=True, joined=False),
        drawing.Line(ends, [bias] * 2, drawing.ORANGE, f"mean {bias:+.3g} ml"),
        drawing.Line(ends, [low] * 2, drawing.MUTED, f"1.96 standard deviations ({low:.3g} to {high:.3g})"),
        drawing.Line(ends, [high] * 2, drawing.MUTED),
    ]
    return drawing.chart(lines, "Predicted minus true volume, ml", size=CHART, xlabel="mean of both volumes, ml")


def dice_chart(scans: Sequence[ScoredScan]) -> Image.Image:
    with_lesion = [scan.scores for scan in scans if scan.scores.truth_ml]
    x, y = [math.log10(scores.truth_ml) for scores in with_lesion], [scores.dice for scores in with_lesion]
    line = drawing.Line(x, y, drawing.BLUE, dots=True, joined=False)
    title = "DICE by true volume" + ("" if len(with_lesion) == len(scans) else " (scans with a lesion)")
    return drawing.chart([line], title, size=CHART, xlabel="true volume, ml (log scale)", ylim=(0.0, 1.0), log_x=True)


# ---- scans -----------------------------------------------------------------------------------------------------------


def draw_scan(pair: Pair, labels: tuple[Labels, Labels], images: Path | None) -> Image.Image:
    """Axial slices with both outlines, spread evenly over both masks, cut to the part with masks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)
        predicted, truth, grid = read_pair(pair.predicted, pair.truth, labels)
        image = _read_image(images, pair, grid)
    planes = AxialPlanes(grid, SIZE)
    shown = drawing.choose_slices(planes.axial(predicted | truth).sum(axis=(1, 2)), TILES)
    masks = [mask_slices(mask, planes, shown) for mask in (predicted, truth)]
    pixels = np.zeros(masks[0].shape) if image is None else planes.to_network(planes.axial(image)[shown])
    part = _square(masks[0] | masks[1])
    tiles = []
    for column, index in enumerate(shown):
        tile = drawing.grey_tile(2 * pixels[column][part] - 1, TILE)
        outlines = {TRUE: masks[1][column][part], PREDICTED: masks[0][column][part]}
        tile = drawing.annotate(tile, outlines, "RL" if grid.oriented else "")
        tiles.append(drawing.captioned(tile, f"slice {index + 1}"))
    return drawing.arrange([tiles])


def _read_image(images: Path | None, pair: Pair, grid: Grid) -> np.ndarray | None:
    """In [0, 1], on the grid; None where there is no usable image."""
    path = None if images is None else find_image(images, pair)
    if path is None:
        return None
    try:
        volume = read_volume(path)
        voxels = align(volume.voxels, volume.grid, grid, (path, pair.truth))
        return np.clip(voxels / foreground_percentile(voxels), 0, 1)
    except (AnoFPDMError, OSError, ValueError):
        return None


def _square(masks: np.ndarray) -> tuple[slice, slice]:
    """Rows and columns around the masks [n, SIZE, SIZE], with a margin; the whole slice if they are empty."""
    parts = bounding_box(np.asarray(masks.any(axis=0)))
    longest = max(part.stop - part.start for part in parts)
    side = int(np.clip(1.4 * longest, SMALLEST_PART, SIZE)) if longest else SIZE
    starts = [int(np.clip((part.start + part.stop - 1 - side) // 2, 0, SIZE - side)) for part in parts]
    top, left = (slice(start, start + side) for start in starts)
    return top, left
