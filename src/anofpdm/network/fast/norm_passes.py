"""The passes over memory of the fused norm, in Triton."""

import triton
import triton.language as tl


@triton.jit
def load_rows(table, number, width, column, inside):
    """Columns of the rows `number` and `number + 1` of a table."""
    at = table + number * width + column
    return tl.load(at, inside, 0.0).to(tl.float32), tl.load(at + width, inside, 0.0).to(tl.float32)


@triton.jit
def _store_rows(table, number, width, column, inside, first, second):
    at = table + number * width + column
    tl.store(at, first, inside)
    tl.store(at + width, second, inside)


@triton.jit
def _load(pointers, inside):
    return tl.load(pointers, inside, 0.0).to(tl.float32)


@triton.jit
def tile_at(place, channel, n, places, channels):
    """Offsets and mask of the tile [place, channel] of slice n in a tensor [N, places, C]."""
    inside = (place[:, None] < places) & (channel[None, :] < channels)
    return n.to(tl.int64) * places * channels + place[:, None] * channels + channel[None, :], inside


@triton.jit
def _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE: tl.constexpr):
    """x and the gradient of the loss with respect to z, from the gradient with respect to silu(z)."""
    gain, offset = load_rows(coefficients, 4 * n, channels, channel, channel < channels)
    values, dz = _load(x + at, inside), _load(dy + at, inside)
    if ACTIVATE:
        z = values * gain[None, :] + offset[None, :]
        s = tl.sigmoid(z)
        dz = dz * s * (1.0 + z * (1.0 - s))
    return values, dz, gain


@triton.jit
def sums_over_places(
    x, dy, coefficients, sums, places, channels, first, width,
    BACK: tl.constexpr, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of x and its squares, or back, of dz and its products with x: channels from `first` on of sums [N, splits, 2,
    width]."""
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channel = tl.arange(0, WIDE)
    total, products = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(split * ROWS, places, splits * ROWS):
        at, inside = tile_at(start + tl.arange(0, ROWS), channel, n, places, channels)
        if BACK:
            values, summed, _ = _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE)
        else:
            values = _load(x + at, inside)
            summed = values
        total += summed
        products += summed * values
    row, here = 2 * (n * splits + split), channel < channels
    _store_rows(sums, row, width, first + channel, here, tl.sum(total, 0), tl.sum(products, 0))


@triton.jit
def _sums_of_group(sums, n, channel, here, channels, SPLITS: tl.constexpr):
    """Both sums of a group's channels, over all splits."""
    split = n * SPLITS + tl.arange(0, SPLITS)
    first, second = load_rows(sums, 2 * split[:, None], channels, channel[None, :], here[None, :])
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def gain_and_offset(
    sums, weight, bias, scale, scale_row, shift, shift_row, coefficients, places, channels, share, epsilon,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, MODULATED: tl.constexpr,
):  # fmt: skip
    n, within = tl.program_id(0), tl.arange(0, WIDE)
    channel, here = tl.program_id(1) * share + within, within < share
    total, squares = _sums_of_group(sums, n, channel, here, channels, SPLITS)
    count = places * share
    mean = tl.sum(total, 0) / count
    spread = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, 0) / count - mean * mean, 0.0) + epsilon)
    w, b = _load(weight + channel, here), _load(bias + channel, here)
    gain, offset = spread * w, b - mean * spread * w
    if MODULATED:
        more = 1.0 + _load(scale + n * scale_row + channel, here)
        gain, offset = gain * more, offset * more + _load(shift + n * shift_row + channel, here)
    _store_rows(coefficients, 4 * n, channels, channel, here, gain, offset)
    _store_rows(coefficients, 4 * n + 2, channels, channel, here, mean, spread)


@triton.jit
def apply(
    x, coefficients, y, places, channels, first, width, stride,
    ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Writes channels from `first` on of y [N, places, width]; from slice to slice, y advances by `stride`."""
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    gain, offset = load_rows(coefficients, 4 * n, width, first + channel, channel < channels)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at, inside = tile_at(place, channel, n, places, channels)
    z = _load(x + at, inside) * gain[None, :] + offset[None, :]
    if ACTIVATE:
        z = z * tl.sigmoid(z)
    to = n.to(tl.int64) * stride + place[:, None] * width + first + channel[None, :]
    tl.store(y + to, z.to(y.dtype.element_ty), inside)


@triton.jit
def slope_and_level(
    sums, weight, bias, scale, scale_row, coefficients, slopes, small, places, channels, share, slices,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, MODULATED: tl.constexpr,
):  # fmt: skip
    n, within = tl.program_id(0), tl.arange(0, WIDE)
    channel, here = tl.program_id(1) * share + within, within < share
    total, weighted = _sums_of_group(sums, n, channel, here, channels, SPLITS)
    mean, spread = load_rows(coefficients, 4 * n + 2, channels, channel, here)
    w, b = _load(weight + channel, here), _load(bias + channel, here)
    more = tl.full((WIDE,), 1.0, tl.float32)
    if MODULATED:
        more += _load(scale + n * scale_row + channel, here)
    normal = spread * (weighted - mean * total)  # sum of dz * (x - mean) / deviation
    count = places * share
    slope = -spread * spread * (tl.sum(w * more * normal, 0) / count)
    level = -spread * (tl.sum(w * more * total, 0) / count) - slope * mean
    _store_rows(slopes, 2 * n, channels, channel, here, slope, level)
    row = slices * channels  # of small [4, slices * channels]
    _store_rows(small, 0, row, n * channels + channel, here, more * normal, more * total)
    _store_rows(small, 2, row, n * channels + channel, here, w * normal + b * total, total)


@triton.jit
def apply_back(
    x, dy, coefficients, slopes, dx, places, channels, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    slope, level = load_rows(slopes, 2 * n, channels, channel, channel < channels)
    at, inside = tile_at(tl.program_id(1) * ROWS + tl.arange(0, ROWS), channel, n, places, channels)
    values, dz, gain = _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE)
    result = gain[None, :] * dz + slope[None, :] * values + level[None, :]
    tl.store(dx + at, result.to(dx.dtype.element_ty), inside)
