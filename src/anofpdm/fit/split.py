"""Training and validation patients of a fit.

The split of `anofpdm prepare` keeps 5% of the patients for validation, which is one or two of a small cohort: too few
to calibrate on. Here it is a fifth, drawn separately from patients with and without an unhealthy label.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.subjects import Subject
from anofpdm.cohorts.tables import GivenLabels
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.options import Split

VAL_SHARE = 0.2
ENOUGH = 2  # validation patients of a kind, where a third of the kind is not fewer


def draw_split(plan: Plan, seed: int) -> dict[str, Split]:
    """Patient to split. Patients without any label are used for training."""
    kinds: dict[object, list[str]] = defaultdict(list)
    for patient in sorted({subject.patient for subject in plan.subjects}):
        scans = [subject for subject in plan.subjects if subject.patient == patient]
        kinds[_kind(scans, plan.labels)].append(patient)
    split: dict[str, Split] = {}
    for number, (kind, patients) in enumerate(sorted(kinds.items(), key=str)):
        n_val = 0 if kind == () else _count_val(len(patients))
        shuffled = np.random.default_rng([seed, number]).permutation(patients).tolist()
        split |= dict.fromkeys(shuffled[:n_val], Split.VAL) | dict.fromkeys(shuffled[n_val:], Split.TRAIN)
    return split


def _count_val(count: int) -> int:
    """Of `count` patients of a kind; one always stays for training."""
    return min(max(round(VAL_SHARE * count), min(ENOUGH, count // 3), 1), count - 1)


def _kind(scans: Sequence[Subject], labels: GivenLabels | None) -> tuple[object, ...]:
    """Labels that a patient's scans or slices have, as far as known before the scans are read; () for none."""
    if labels is None:
        return ("mask",) if any(scan.masks for scan in scans) else ()
    names = {name for scan in scans for name in (scan.name, scan.patient)}
    found = {label for name in names for label in labels.slices.get(name, {}).values()}
    found |= {label for name in names if (label := labels.scans.get(name)) is not None}
    return tuple(sorted(found & {HEALTHY, UNHEALTHY}))
