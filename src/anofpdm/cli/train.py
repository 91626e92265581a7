"""anofpdm train: a diffusion model from image-level labels."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anofpdm.cli.options import Device, resolve_device
from anofpdm.cli.progress import progress_bar, progress_bars
from anofpdm.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from anofpdm.cohorts import Cohort
    from anofpdm.network.training.log import Progress
    from anofpdm.network.training.trainer import Trainer
    from anofpdm.util.distributed import World


class Preset(StrEnum):
    tiny = "tiny"
    small = "small"
    paper = "paper"


class Task(StrEnum):
    guided = "guided"
    unconditional = "unconditional"
    healthy = "healthy"
    classifier = "classifier"


class Noise(StrEnum):
    gaussian = "gaussian"
    simplex = "simplex"


def train(
    cohort: Annotated[Path, typer.Argument(help="A prepared cohort.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    preset: Annotated[Preset | None, typer.Option(help="Size of the network. Default: small.")] = None,
    task: Annotated[
        Task | None,
        typer.Option(help="guided is the method's; the others serve the methods it is compared with. Default: guided."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Train up to this step.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Train for this long.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last save in --out.")] = False,
    from_model: Annotated[Path | None, typer.Option("--from", help="Begin with this model's weights.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Slices a step, over all processes. Default: 64.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: 1e-4.")] = None,
    augment: Annotated[
        bool | None, typer.Option(help="Mirror, turn and brighten slices a little. Default: on.")
    ] = None,
    balanced: Annotated[bool | None, typer.Option(help="Healthy and unhealthy slices in equal numbers.")] = None,
    noise: Annotated[
        Noise | None, typer.Option(help="simplex serves a method that ours is compared with. Default: gaussian.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="What all randomness starts from. Default: 0.")
    ] = None,
    device: Device = "auto",
    save_minutes: Annotated[float, typer.Option(min=0, help="Save this often.")] = 5.0,
    pictures: Annotated[bool, typer.Option(help="Draw samples at every save.")] = True,
    half_weights: Annotated[
        bool, typer.Option("--half-weights", help="Save the model in half precision, at half the size.")
    ] = False,
) -> None:
    """Train on a prepared cohort. Several GPUs: torchrun --nproc-per-node 4 -m anofpdm train ..."""
    import torch

    from anofpdm.cohorts import open_cohort
    from anofpdm.network.training.run import Limits
    from anofpdm.network.training.run import train as run
    from anofpdm.util.distributed import World, set_local_device

    limits = Limits(steps, minutes, save_minutes, sample_steps=25 if pictures else 0, half_weights=half_weights)
    torch.backends.cudnn.benchmark = True  # slices are all of one size: worth choosing the fastest kernels once
    slices = open_cohort(cohort)
    where = set_local_device(resolve_device(device))
    world = World.from_environment(where)
    given = {
        "task": task and task.value,
        "batch": batch,
        "learning_rate": learning_rate,
        "augment": augment,
        "balanced": balanced,
        "noise": noise and noise.value,
        "seed": seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    try:
        trainer = _trainer(slices, out, given, preset and preset.value, resume, from_model, where, world)
        with progress_bars(world.is_main) as show:
            show("training", 0.0, 1.0)
            run(trainer, slices, out, limits, lambda now: show("training", now.share, 1.0, _in_words(now)))
    finally:
        world.close()
    if world.is_main:
        look = f"; look at {out / 'samples.png'}" if (out / "samples.png").is_file() else ""
        print(f"step {trainer.step}: the model is in {out}{look}")
        _warn_of_jump(out)
        if trainer.config.task == Task.classifier:
            _rate(out, slices, where)


def _in_words(now: "Progress") -> str:
    return f"step {now.step}  loss {now.loss:.4f}  {now.steps_per_second:.1f}/s  {now.note}".rstrip()


def _warn_of_jump(model: Path) -> None:
    from anofpdm.network.training.log import LOG, loss_jump

    if jump := loss_jump(model):
        print(
            f"note: the loss jumped from {jump.before:.2g} to {jump.after:.2g} near step {jump.step} ({model / LOG}); "
            "the model may be worse for it: train again with a smaller --learning-rate, or another --seed"
        )


def _rate(model: Path, cohort: "Cohort", device: "torch.device") -> None:
    from anofpdm.baselines.guide_rating import in_words, rated_guide
    from anofpdm.network.predictor import load_guide

    with progress_bar("rating the classifier") as show:
        rating = rated_guide(load_guide(model, device), cohort, device, on_progress=show)
    if words := in_words(rating):
        print(words)


def _trainer(
    cohort: "Cohort",
    out: Path,
    given: dict[str, Any],
    preset: str | None,
    resume: bool,
    from_model: Path | None,
    device: "torch.device",
    world: "World",
) -> "Trainer":
    from anofpdm.network.checkpoint import STATE, WEIGHTS
    from anofpdm.network.training import run
    from anofpdm.network.training.trainer import TrainingConfig
    from anofpdm.network.unet import preset as network_preset

    if resume:
        trainer = run.resume(out, cohort, device=device, world=world)
        changed = [name for name, value in given.items() if getattr(trainer.config, name) != value]
        if changed or preset or from_model:
            what = ", ".join(changed) or ("preset" if preset else "--from")
            raise ConfigError(f"{what} cannot change when a run goes on; leave it out, or train into another folder")
        return trainer
    if (out / STATE).exists() or (out / WEIGHTS).exists():
        raise ConfigError(f"{out} holds a model already; add --resume to go on with it, or choose another --out")
    config = TrainingConfig(**given)
    if from_model:
        if preset:
            raise ConfigError("--from brings its own network; leave out --preset")
        return run.start_from(from_model, cohort, config, device=device, world=world)
    conditioned = config.task == "guided"
    labels: dict[str, object] = {} if conditioned else {"n_labels": 1, "null_label": 0}
    network = network_preset(preset or "small", len(cohort.modalities), **labels)
    return run.start(cohort, network, config, device=device, world=world)
