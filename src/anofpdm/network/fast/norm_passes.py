"""The passes over memory of the fused norm, in Triton."""

import triton
import triton.language as tl


@triton.jit
def _tile_at(place, channel, n, places, channels):
    """Offsets and mask of the tile [place, channel] of slice n in a tensor [N, places, C]."""
    inside = (place[:, None] < places) & (channel[None, :] < channels)
    return n.to(tl.int64) * places * channels + place[:, None] * channels + channel[None, :], inside


@triton.jit
def sums_of_x(x, sums, places, channels, first, row, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """Writes channels from `first` on of sums [N, splits, 2, row]."""
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channel = tl.arange(0, WIDE)
    total, squares = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(split * ROWS, places, splits * ROWS):
        at, inside = _tile_at(start + tl.arange(0, ROWS), channel, n, places, channels)
        values = tl.load(x + at, inside, 0.0).to(tl.float32)
        total += values
        squares += values * values
    out = sums + ((n * splits + split) * 2) * row + first + channel
    tl.store(out, tl.sum(total, 0), channel < channels)
    tl.store(out + row, tl.sum(squares, 0), channel < channels)


@triton.jit
def _group_sums(sums, n, channel, here, channels, SPLITS: tl.constexpr):
    """Both sums of a group's channels, over all splits."""
    split = n * SPLITS + tl.arange(0, SPLITS)
    at = split[:, None] * 2 * channels + channel[None, :]
    return tl.sum(tl.load(sums + at, here[None, :], 0.0), 0), tl.sum(
        tl.load(sums + at + channels, here[None, :], 0.0), 0
    )


@triton.jit
def gain_and_offset(
    sums, weight, bias, scale, scale_row, shift, shift_row, coefficients, places, channels, share, epsilon,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, MODULATED: tl.constexpr,
):  # fmt: skip
    n, within = tl.program_id(0), tl.arange(0, WIDE)
    channel, here = tl.program_id(1) * share + within, within < share
    total, squares = _group_sums(sums, n, channel, here, channels, SPLITS)
    count = places * share
    mean = tl.sum(total, 0) / count
    spread = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, 0) / count - mean * mean, 0.0) + epsilon)
    w, b = tl.load(weight + channel, here, 0.0).to(tl.float32), tl.load(bias + channel, here, 0.0).to(tl.float32)
    gain, offset = spread * w, b - mean * spread * w
    if MODULATED:
        more = 1.0 + tl.load(scale + n * scale_row + channel, here, 0.0).to(tl.float32)
        gain, offset = gain * more, offset * more + tl.load(shift + n * shift_row + channel, here, 0.0).to(tl.float32)
    out = coefficients + n * 4 * channels + channel
    tl.store(out, gain, here)
    tl.store(out + channels, offset, here)
    tl.store(out + 2 * channels, tl.zeros((WIDE,), tl.float32) + mean, here)
    tl.store(out + 3 * channels, tl.zeros((WIDE,), tl.float32) + spread, here)


@triton.jit
def apply(
    x, coefficients, y, places, channels, first, row, stride,
    ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Writes channels from `first` on of y [N, places, row]; from slice to slice, y advances by `stride`."""
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    gain = tl.load(coefficients + n * 4 * row + first + channel, channel < channels, 0.0)
    offset = tl.load(coefficients + (n * 4 + 1) * row + first + channel, channel < channels, 0.0)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at, inside = _tile_at(place, channel, n, places, channels)
    z = tl.load(x + at, inside, 0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    if ACTIVATE:
        z = z * tl.sigmoid(z)
    to = n.to(tl.int64) * stride + place[:, None] * row + first + channel[None, :]
    tl.store(y + to, z.to(y.dtype.element_ty), inside)


@triton.jit
def _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE: tl.constexpr):
    """x and the gradient of the loss with respect to z, from the gradient with respect to silu(z)."""
    gain = tl.load(coefficients + n * 4 * channels + channel, channel < channels, 0.0)
    offset = tl.load(coefficients + (n * 4 + 1) * channels + channel, channel < channels, 0.0)
    values = tl.load(x + at, inside, 0.0).to(tl.float32)
    dz = tl.load(dy + at, inside, 0.0).to(tl.float32)
    if ACTIVATE:
        z = values * gain[None, :] + offset[None, :]
        s = tl.sigmoid(z)
        dz = dz * s * (1.0 + z * (1.0 - s))
    return values, dz, gain


@triton.jit
def sums_of_dz(
    x, dy, coefficients, sums, places, channels, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channel = tl.arange(0, WIDE)
    total, weighted = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(split * ROWS, places, splits * ROWS):
        at, inside = _tile_at(start + tl.arange(0, ROWS), channel, n, places, channels)
        values, dz, _ = _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE)
        total += dz
        weighted += dz * values
    out = sums + ((n * splits + split) * 2) * channels + channel
    tl.store(out, tl.sum(total, 0), channel < channels)
    tl.store(out + channels, tl.sum(weighted, 0), channel < channels)


@triton.jit
def slope_and_level(
    sums, weight, bias, scale, scale_row, coefficients, slopes, small, places, channels, share, slices,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, MODULATED: tl.constexpr,
):  # fmt: skip
    n, within = tl.program_id(0), tl.arange(0, WIDE)
    channel, here = tl.program_id(1) * share + within, within < share
    total, weighted = _group_sums(sums, n, channel, here, channels, SPLITS)
    mean = tl.load(coefficients + (n * 4 + 2) * channels + channel, here, 0.0)
    spread = tl.load(coefficients + (n * 4 + 3) * channels + channel, here, 0.0)
    w, b = tl.load(weight + channel, here, 0.0).to(tl.float32), tl.load(bias + channel, here, 0.0).to(tl.float32)
    more = tl.full((WIDE,), 1.0, tl.float32)
    if MODULATED:
        more += tl.load(scale + n * scale_row + channel, here, 0.0).to(tl.float32)
    normal = spread * (weighted - mean * total)  # sum of dz * (x - mean) / deviation
    count = places * share
    slope = -spread * spread * (tl.sum(w * more * normal, 0) / count)
    level = -spread * (tl.sum(w * more * total, 0) / count) - slope * mean
    tl.store(slopes + n * 2 * channels + channel, slope, here)
    tl.store(slopes + (n * 2 + 1) * channels + channel, level, here)
    out = small + n * channels + channel
    tl.store(out, more * normal, here)
    tl.store(out + slices * channels, more * total, here)
    tl.store(out + 2 * slices * channels, w * normal + b * total, here)
    tl.store(out + 3 * slices * channels, total, here)


@triton.jit
def apply_back(
    x, dy, coefficients, slopes, dx, places, channels, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    slope = tl.load(slopes + n * 2 * channels + channel, channel < channels, 0.0)
    level = tl.load(slopes + (n * 2 + 1) * channels + channel, channel < channels, 0.0)
    at, inside = _tile_at(tl.program_id(1) * ROWS + tl.arange(0, ROWS), channel, n, places, channels)
    values, dz, gain = _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE)
    result = gain[None, :] * dz + slope[None, :] * values + level[None, :]
    tl.store(dx + at, result.to(dx.dtype.element_ty), inside)
