"""What a fit prepares, and checks of labels before and after that."""

from collections.abc import Sequence
from dataclasses import replace

from anofpdm.cohorts.plan import Plan, plan_cohort
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import CohortError, ConfigError
from anofpdm.fit.fit_config import FitConfig
from anofpdm.fit.split import check_kinds, draw_split
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.network.training.batches import training_rows
from anofpdm.options import Split, Task


def plan_data(config: FitConfig) -> Plan:
    data = config.data
    plan = plan_cohort(
        data.layout,
        data.source,
        size=data.size,
        modalities=data.modalities,
        labels=data.labels,
        split=data.split,
        seed=config.seed,
    )
    raw = RawOptions(data.raw)
    plan = replace(plan, raw=raw, keep_isolated=data.keep_isolated, fill_labels_mm=data.fill_labels_mm)
    if data.split is None:
        plan = replace(plan, split=draw_split(plan, config.seed), split_from=f"fit, seed {config.seed}")
    check_score(config, plan.modalities)
    check_kinds(plan)
    return plan


def check_score(config: FitConfig, modalities: Sequence[str]) -> None:
    if unknown := [name for name in config.score if name not in modalities]:
        raise ConfigError(f"--score {','.join(unknown)}: not among the modalities {', '.join(modalities)}")


def check_labels(cohort: Cohort) -> None:
    """Everything that calibration and distillation will need, before hours of training."""
    training_rows(cohort, Task.GUIDED)
    labels = cohort.assumed_labels[cohort.rows(Split.VAL)]
    counts = [int((labels == label).sum()) for label in (HEALTHY, UNHEALTHY)]
    if not all(counts):
        raise CohortError(
            f"{cohort.path}: its validation patients have {counts[0]} healthy and {counts[1]} unhealthy slices, and "
            "both kinds are needed; label slices of more patients, or choose validation patients with --split"
        )
