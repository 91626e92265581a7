"""Worlds in which the answer is known, and the paper's formulas written down a second time, slowly."""

import numpy as np
import torch
from scipy import ndimage

from anofpdm.labels import HEALTHY, NULL

T = 1000
FIELDS = ("divergence", "mse_guided", "mse_unguided", "end_step", "maps", "last_maps")  # tensors of evidence


def alpha_bars():
    """Written anew, so that it shares nothing with the schedule under test."""
    kept, bars = 1.0, []
    for number in range(T):
        kept *= 1 - (1e-4 + (0.02 - 1e-4) * number / (T - 1))
        bars.append(kept)
    return np.array(bars)


class TwoGaussians:
    """Slices are N(mean[label], variance) at every pixel; the exact noise in x_t, for each label and for no label.

    Without a label the slice is a mixture. To keep closed forms, NULL stands for a Gaussian of its own mean here.
    """

    def __init__(self, healthy_mean, null_mean, variance):
        self.means, self.variance, self.bars = {HEALTHY: healthy_mean, NULL: null_mean}, variance, alpha_bars()

    def clean(self, x, t, label):
        """E[x0 | x_t]."""
        a = self.bars[t]
        gain = np.sqrt(a) * self.variance / (a * self.variance + 1 - a)
        return self.means[label] + gain * (x - np.sqrt(a) * self.means[label])

    def __call__(self, x, t, labels):
        a = self.bars[t]
        clean = torch.stack([self.clean(one, t, int(label)) for one, label in zip(x, labels, strict=True)])
        return (x - np.sqrt(a) * clean) / np.sqrt(1 - a)


def unlabelled(world):
    """A world asked without a label."""
    return lambda x, t: world(x, t, torch.full((len(x),), NULL))


def some_slices(n=2, channels=2, side=6):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, side, side, generator=generator, dtype=torch.float64) * 2 - 1


class Elementwise:
    """A network stand-in that looks at one pixel at a time: bit-identical whatever the batch."""

    def __init__(self, difference=0.3):
        self.difference = difference

    def __call__(self, x, t, labels):
        lean = torch.where(labels == HEALTHY, self.difference, 0.0).to(x)[:, None, None, None]
        return torch.tanh(x) * (0.5 + 0.4 * np.cos(t / 150)) + lean * torch.sin(3 * x + t / 100)


def literal(predict, x0, levels, strengths, seeds, channels, encoding, signal, clamp):
    """The formulas one slice, one strength, one level at a time, everything kept, in float64."""
    bars = alpha_bars()
    limit = (lambda v: v.clamp(-1, 1)) if clamp else (lambda v: v)
    found: dict[str, list] = {name: [] for name in FIELDS}
    for number, slice_ in enumerate(x0):
        for name, value in _literal_slice(
            predict, slice_, levels, strengths, seeds[number], channels, encoding, signal, limit, bars
        ).items():
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def literal_agreement(predict, x0, levels, strengths, seeds, channels, encoding, clamp):
    """`literal` of agreement: arguments as there, without the signal."""
    error, gradient = (
        literal(predict, x0, levels, strengths, seeds, channels, encoding, signal, clamp)
        for signal in ("error", "gradient-above")
    )
    alone = (error["end_step"] <= 0.1 * max(levels))[..., None, None]  # low levels only: nothing to agree with
    both = {name: np.cbrt(error[name] ** 2 * gradient[name]) for name in ("maps", "last_maps")}
    return {**error, **{name: np.where(alone, error[name], both[name]) for name in both}}


def _literal_slice(predict, slice_, levels, strengths, seed, channels, encoding, signal, limit, bars):
    generator = torch.Generator().manual_seed(seed)
    x_0 = slice_.double()
    kept = []  # (t, x_t, e_h, e_0, u_t)
    x = None
    for position, t in enumerate(levels):
        a = bars[t]
        if position == 0 or encoding == "ddpm":
            x = np.sqrt(a) * x_0 + np.sqrt(1 - a) * torch.randn(slice_.shape, generator=generator).double()
        e_h = predict(x[None], t, torch.tensor([HEALTHY]))[0]
        e_0 = predict(x[None], t, torch.tensor([NULL]))[0]
        u = limit((x - np.sqrt(1 - a) * e_0) / np.sqrt(a))
        kept.append((t, x, e_h, e_0, u))
        if encoding == "ddim" and position + 1 < len(levels):
            above = bars[levels[position + 1]]
            x = np.sqrt(above) * u + np.sqrt(1 - above) * (x - np.sqrt(a) * u) / np.sqrt(1 - a)
    result: dict[str, list] = {name: [] for name in ("divergence", "mse_guided", "end_step", "maps", "last_maps")}
    result["mse_unguided"] = [float((u - x_0)[channels].square().mean()) for *_, u in kept]
    for w in strengths:
        moved, errors, signals = [], [], []
        for t, x, e_h, e_0, u in kept:
            a = bars[t]
            g = limit((x - np.sqrt(1 - a) * ((1 + w) * e_h - w * e_0)) / np.sqrt(a))
            moved.append(float((g - u)[channels].square().mean()))
            errors.append(float((g - x_0)[channels].square().mean()))
            gradient = (e_h - e_0).square() / (1 - a)
            c = (1 + w) * (1 - a) / np.sqrt(a)
            chosen = {
                "error": (g - x_0).square(),
                "gradient": gradient,
                "gradient-weighted": c**2 * gradient,
                "gradient-above": gradient * (1e-12 if t <= 0.1 * max(levels) else 1),
            }[signal]
            signals.append(chosen[channels].mean(0).numpy())
        end = int(np.argmax(moved))
        result["divergence"].append(moved)
        result["mse_guided"].append(errors)
        result["end_step"].append(levels[end])
        above = sum(t > 0.1 * max(levels) for t in levels[: end + 1])
        counted = max(above, 1) if signal == "gradient-above" else end + 1
        result["maps"].append(np.sum(signals[: end + 1], axis=0) / counted)
        result["last_maps"].append(signals[end])
    return result


def literal_mask(h, m, m_max):
    """The paper's mask of one slice, from its own table of 101 quantiles."""
    table = np.linspace(0.90, 0.98, 101)[::-1]
    strength = min(max(m / m_max, 0), 1)
    cut = np.quantile(h, table[int(np.rint(100 * strength))])
    padded = np.pad(h, 2, mode="symmetric")
    height, width = h.shape
    middle = [[np.median(padded[i : i + 5, j : j + 5]) for j in range(width)] for i in range(height)]
    drawn = np.array(middle) >= cut
    labelled, count = ndimage.label(drawn, np.ones((3, 3)))
    limit = round(40 * height * width / 128**2)
    for component in range(1, count + 1):
        if (labelled == component).sum() <= limit:
            drawn[labelled == component] = False
    return drawn
