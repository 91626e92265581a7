"""Worlds in which the answer is known, and the paper's formulas written down a second time, slowly."""

import numpy as np
import torch
from scipy import ndimage

from anofpdm.choices import Signal
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.evidence import Evidence, EvidenceSettings, SignalMaps

T = 1000
LEVELS = (0, 100, 200, 300)  # of evidence that is made up
FIELDS = ("divergence", "mse_guided", "mse_unguided", "end_step", "maps", "last_maps")  # tensors of evidence


def alpha_bars():
    """Written anew, so that it shares nothing with the schedule under test."""
    return np.cumprod(1 - np.linspace(1e-4, 0.02, T))


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
        clean = torch.stack([self.clean(slice_, t, int(label)) for slice_, label in zip(x, labels, strict=True)])
        return (x - np.sqrt(a) * clean) / np.sqrt(1 - a)


def unlabelled(world):
    """A world asked without a label."""
    return lambda x, t: world(x, t, torch.full((len(x),), NULL))


def some_slices(n=2, channels=2, side=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, side, side, generator=generator, dtype=dtype) * 2 - 1


class Elementwise:
    """A network stand-in that looks at one pixel at a time: bit-identical whatever the batch. Any callable of slices
    [N, C, H, W], an integer level and labels [N] will do."""

    def __init__(self, difference=0.3):
        self.difference = difference

    def __call__(self, x, t, labels):
        assert isinstance(t, int)
        assert (labels.dtype, labels.shape) == (torch.long, x.shape[:1])
        lean = torch.where(labels == HEALTHY, self.difference, 0.0).to(x)[:, None, None, None]
        return torch.tanh(x) * (0.5 + 0.4 * np.cos(t / 150)) + lean * torch.sin(3 * x + t / 100)


def literal(predict, x0, levels, strengths, seeds, channels, encoding="ddim", signal="error", clamp=True):
    """The formulas one slice, one strength, one level at a time, everything kept, in float64."""
    if signal == "agreement":
        error, gradient = (
            literal(predict, x0, levels, strengths, seeds, channels, encoding, part, clamp)
            for part in ("error", "gradient-above")
        )
        alone = (error["end_step"] <= 0.1 * max(levels))[..., None, None]  # low levels only: nothing to agree with
        means = {name: np.cbrt(error[name] ** 2 * gradient[name]) for name in ("maps", "last_maps")}
        return {**error, **{name: np.where(alone, error[name], mean) for name, mean in means.items()}}
    limit = (lambda v: v.clamp(-1, 1)) if clamp else (lambda v: v)
    slices = [
        _literal_slice(predict, slice_, levels, strengths, seed, channels, encoding, signal, limit)
        for slice_, seed in zip(x0, seeds, strict=True)
    ]
    return {name: np.array([values[name] for values in slices]) for name in FIELDS}


def _literal_slice(predict, slice_, levels, strengths, seed, channels, encoding, signal, limit):
    generator, bars = torch.Generator().manual_seed(seed), alpha_bars()
    x_0, x = slice_.double(), None
    kept = []  # (t, x_t, e_h, e_0, u_t)
    for position, t in enumerate(levels):
        a = bars[t]
        if position == 0 or encoding == "ddpm":
            x = np.sqrt(a) * x_0 + np.sqrt(1 - a) * torch.randn(slice_.shape, generator=generator).double()
        e_h, e_0 = (predict(x[None], t, torch.tensor([label]))[0] for label in (HEALTHY, NULL))
        u = limit((x - np.sqrt(1 - a) * e_0) / np.sqrt(a))
        kept.append((t, x, e_h, e_0, u))
        if encoding == "ddim" and position + 1 < len(levels):
            above = bars[levels[position + 1]]
            x = np.sqrt(above) * u + np.sqrt(1 - above) * (x - np.sqrt(a) * u) / np.sqrt(1 - a)
    result: dict[str, list] = {name: [] for name in FIELDS}
    result["mse_unguided"] = [float((u - x_0)[channels].square().mean()) for *_, u in kept]
    for w in strengths:
        moved, errors, signals = [], [], []
        for t, x, e_h, e_0, u in kept:
            a = bars[t]
            g = limit((x - np.sqrt(1 - a) * ((1 + w) * e_h - w * e_0)) / np.sqrt(a))
            moved.append(float((g - u)[channels].square().mean()))
            errors.append(float((g - x_0)[channels].square().mean()))
            gradient = (e_h - e_0).square() / (1 - a)
            chosen = {
                "error": (g - x_0).square(),
                "gradient": gradient,
                "gradient-weighted": ((1 + w) * (1 - a)) ** 2 / a * gradient,
                "gradient-above": gradient * (1e-12 if t <= 0.1 * max(levels) else 1),
            }[signal]
            signals.append(chosen[channels].mean(0).numpy())
        end = int(np.argmax(moved))
        above = sum(t > 0.1 * max(levels) for t in levels[: end + 1])
        counted = max(above, 1) if signal == "gradient-above" else end + 1
        values = (moved, errors, levels[end], np.sum(signals[: end + 1], axis=0) / counted, signals[end])
        for name, value in zip(("divergence", "mse_guided", "end_step", "maps", "last_maps"), values, strict=True):
            result[name].append(value)
    return result


def literal_mask(h, m, m_max):
    """The paper's mask of one slice, from its own table of 101 quantiles."""
    table = np.linspace(0.90, 0.98, 101)[::-1]
    share = min(max(m / m_max, 0), 1)
    return literal_mask_above(h, table[int(np.rint(100 * share))])


def literal_mask_above(h, quantile):
    cut = np.quantile(h, quantile)
    padded = np.pad(h, 2, mode="symmetric")
    height, width = h.shape
    middle = [[np.median(padded[i : i + 5, j : j + 5]) for j in range(width)] for i in range(height)]
    mask = np.array(middle) >= cut
    labelled, count = ndimage.label(mask, np.ones((3, 3)))
    limit = round(40 * height * width / 128**2)
    for component in range(1, count + 1):
        if (labelled == component).sum() <= limit:
            mask[labelled == component] = False
    return mask


def made_up(n=40, strengths=(0.0, 2.0, 5.0), seed=0, lift=2.0):
    """Evidence in which unhealthy slices (every second) diverge more; and labels, and patients of four slices each."""
    rng = np.random.default_rng(seed)
    labels, shape = np.arange(n) % 2, (n, len(strengths), len(LEVELS))
    divergence = rng.lognormal(-6, 0.5, shape) * np.where(labels, lift, 1.0)[:, None, None]
    unguided = rng.lognormal(-4, 0.1, (n, len(LEVELS))) * np.arange(1, 5)
    guided = unguided[:, None] + divergence * rng.uniform(0.5, 1.5, shape)
    maps = ndimage.gaussian_filter(rng.random((n, len(strengths), 16, 16)), (0, 0, 2, 2))
    moved, with_guidance, without = map(torch.tensor, (divergence, guided, unguided))
    end_step = torch.tensor(np.array(LEVELS)[divergence.argmax(-1)])
    by_signal = {Signal.ERROR: SignalMaps(torch.tensor(maps), torch.zeros(maps.shape))}
    scheme = EvidenceSettings(LEVELS, (0,))
    evidence = Evidence(scheme, strengths, moved, with_guidance, without, end_step, by_signal)
    return evidence, labels, np.array([f"p{i // 4}" for i in range(n)])
