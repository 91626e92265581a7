"""anofpdm train: a diffusion model from image-level labels."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from anofpdm.choices import Noise, Preset, Task, WeightFormat
from anofpdm.cli.options import Device, FromModel, PreparedCohort, Weights, resolve_device
from anofpdm.cli.progress import processes, progress_bars
from anofpdm.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from anofpdm.cohorts import Cohort
    from anofpdm.network.config import UNetConfig
    from anofpdm.network.training.run_training import MakeTrainer
    from anofpdm.network.training.trainer import Trainer
    from anofpdm.network.training.training_config import TrainingConfig
    from anofpdm.util.distributed import World


def train(
    cohort: PreparedCohort,
    out: Annotated[Path, Option(help="Folder of the model.")],
    preset: Annotated[Preset | None, Option(help="Size of the network. Default: small.")] = None,
    task: Annotated[
        Task | None,
        Option(help="What to train for: guided for the method, the others for baselines. Default: guided."),
    ] = None,
    steps: Annotated[int | None, Option(min=1, help="Stop at this step, counted from the first start.")] = None,
    minutes: Annotated[float | None, Option(min=0, help="Stop after this time (minutes).")] = None,
    resume: Annotated[bool, Option("--resume", help="Resume from the last save in --out.")] = False,
    from_model: FromModel = None,
    batch: Annotated[int | None, Option(min=1, help="Slices per step, over all processes. Default: 64.")] = None,
    learning_rate: Annotated[float | None, Option(help="Learning rate after warm-up. Default: 1e-4.")] = None,
    augment: Annotated[
        bool | None, Option(help="Augment: mirror, rotate, scale, shift, change brightness. Default: on.")
    ] = None,
    balanced: Annotated[
        bool | None, Option(help="Equal numbers of healthy and unhealthy slices per batch. Default: off.")
    ] = None,
    noise: Annotated[
        Noise | None, Option(help="Noise to train with; simplex for the AnoDDPM baseline. Default: gaussian.")
    ] = None,
    seed: Annotated[int | None, Option(min=0, max=2**63 - 1, help="Random seed. Default: 0.")] = None,
    device: Device = "auto",
    save_minutes: Annotated[float, Option(min=0, help="Time between saves (minutes).")] = 5.0,
    weights: Weights = WeightFormat.FLOAT32,
) -> None:
    """Train a network on a prepared cohort. Several GPUs: torchrun --nproc-per-node 4 -m anofpdm train ..."""

    from anofpdm.cohorts import open_cohort
    from anofpdm.network.training import run_training
    from anofpdm.network.training.log import LOG, loss_jump
    from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits

    limits = TrainingLimits(steps, minutes, save_minutes, weights=weights)
    slices = open_cohort(cohort)
    local_device = resolve_device(device)
    options: dict[str, Any] = {"task": task, "batch": batch, "learning_rate": learning_rate, "augment": augment}
    options |= {"balanced": balanced, "noise": noise, "seed": seed}
    given = {name: value for name, value in options.items() if value is not None}
    with processes(local_device) as (world, progress):
        make = partial(_new_trainer, device=local_device, world=world)
        if resume:
            trainer = run_training.resume(out, slices, make)
            _refuse_changes(trainer, {**given, "preset": preset, "from": from_model})
        else:
            trainer = _start(slices, out, TrainingConfig(**given), preset, from_model, make)
        progress("Training", 0.0, 1.0)
        run_training.train(trainer, slices, out, limits, progress)
    if world.is_main:
        print(f"step {trainer.step}: model saved in {out}")
        if jump := loss_jump(out):
            print(
                f"note: the loss jumped from {jump.before:.2g} to {jump.after:.2g} near step {jump.step} "
                f"({out / LOG}); the model "
                "may be worse for it: train again with a smaller --learning-rate, or another --seed"
            )
        if trainer.config.task == Task.CLASSIFIER:
            _rate_classifier(out, slices, local_device)


def _refuse_changes(trainer: "Trainer", given: dict[str, Any]) -> None:
    config = trainer.config
    changed = [f"--{name.replace('_', '-')}" for name, value in given.items() if getattr(config, name, None) != value]
    if changed:
        raise ConfigError(f"{', '.join(changed)} cannot change with --resume; leave out, or train into another folder")


def _start(
    cohort: "Cohort",
    out: Path,
    config: "TrainingConfig",
    preset: Preset | None,
    from_model: Path | None,
    make: "MakeTrainer",
) -> "Trainer":
    from anofpdm.network import config as network_config
    from anofpdm.network.checkpoint import STATE, WEIGHTS
    from anofpdm.network.training import run_training

    if (out / STATE).exists() or (out / WEIGHTS).exists():
        raise ConfigError(f"{out} holds a model already; add --resume to resume its training, or choose another --out")
    if from_model:
        if preset:
            raise ConfigError("--preset cannot be combined with --from, which determines the network; leave one out")
        return run_training.start_from(from_model, cohort, config, make)
    labels = {} if config.task == Task.GUIDED else {"n_labels": 1, "null_label": 0}
    size = network_config.preset(preset or Preset.SMALL, len(cohort.modalities), **labels)
    return run_training.start(cohort, size, config, make)


def _new_trainer(network: "UNetConfig", config: "TrainingConfig", device: "torch.device", world: "World") -> "Trainer":
    """Comparison methods have trainers of their own, in a folder that may be absent."""
    from anofpdm.network.training.trainer import Trainer

    if config.task != Task.CLASSIFIER and config.noise == Noise.GAUSSIAN:
        return Trainer(network, config, device, world)
    if importlib.util.find_spec("anofpdm.study") is None:
        raise ConfigError("--task classifier and --noise simplex need the folder `study` of this package; restore it")
    from anofpdm.study.rivals.rival_trainers import choose_trainer

    return choose_trainer(config)(network, config, device, world)


def _rate_classifier(model: Path, cohort: "Cohort", device: "torch.device") -> None:
    from anofpdm.study.rivals.guide import describe_rating, load_guide, rate_classifier

    with progress_bars() as progress:
        rating = rate_classifier(load_guide(model, device), cohort, device, on_progress=progress)
    if words := describe_rating(rating):
        print(words)
