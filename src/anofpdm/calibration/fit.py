"""Calibrating a model on a cohort's labelled slices: one pass of the network, and a file beside the weights."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anofpdm.cohorts.store import Cohort, check_slices, foreground
from anofpdm.errors import CalibrationError, MethodError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import (
    ACCURACY_RATIO,
    CONTEXT_MM,
    STRENGTHS,
    Calibration,
    calibrate,
    check_both_classes,
    chosen_candidate,
    for_maps_of,
    from_json,
    rated_strengths,
    to_json,
)
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import auc
from anofpdm.method.evidence import (
    AUTHORS_TOP,
    SIGNALS,
    Evidence,
    EvidenceSettings,
    LevelEvidence,
    joined,
    spread_levels,
)
from anofpdm.method.many_slices import BATCH, signals_of, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.util.drawing import BLUE, ORANGE, Line, chart, encode_png, hstack_images
from anofpdm.util.files import read_regular_file, remove_temporary_files, write_atomically

FILE, FIGURE = "calibration.json", "calibration.png"
LEVELS = 10  # on real slices as good as 600: results/levels.md
RATED_BY = "error"  # whose maps choose the strength, whatever is segmented by: others hardly depend on it
AUTO = "auto"  # the signal is chosen by labels
WEAK_MAPS = 0.85  # AUC on labels below which maps of errors give way to agreement: results/agreement.md
TOPS = (300, 400, 500, 600, 800, 1000)  # of the noise range, tried when it is chosen by labels


@dataclass(frozen=True)
class Options:
    score: tuple[str, ...] = ()  # modalities; none named: all
    strengths: tuple[float, ...] = STRENGTHS
    levels: int = LEVELS  # in a range of 600; the same distance in any other
    top: int | None = AUTHORS_TOP  # None: chosen by labels
    encoding: str = "ddim"
    signal: str = AUTO
    clamp: bool = True
    accuracy_ratio: float = ACCURACY_RATIO
    strength_by: str = "map"  # the better choice: results/strengths.md
    context_mm: float = CONTEXT_MM
    split: str = "val"
    most: int = 2000  # slices, in whole scans
    seed: int = 0
    batch: int = BATCH

    def __post_init__(self) -> None:
        if self.signal not in (AUTO, *SIGNALS):
            raise MethodError(f"unknown signal {self.signal!r}; choose one of {', '.join((AUTO, *SIGNALS))}")

    def settings(self, channels: tuple[int, ...]) -> EvidenceSettings:
        top = self.top or max(TOPS)
        count = max(1, round(self.levels * top / AUTHORS_TOP))
        return EvidenceSettings(spread_levels(count, top), channels, self.encoding, self.signals[-1], self.clamp)

    @property
    def signals(self) -> tuple[str, ...]:
        """What evidence is gathered of: of errors always."""
        return tuple(dict.fromkeys((RATED_BY, "agreement" if self.signal == AUTO else self.signal)))


@dataclass(frozen=True)
class Range:
    """How well labels are told apart with the noise range ending here."""

    top: int
    accuracy: float
    auc: float  # of the largest divergence alone


@dataclass(frozen=True)
class Calibrated:
    calibration: Calibration
    evidence: Evidence  # of errors, at the chosen range
    labels: np.ndarray
    ranges: tuple[Range, ...]  # tried; none where the range was given
    made_for: Callable[[str, str], Calibration]  # of a signal that was gathered, and a way to choose the strength


def fit_calibration(
    model: TrainedModel,
    cohort: Cohort,
    options: Options,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    *,
    last_maps: bool = False,
) -> Calibrated:
    """From image-level labels of one split. The cohort has no way to a mask, and neither has this.

    Calibration itself needs no last maps; whoever does can have them kept in the evidence.
    """
    check_fits(model, cohort)
    options.settings(model.channels(options.score))  # refuses what cannot be, before any time is spent
    rows = labelled_rows(cohort, options.split, options.most, options.seed)
    labels, patients = cohort.labels[rows], cohort.patients[rows]
    check_both_classes(labels)
    check_slices(cohort, rows)
    tried = gather(model, cohort, rows, options, on_progress, last_maps=last_maps)
    top, ranges = chosen_range({top: by_signal[RATED_BY] for top, by_signal in tried.items()}, labels, options)
    evidence, places = tried[top], slice_positions(cohort, rows)
    tried.clear()  # gigabytes of maps
    foreground_seen = foreground_range(cohort, np.unique(cohort.scans[rows]))

    @functools.cache
    def by_errors(strength_by: str) -> Calibration:
        found = calibrate(
            evidence[RATED_BY],
            labels,
            patients,
            options.accuracy_ratio,
            places=places,
            context_mm=options.context_mm,
            strength_by=strength_by,
        )
        of_model = found.for_model(model.sha256, model.modalities)
        return replace(of_model, seed=options.seed, foreground=foreground_seen)

    @functools.cache
    def made_for(signal: str, strength_by: str) -> Calibration:
        found = by_errors(strength_by)
        return found if signal == RATED_BY else for_maps_of(evidence[signal], found, labels, places)

    signal = chosen_signal(options, by_errors(options.strength_by))
    calibration = made_for(signal, options.strength_by)
    return Calibrated(calibration, evidence[RATED_BY], labels, ranges, made_for)


def labelled_rows(cohort: Cohort, split: str, most: int, seed: int) -> np.ndarray:
    """Rows of whole scans, drawn at random until there are enough, in the cohort's order."""
    rows = cohort.rows(split)
    rows = rows[np.isin(cohort.labels[rows], (HEALTHY, UNHEALTHY))]
    if not len(rows):
        raise CalibrationError(
            f"{cohort.path}: no slice of its {split!r} split is labelled healthy or unhealthy; choose another --split"
        )
    scans = np.unique(cohort.scans[rows])
    taken: list[np.ndarray] = []
    for scan in np.random.default_rng(seed).permutation(scans):
        if sum(map(len, taken)) >= most:
            break
        taken.append(rows[cohort.scans[rows] == scan])
    return np.sort(np.concatenate(taken))


