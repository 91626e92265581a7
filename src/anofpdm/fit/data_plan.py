"""What a fit prepares: its training and validation patients, and checks of labels before and after preparing.

The split of `anofpdm prepare` keeps 5% of the patients for validation, which is one or two of a small cohort: too few
to calibrate on. Here it is a fifth, drawn separately from patients with and without an unhealthy label.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anofpdm.choices import Split
from anofpdm.cohorts.csv_tables import GivenLabels
from anofpdm.cohorts.plan import Plan, plan_cohort
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError, ConfigError
from anofpdm.fit.fit_config import FitConfig
from anofpdm.labels import HEALTHY, LABEL_NAMES, UNHEALTHY

VAL_SHARE = 0.2
NEEDED = ((Split.VAL, HEALTHY), (Split.VAL, UNHEALTHY), (Split.TRAIN, HEALTHY))
ENOUGH = 2  # validation patients of a kind, where a third of the kind is not fewer


def plan_data(config: FitConfig) -> Plan:
    plan = plan_cohort(
        config.layout,
        config.source,
        size=config.size,
        modalities=config.modalities,
        labels=config.labels,
        split=config.split,
        seed=config.seed,
    )
    plan = replace(
        plan, raw=RawOptions(config.raw), keep_isolated=config.keep_isolated, fill_labels_mm=config.fill_labels_mm
    )
    if config.split is None:
        plan = replace(plan, split=draw_split(plan, config.seed), split_from=f"fit, seed {config.seed}")
    check_score(config, plan.modalities)
    check_kinds(plan)
    return plan


def check_score(config: FitConfig, modalities: Sequence[str]) -> None:
    if unknown := [name for name in config.score if name not in modalities]:
        raise ConfigError(f"--score {','.join(unknown)}: not among the modalities {', '.join(modalities)}")


def check_labels(cohort: Cohort) -> None:
    """What calibration and distillation will need, before hours of training."""
    labels = cohort.assumed_labels[cohort.rows(Split.VAL)]
    counts = [int((labels == label).sum()) for label in (HEALTHY, UNHEALTHY)]
    if not all(counts):
        raise CohortError(
            f"{cohort.path}: its validation patients have {counts[0]} healthy and {counts[1]} unhealthy slices, and "
            "both kinds are needed; label slices of more patients, or choose validation patients with --split"
        )


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
    path = plan.labels.path
    for split, label in NEEDED:
        scans = [scan for scan in plan.subjects if not scan.problem and plan.split[scan.patient] == split]
        if label not in _kind(scans, plan.labels):
            raise CohortError(
                f"{path}: no {LABEL_NAMES[label]} slice or scan of the {split} split in {path.name}; both kinds are "
                "needed, so label more patients, or choose the split with --split"
            )


def _count_val(count: int) -> int:
    """Of `count` patients of a kind; one always stays for training."""
    return min(max(round(VAL_SHARE * count), min(ENOUGH, count // 3), 1), count - 1)


def _kind(scans: Sequence[Subject], labels: GivenLabels | None) -> tuple[object, ...]:
    """Labels that a patient's scans or slices have, as far as known before the scans are read; () for none."""
    if labels is None:
        return ("mask",) if any(scan.masks for scan in scans) else ()
    names = {name for scan in scans for name in (scan.name, scan.patient)}
    known = {row.label for name in names for row in labels.rows.get(name, {}).values()}
    return tuple(label for label in (HEALTHY, UNHEALTHY) if label in known)
