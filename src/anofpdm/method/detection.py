"""Is this slice unhealthy? Two detectors, both fitted on image-level labels alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from anofpdm.errors import MethodError

FLOOR = 1e-12  # of a divergence, before its logarithm
FIT_STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # inverse regularisation, as scikit-learn's C
FOLDS = 5
MAX_STEPS, TOLERANCE = 100, 1e-8  # of Newton's method

Scores = np.ndarray  # [N], larger is more unhealthy
Fit = Callable[[np.ndarray], Callable[[np.ndarray], Scores]]  # training rows -> (rows -> scores, detected from 0 on)


# ---- cosine: the paper's ---------------------------------------------------------------------------------------------


def best_cut(similarity: np.ndarray, unhealthy: np.ndarray) -> tuple[float, float]:
    """The most accurate cut, and its accuracy. Slices at or below are unhealthy.

    A cut is a midpoint between adjacent values, or an end; of equally accurate ones, that in the widest gap is taken.
    """
    values, place = np.unique(similarity.astype(np.float64), return_inverse=True)
    # Below all values, a cut is right for the healthy slices; each value that it passes adds unhealthy ones, and loses
    # healthy ones.
    gained = np.bincount(place, np.where(unhealthy, 1, -1))
    correct = np.count_nonzero(~unhealthy) + np.concatenate([[0], gained.cumsum()])
    cuts = np.concatenate([[np.nextafter(values[0], -np.inf)], (values[1:] + values[:-1]) / 2, [values[-1]]])
    gaps = np.concatenate([[0], np.diff(values), [0]])
    best = max(range(len(cuts)), key=lambda k: (correct[k], gaps[k]))
    return float(cuts[best]), float(correct[best] / len(similarity))


# ---- curve: logistic regression on the divergence curve --------------------------------------------------------------


@dataclass(frozen=True)
class CurveDetector:
    centre: np.ndarray  # [K], mean of the logarithms
    scale: np.ndarray  # [K], their standard deviation
    weights: np.ndarray  # [K]
    offset: float
    strength: float  # inverse regularisation of the fit

    def __post_init__(self) -> None:
        arrays = (self.centre, self.scale, self.weights)
        if any(array.ndim != 1 or array.shape != self.centre.shape or not np.isfinite(array).all() for array in arrays):
            raise MethodError("centre, scale and weights of a curve detector must be finite and of one length")
        if (self.scale <= 0).any():
            raise MethodError("the scale of a curve detector must be positive")

    def scores(self, logs: np.ndarray) -> Scores:
        """[N, K] logarithms of divergence curves -> log odds of being unhealthy."""
        return (logs - self.centre) / self.scale @ self.weights + self.offset


def log_curves(divergence: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(divergence, FLOOR))


def fit_curve(logs: np.ndarray, unhealthy: np.ndarray, strength: float) -> CurveDetector:
    """Minimise strength * (sum of log losses) + |weights|^2 / 2 on standardised logarithms; the offset is free."""
    logs = np.asarray(logs, dtype=np.float64)
    centre, scale = logs.mean(axis=0), logs.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    features = np.column_stack([(logs - centre) / scale, np.ones(len(logs))])
    weights = _logistic(features, np.asarray(unhealthy, dtype=np.float64), strength)
    return CurveDetector(centre, scale, weights[:-1], float(weights[-1]), strength)


def _logistic(features: np.ndarray, truth: np.ndarray, strength: float) -> np.ndarray:
    """Newton's method with step halving. The last feature is the offset, which is not regularised."""
    penalty = np.ones(features.shape[1])
    penalty[-1] = 1e-9  # not 0, so that labels of one class have a solution too
    weights = np.zeros(features.shape[1])

    def odds_and_loss(weights: np.ndarray) -> tuple[np.ndarray, float]:
        odds = features @ weights
        log_loss = (np.logaddexp(0, odds) - truth * odds).sum()
        return odds, float(strength * log_loss + (penalty * weights**2).sum() / 2)

    odds, before = odds_and_loss(weights)
    for _ in range(MAX_STEPS):
        chance = expit(odds)
        gradient = strength * features.T @ (chance - truth) + penalty * weights
        hessian = strength * (features * (chance * (1 - chance))[:, None]).T @ features + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        odds, after = odds_and_loss(weights - step)
        while after > before and np.abs(step).max() > TOLERANCE:
            step /= 2
            odds, after = odds_and_loss(weights - step)
        weights, before = weights - step, after
        if np.abs(step).max() <= TOLERANCE:
            break
    return weights


def choose_fit_strength(logs: np.ndarray, unhealthy: np.ndarray, patients: np.ndarray) -> float:
    """The strength with the lowest log loss on held-out patients; of equals, the weakest."""

    def held_out_loss(strength: float) -> float:
        odds = held_out_scores(lambda rows: fit_curve(logs[rows], unhealthy[rows], strength).scores, logs, patients)
        return float(np.logaddexp(0, np.where(unhealthy, -odds, odds)).mean())

    if len(np.unique(patients)) < 2:
        return 1.0
    return min(FIT_STRENGTHS, key=held_out_loss)


def fit_and_validate(logs: np.ndarray, unhealthy: np.ndarray, patients: np.ndarray) -> tuple[CurveDetector, "Accuracy"]:
    """The detector fitted on all patients, and the accuracy of the whole procedure on held-out ones."""

    def fit(rows: np.ndarray) -> CurveDetector:
        strength = choose_fit_strength(logs[rows], unhealthy[rows], patients[rows])
        return fit_curve(logs[rows], unhealthy[rows], strength)

    return fit(np.arange(len(logs))), cross_validate(lambda rows: fit(rows).scores, logs, unhealthy, patients)


# ---- cross-validation ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """On held-out patients. NaN where there is only one patient."""

    accuracy: float = math.nan
    auc: float = math.nan


def cross_validate(fit: Fit, inputs: np.ndarray, unhealthy: np.ndarray, patients: np.ndarray) -> Accuracy:
    if len(np.unique(patients)) < 2:
        return Accuracy()
    scores = held_out_scores(fit, inputs, patients)
    return Accuracy(float(((scores >= 0) == unhealthy).mean()), auc(scores, unhealthy))


def held_out_scores(fit: Fit, inputs: np.ndarray, patients: np.ndarray) -> Scores:
    """Each slice scored by a detector that was fitted without its patient."""
    scores = np.empty(len(inputs))
    for held_out in patient_folds(patients):
        scores[held_out] = fit(np.flatnonzero(~held_out))(inputs[held_out])
    return scores


def patient_folds(patients: np.ndarray) -> Sequence[np.ndarray]:
    """bool [N] each: patients assigned, those with most slices first, to the fold with the fewest slices."""
    names, place, sizes = np.unique(patients, return_inverse=True, return_counts=True)
    filled = np.zeros(min(FOLDS, len(names)))
    fold_of = np.empty(len(names), dtype=int)
    for name in np.argsort(-sizes, kind="stable"):
        fold_of[name] = filled.argmin()
        filled[fold_of[name]] += sizes[name]
    return [fold_of[place] == fold for fold in range(len(filled))]


def auc(scores: Scores, unhealthy: np.ndarray) -> float:
    """Probability that an unhealthy slice scores above a healthy one; ties count half."""
    above, below = scores[unhealthy], np.sort(scores[~unhealthy])
    if not len(above) or not len(below) or np.isnan(scores).any():
        return math.nan
    places = [np.searchsorted(below, above, side).sum() for side in ("left", "right")]  # equal ones do not, or do count
    return float(sum(places) / (2 * len(above) * len(below)))