def gather(
    model: TrainedModel,
    cohort: Cohort,
    rows: np.ndarray,
    options: Options,
    on_progress: Callable[[int, int], None],
    *,
    last_maps: bool = False,
) -> dict[int, dict[str, Evidence]]:
    """Evidence of the options' signals, by the top of the noise range: of one range, or in passing of several. One
    pass of the network."""
    settings, signals = options.settings(model.channels(options.score)), options.signals
    *below, highest = TOPS if options.top is None else (options.top,)
    in_passing: dict[int, list[dict[str, Evidence]]] = {top: [] for top in below}
    last_level = {top: max(t for t in settings.levels if t < top) for top in below}  # two tops may share theirs
    heard: dict[int, dict[str, Evidence]] = {}  # of this batch, which may begin anew when memory runs out

    def listen(now: LevelEvidence) -> None:
        if now.level.t in last_level.values():
            so_far = now.so_far()
            heard[now.level.t] = {signal: slimmed(one, last_maps=last_maps) for signal, one in so_far.items()}

    def keep(evidence: Evidence) -> Evidence:
        if evidence.settings.signal == RATED_BY:  # once a batch
            for top, level in last_level.items():
                in_passing[top].append(heard[level])
        return slimmed(evidence, last_maps=last_maps)

    whole = signals_of(
        model.predict,
        lambda some: cohort.pixels(rows[some]),
        slice_seeds(cohort.indices[rows], options.seed),
        signals,
        settings=settings,
        strengths=options.strengths,
        device=model.device,
        batch=options.batch,
        keep=keep,
        on_progress=on_progress,
        on_level=listen,
    )
    found: dict[int, dict[str, Evidence]] = {}
    for top in below:
        parts = in_passing.pop(top)  # joined they are copied, and gone before the next are
        found[top] = {signal: joined([part[signal] for part in parts]) for signal in signals}
    return {**found, highest: whole}


def slimmed(evidence: Evidence, *, last_maps: bool = False) -> Evidence:
    """On the CPU, maps in half precision: thousands of them are kept until the strength is known."""
    if not last_maps:
        evidence = replace(evidence, last_maps=evidence.last_maps[:, :, :0, :0])
    return evidence.map(lambda t: _halved(t).cpu() if t.ndim == 4 else t.cpu())


def _halved(maps: Tensor) -> Tensor:
    """Without clamping, errors can be larger than half precision can hold."""
    return maps.clamp(max=torch.finfo(torch.float16).max).half()


def chosen_range(tried: Mapping[int, Evidence], labels: np.ndarray, options: Options) -> tuple[int, tuple[Range, ...]]:
    """The range whose best strength tells the labels apart most accurately; of equals, by the divergence's AUC."""
    if len(tried) == 1:
        return next(iter(tried)), ()
    ranges, unhealthy = [], labels == UNHEALTHY
    for top, evidence in tried.items():
        best, chosen = chosen_candidate(rated_strengths(evidence, unhealthy), options.accuracy_ratio)
        largest = evidence.at(chosen.strength).end_divergence[:, 0].numpy()
        ranges.append(Range(top, best.accuracy, auc(largest, unhealthy)))
    return max(ranges, key=lambda one: (one.accuracy, one.auc)).top, tuple(ranges)


