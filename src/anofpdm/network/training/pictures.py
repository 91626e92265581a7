"""Two pictures of a training run: what the network draws for each label, and where along the noise it errs."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.util.drawing import BACKGROUND, BLUE, FOREGROUND, MUTED, encode_png, font

GAP, CAPTION = 6, 20


def sample_grid(samples: np.ndarray, captions: Sequence[str]) -> bytes:
    """PNG of samples [rows, columns, C, H, W] in [-1, 1]; a caption over each row, modalities side by side."""
    rows, columns, channels, height, width = samples.shape
    block = channels * width + GAP
    sheet = Image.new("RGB", (GAP + columns * block, GAP + rows * (height + CAPTION + GAP)), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for row in range(rows):
        top = GAP + row * (height + CAPTION + GAP)
        pen.text((GAP, top), captions[row], MUTED, font())
        for column in range(columns):
            strip = np.concatenate(list(samples[row, column]), axis=1)  # [H, C * W]
            grey = np.round((np.clip(strip, -1, 1) + 1) * 127.5).astype(np.uint8)
            sheet.paste(Image.fromarray(grey).convert("RGB"), (GAP + column * block, top + CAPTION))
    return encode_png(sheet)


def bars(heights: Sequence[float], names: Sequence[str], title: str) -> bytes:
    """PNG of a bar chart; a bar without a value is left out."""
    width, height, base = 56, 160, 220
    sheet = Image.new("RGB", (GAP * 2 + width * len(heights), base + 30), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP), title, FOREGROUND, font())
    highest = max((h for h in heights if np.isfinite(h)), default=1.0) or 1.0
    for number, (value, name) in enumerate(zip(heights, names, strict=True)):
        left = GAP + number * width
        pen.text((left + 4, base + 6), name, MUTED, font())
        if np.isfinite(value):
            top = base - height * value / highest
            pen.rectangle((left + 4, top, left + width - 4, base), BLUE)
            pen.text((left + 4, top - 16), f"{value:.3g}", FOREGROUND, font())
    return encode_png(sheet)
