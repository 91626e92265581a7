"""Training and validation patients of a fit.

The split of `anofpdm prepare` keeps 5% of the patients for validation, which is one or two of a small cohort: too few
to calibrate on. Here it is a fifth, drawn separately from patients with and without an unhealthy label.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from anofpdm.cohorts.csv_tables import GivenLabels
from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError
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


def check_kinds(plan: Plan) -> None:
    """Refuse labels of one kind only, before the scans are prepared. Labels from masks are not known yet."""
    if plan.labels is None:
        return
    path, known = plan.labels.path, {split: _kinds_in(plan, split) for split in Split}
    for label, name in ((HEALTHY, "healthy"), (UNHEALTHY, "unhealthy")):
        if not any(label in kinds for kinds in known.values()):
            raise CohortError(f"{path}: no {name} slice or scan in {path.name}; both kinds are needed, so label some")
        if label not in known[Split.VAL] or (label == HEALTHY and label not in known[Split.TRAIN]):
            split = "training" if label in known[Split.VAL] else "validation"
            raise CohortError(
                f"{path}: no {name} slice or scan of the {split} patients in {path.name}; label more patients, or "
                "choose them with --split"
            )


def _kinds_in(plan: Plan, split: Split) -> set[object]:
    usable = [scan for scan in plan.subjects if not scan.problem and plan.split[scan.patient] == split]
    return set(_kind(usable, plan.labels))


def _count_val(count: int) -> int:
    """Of `count` patients of a kind; one always stays for training."""
    return min(max(round(VAL_SHARE * count), min(ENOUGH, count // 3), 1), count - 1)


def _kind(scans: Sequence[Subject], labels: GivenLabels | None) -> tuple[object, ...]:
    """Labels that a patient's scans or slices have, as far as known before the scans are read; () for none."""
    if labels is None:
        return ("mask",) if any(scan.masks for scan in scans) else ()
    names = {name for scan in scans for name in (scan.name, scan.patient)}
    known: set[int | None] = {label for name in names for label in labels.slices.get(name, {}).values()}
    known |= {labels.scans.get(name) for name in names}
    return tuple(label for label in (HEALTHY, UNHEALTHY) if label in known)