def chosen_signal(options: Options, by_errors: Calibration) -> str:
    """Where maps of errors tell labels apart badly, they light up at edges: there gradients must agree with them."""
    if options.signal != AUTO:
        return options.signal
    return "agreement" if (by_errors.rated.map_auc or 0.0) < WEAK_MAPS else RATED_BY


def slice_positions(cohort: Cohort, rows: np.ndarray) -> SlicePositions:
    return SlicePositions(cohort.scans[rows], cohort.indices[rows] * cohort.spacing_mm[rows])


def foreground_range(cohort: Cohort, scans: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest share of foreground among whole scans: to know a scan that is unlike them."""
    shares = [foreground_share(cohort.pixels(np.flatnonzero(cohort.scans == scan))) for scan in scans]
    return min(shares), max(shares)


def foreground_share(pixels: np.ndarray) -> float:
    """Of slices [n, C, H, W]."""
    return float(foreground(pixels).mean())


def check_fits(model: TrainedModel, cohort: Cohort) -> None:
    if cohort.modalities != model.modalities:
        raise CalibrationError(
            f"{model.folder} was trained on {', '.join(model.modalities)}, and {cohort.path} has "
            f"{', '.join(cohort.modalities)}; prepare the cohort with --modalities {','.join(model.modalities)}"
        )
    if cohort.slices.shape[-1] != model.size:
        raise CalibrationError(
            f"{model.folder} works on {model.size} x {model.size}, {cohort.path} has {cohort.slices.shape[-1]}; "
            f"prepare the cohort with --size {model.size}"
        )


# ---- beside the weights ----------------------------------------------------------------------------------------------


def save(calibrated: Calibrated, folder: Path) -> None:
    remove_temporary_files(folder, "calibration.*")
    write_atomically(folder / FIGURE, figure(calibrated))
    write_atomically(folder / FILE, to_json(calibrated.calibration).encode())


def load_calibration(model: TrainedModel) -> tuple[Calibration, str]:
    """The calibration of this very model, and the file's hash."""
    path = model.folder / FILE
    if not path.is_file():
        raise CalibrationError(
            f"{model.folder}: not calibrated (no {FILE}); run `anofpdm calibrate {model.folder} COHORT` first"
        )
    data = read_regular_file(path)
    calibration = from_json(data.decode(errors="replace"), str(path))
    if calibration.checkpoint_sha256 != model.sha256:
        raise CalibrationError(
            f"{path} was made with another checkpoint than the weights beside it (its hash begins with "
            f"{calibration.checkpoint_sha256[:12]}, theirs with {model.sha256[:12]}); calibrate again"
        )
    if calibration.modalities != model.modalities:
        raise CalibrationError(f"{path}: damaged (its modalities are not the model's); calibrate again")
    return calibration, hashlib.sha256(data).hexdigest()


def figure(calibrated: Calibrated) -> bytes:
    """Why this strength, why this cut, and what the curves of both classes look like."""
    calibration, unhealthy = calibrated.calibration, calibrated.labels == UNHEALTHY
    candidates, chosen = calibration.candidates, calibrated.evidence.at(calibration.strength)
    strengths, by_map = [c.strength for c in candidates], calibration.strength_by == "map"
    ratings = [(c.map_auc or 0.0) if by_map else c.accuracy for c in candidates]
    by_strength = chart(
        [Line(strengths, ratings, BLUE, "maps alone" if by_map else "cosine's best cut", dots=True)],
        "AUC on image-level labels" if by_map else "Accuracy on image-level labels",
        xlabel="guidance strength w",
        vlines=[(calibration.best_strength, "best"), (calibration.strength, "w*")],
    )
    similarity = chosen.similarity[:, 0].numpy()
    edges = np.linspace(similarity.min(), similarity.max() + 1e-9, 25)
    middles = (edges[1:] + edges[:-1]) / 2
    counts = [np.histogram(similarity[part], edges)[0] for part in (~unhealthy, unhealthy)]
    by_cosine = chart(
        [Line(middles, counts[0], BLUE, "healthy"), Line(middles, counts[1], ORANGE, "unhealthy")],
        f"Slices by cosine at w* = {calibration.strength:g}",
        xlabel="cosine of the two error curves",
        vlines=[(calibration.cut, "cut")],
    )
    divergence = chosen.divergence[:, 0].numpy()
    curves = chart(
        [
            Line(calibration.settings.levels, np.median(divergence[~unhealthy], axis=0), BLUE, "healthy"),
            Line(calibration.settings.levels, np.median(divergence[unhealthy], axis=0), ORANGE, "unhealthy"),
        ],
        "How far guidance moves the estimate (median M_t)",
        xlabel="noise level t",
    )
    return encode_png(hstack_images([by_strength, by_cosine, curves]))
