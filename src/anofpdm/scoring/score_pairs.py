"""Score many pairs of masks, in several processes; few are in memory at a time."""

import warnings
from dataclasses import dataclass, field
from functools import partial

from anofpdm.errors import AnoFPDMError, EvaluationError, ScanWarning
from anofpdm.scoring.masks import Labels, read_pair
from anofpdm.scoring.metrics.scan import ScanScores, score_masks
from anofpdm.scoring.pairs import Pair, Pairing
from anofpdm.util.progress import Progress, silent
from anofpdm.util.workers import worker_pool

TASK = "Scoring"
PAIRS_PER_WORKER = 8  # at least: a process takes longer to start than to score this many


@dataclass(frozen=True)
class ScoredScan:
    pair: Pair
    scores: ScanScores
    warnings: tuple[str, ...] = ()


@dataclass
class ScoringReport:
    scans: list[ScoredScan] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # file or scan to reason


def score_pair(pair: Pair, labels: tuple[Labels, Labels] = (None, None)) -> ScoredScan:
    """`labels` of the predicted and the true mask."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScanWarning)
        predicted, truth, grid = read_pair(pair.predicted, pair.truth, labels)
    try:
        scores = score_masks(predicted, truth, tuple(grid.spacing_mm.tolist()))
    except EvaluationError as problem:
        raise EvaluationError(f"{pair.predicted}: {problem}") from None
    return ScoredScan(pair, scores, tuple(str(warning.message) for warning in caught))


def score_pairs(
    pairing: Pairing, labels: tuple[Labels, Labels], workers: int = 1, progress: Progress = silent
) -> ScoringReport:
    """A pair that cannot be scored is reported, and the others are scored."""
    report, count = ScoringReport(failed=dict(pairing.failed)), len(pairing.pairs)
    score = partial(_try_score, labels=labels)
    progress(TASK, 0, count)
    with worker_pool(min(workers, count // PAIRS_PER_WORKER)) as pool:
        results = map(score, pairing.pairs) if pool is None else pool.map(score, pairing.pairs)
        for number, (pair, result) in enumerate(zip(pairing.pairs, results, strict=True), start=1):
            if isinstance(result, str):
                report.failed[pair.name] = result
            else:
                report.scans.append(result)
            progress(TASK, number, count)
    return report


def _try_score(pair: Pair, labels: tuple[Labels, Labels]) -> ScoredScan | str:
    """The scores, or why there are none."""
    try:
        return score_pair(pair, labels)
    except (AnoFPDMError, OSError) as problem:
        return str(problem)
    except MemoryError:
        return f"{pair.truth}: out of memory; try --workers 1"
