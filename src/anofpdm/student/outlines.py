"""Where the edge of a mask lies between pixels.

Pixels of a student are larger than voxels of most scans. A mask that is interpolated from pixels that are lesion or not
has steps, and changes by whole pixels with small changes of a scan. Logits cross their threshold between pixels.
"""

import numpy as np

SPREAD = 2.0  # logits from the edge of a lesion to where levels are 0 or 1


def outline_levels(raised: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """[n, H, W] each: logits minus their thresholds, and masks, parts of where these are at least 0 -> float32
    [n, H, W] from 0 to 1: 0.5 or more in masks; 0 in other components, and in slices without a mask."""
    levels = np.clip(raised / SPREAD, -1, 1, dtype=np.float32) / 2 + np.float32(0.5)
    not_drawn = (raised >= 0) & ~masks
    levels[not_drawn | ~masks.any(axis=(1, 2), keepdims=True)] = 0
    return levels
