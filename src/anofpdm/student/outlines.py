"""Where the edge of a mask lies between pixels.

Pixels of a student are larger than voxels of most scans. A mask that is interpolated from pixels that are lesion or not
has steps, and changes by whole pixels with small changes of a scan. Logits cross their threshold between pixels.
"""

import numpy as np

SPREAD = 2.0  # logits from the edge of a lesion to where levels are 0 or 1


def outline_levels(raised: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Logits minus their thresholds, and the masks that were drawn where these are at least 0, both [n, H, W] ->
    float32 [n, H, W]: 0.5 and more in the masks, 0 in what was not drawn."""
    levels = np.clip(raised / SPREAD, -1, 1, dtype=np.float32) / 2 + np.float32(0.5)
    not_drawn = (raised >= 0) & ~masks
    levels[not_drawn | ~masks.any(axis=(1, 2), keepdims=True)] = 0
    return levels
