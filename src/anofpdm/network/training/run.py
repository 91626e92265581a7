"""A training run from its first step to its last: steps, saves, a log, pictures, and a way to stop."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anofpdm import __version__
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError, ModelError, TrainingError
from anofpdm.labels import LABEL_NAMES
from anofpdm.network import checkpoint
from anofpdm.network.sampling import sample
from anofpdm.network.training.batches import SliceOrder, read_ahead
from anofpdm.network.training.log import Progress, TrainingLog
from anofpdm.network.training.pictures import bars, sample_grid
from anofpdm.network.training.stopping import StopRequests
from anofpdm.network.training.trainer import LEVEL_BINS, Network, Trainer, TrainingConfig, build_network
from anofpdm.network.unet import UNetConfig
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically

SAMPLES, LEVELS = "samples.png", "loss_by_level.png"
FOREVER = 10**12
SILENCE = 5.0  # seconds
CHECK_STEPS = 10  # how often all processes agree on the time


@dataclass(frozen=True)
class Limits:
    """When to stop, to save, to speak. `steps` counts from the very first one, `minutes` from now."""

    steps: int | None = None
    minutes: float | None = None
    save_minutes: float = 5.0
    log_steps: int = 50
    sample_steps: int = 25  # 0: no pictures
    half_weights: bool = False  # the model takes half the room; what a run goes on from is whole all the same

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ConfigError("say how long to train: --steps or --minutes")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--minutes {self.minutes}: training takes some time; give more than 0")


def start(
    cohort: Cohort, network: UNetConfig, config: TrainingConfig, *, device: torch.device, world: World
) -> Trainer:
    """A trainer at step 0. Every process begins with the same weights."""
    torch.manual_seed(config.seed)
    check_fits(cohort, network)
    return Trainer(build_network(config.task, network), config, device, world)


def start_from(model: Path, cohort: Cohort, config: TrainingConfig, *, device: torch.device, world: World) -> Trainer:
    """A trainer at step 0 with the weights of a model: fine-tuning."""
    weights, said, _ = checkpoint.load_model(model)
    if said["modalities"] != list(cohort.modalities):
        raise ModelError(
            f"{model} was trained on {', '.join(said['modalities'])}, and {cohort.path} has "
            f"{', '.join(cohort.modalities)}; prepare the cohort with --modalities {','.join(said['modalities'])}"
        )
    if (said["task"] == "classifier") != (config.task == "classifier"):
        raise ModelError(f"{model} was trained for {said['task']!r}, which cannot become {config.task!r}")
    network = network_config(said)
    if config.task == "guided" and network.n_labels < len(LABEL_NAMES):
        raise ModelError(f"{model} was trained without labels ({said['task']!r}) and cannot be guided; give --task")
    trainer = start(cohort, network, config, device=device, world=world)
    trainer.begin_from(weights)
    return trainer


def resume(model: Path, cohort: Cohort, *, device: torch.device, world: World) -> Trainer:
    """A trainer as it was at its last save."""
    tensors, said = checkpoint.load_state(model)
    if said.get("cohort") != cohort_identity(cohort):
        raise ModelError(
            f"{model} was trained on another cohort than {cohort.path} (or its labels or split have changed since); "
            "give the same one, or start anew with --from"
        )
    config = TrainingConfig(**said["training"])
    trainer = start(cohort, network_config(said), config, device=device, world=world)
    trainer.restore(tensors, said["step"])
    return trainer


def network_config(said: dict[str, Any]) -> UNetConfig:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in said["network"].items()}
    try:
        return UNetConfig(**values)
    except TypeError as problem:
        raise ModelError(f"a model of another version ({problem}); train it again") from None


def cohort_identity(cohort: Cohort) -> dict[str, Any]:
    """What must be the same for a run to go on: slices, labels, split."""
    return {name: cohort.manifest.get(name) for name in ("preparation_sha256", "slices_sha256", "tables_sha256")}


def check_fits(cohort: Cohort, network: UNetConfig) -> None:
    size, channels = cohort.slices.shape[-1], cohort.slices.shape[1]
    if channels != network.in_channels:
        raise ModelError(f"{cohort.path} has {channels} modalities, the network takes {network.in_channels}")
    if size % network.side_divisor:
        raise ModelError(
            f"{cohort.path} has slices of {size} x {size}, and the network needs a multiple of {network.side_divisor}; "
            "prepare the cohort with another --size"
        )


Listener = Callable[[Progress], None]


def train(trainer: Trainer, cohort: Cohort, out: Path, limits: Limits, on_progress: Listener = lambda _: None) -> None:
    """Train until a limit is reached, saving into `out` as it goes, at the end, and on Ctrl-C."""
    out.mkdir(parents=True, exist_ok=True)
    if not trainer.world.is_main:
        _train(trainer, cohort, out, limits, on_progress)
        return
    with folder_lock(out):
        remove_temporary_files(out)
        log = TrainingLog(out, trainer.step)

        def listen(progress: Progress) -> None:
            log.write(progress)
            on_progress(progress)

        with contextlib.closing(log):
            _train(trainer, cohort, out, limits, listen)


def _train(trainer: Trainer, cohort: Cohort, out: Path, limits: Limits, on_progress: Listener) -> None:
    config, world = trainer.config, trainer.world
    order = SliceOrder.of(cohort, config.task, batch=config.batch, balanced=config.balanced, seed=config.seed)
    steps = range(trainer.step, FOREVER if limits.steps is None else limits.steps)
    clock, loss = _Clock(limits, trainer.step), None

    def speak(loss: Tensor) -> None:
        if clock.spoke_step < trainer.step:
            on_progress(replace(clock.progress(trainer.step, loss), note=_memory_note(trainer)))

    batches = read_ahead(cohort, order, steps, part=world.batch_slice(config.batch), pin=trainer.device.type == "cuda")
    with StopRequests() as stop, contextlib.closing(batches):
        for _, slices, labels in batches:
            loss = trainer.update(trainer.inputs(slices, labels))
            # Several processes must speak at the same steps; one alone also speaks when it was silent for long.
            if trainer.step % limits.log_steps == 0 or (world.count == 1 and clock.silent_for() > SILENCE):
                _check_finite(loss, trainer, out)
                speak(loss)
            if world.count > 1 and trainer.step % CHECK_STEPS:
                continue
            asked, late = world.any(stop.asked, trainer.device), world.any(clock.out_of_time(), trainer.device)
            if asked or world.any(clock.time_to_save(), trainer.device):
                clock.saved = time.monotonic()
                _check_finite(loss, trainer, out)
                speak(loss)  # before the save: a run killed after it has no other chance to
                save(trainer, cohort, out, limits)
            if asked:
                raise stop.how
            if late:
                break
    if loss is not None:
        _check_finite(loss, trainer, out)
        speak(loss)
    if loss is not None or (world.is_main and not checkpoint.holds_model(out, trainer.step)):
        save(trainer, cohort, out, limits)


def save(trainer: Trainer, cohort: Cohort, out: Path, limits: Limits) -> None:
    if not trainer.world.is_main:
        return
    if not all(bool(torch.isfinite(average).all()) for average in trainer.average.values()):
        raise _no_number(trainer, out)
    config = {
        "format": checkpoint.FORMAT,
        "anofpdm": __version__,
        **trainer.description(),
        "network": asdict(trainer.network.config),
        "modalities": list(cohort.modalities),
        "size": cohort.slices.shape[-1],
        "cohort": cohort_identity(cohort),
    }
    checkpoint.save_state(out, trainer.state(), config)
    weights = {name: average.half() if limits.half_weights else average for name, average in trainer.average.items()}
    checkpoint.save_model(out, weights, config)
    if limits.sample_steps:
        _draw(trainer, cohort, out, limits.sample_steps)


# ---- time, log, pictures ---------------------------------------------------------------------------------------------


class _Clock:
    def __init__(self, limits: Limits, step: int):
        self.limits, self.first_step = limits, step
        self.start = self.saved = self.spoke = time.monotonic()
        self.spoke_step = step

    def progress(self, step: int, loss: Tensor) -> Progress:
        now = time.monotonic()
        speed = (step - self.spoke_step) / max(now - self.spoke, 1e-9)
        self.spoke, self.spoke_step = now, step
        shares = []
        if self.limits.steps is not None:
            shares.append((step - self.first_step) / max(self.limits.steps - self.first_step, 1))
        if self.limits.minutes is not None:
            shares.append((now - self.start) / 60 / self.limits.minutes)
        return Progress(step, float(loss), speed, min(1.0, max(shares)))

    def silent_for(self) -> float:
        return time.monotonic() - self.spoke

    def time_to_save(self) -> bool:
        return time.monotonic() - self.saved >= 60 * self.limits.save_minutes

    def out_of_time(self) -> bool:
        return self.limits.minutes is not None and time.monotonic() - self.start >= 60 * self.limits.minutes


def _check_finite(loss: Tensor, trainer: Trainer, out: Path) -> None:
    if trainer.world.any(not math.isfinite(float(loss)), trainer.device):
        raise _no_number(trainer, out)


def _no_number(trainer: Trainer, out: Path) -> TrainingError:
    return TrainingError(
        f"the loss is no longer a number at step {trainer.step}; the last good save, if any, is kept in {out}. "
        "Resume it, or start again with a smaller --learning-rate"
    )


def _memory_note(trainer: Trainer) -> str:
    whole = trainer.config.batch // trainer.world.count
    if trainer.micro_batch == whole:
        return ""
    return f"memory is short: {trainer.micro_batch} of {whole} slices at a time, the same batch in the end"


@torch.no_grad()
def _draw(trainer: Trainer, cohort: Cohort, out: Path, steps: int, columns: int = 4) -> None:
    """Samples of every label by the averaged weights, and the loss at each part of the noise range."""
    sums, counts = trainer.level_loss.cpu()
    trainer.level_loss.zero_()
    width = len(trainer.schedule) // LEVEL_BINS
    names = [f"{number * width}+" for number in range(LEVEL_BINS)]
    write_atomically(out / LEVELS, bars((sums / counts).tolist(), names, f"loss by noise level, step {trainer.step}"))
    if trainer.config.task == "classifier":
        return
    network = averaged_network(trainer)
    n_labels, null = network.config.n_labels, network.config.null_label
    labels = torch.arange(n_labels, device=trainer.device).repeat_interleave(columns)
    shape = (1, columns, *cohort.slices.shape[1:])
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).expand(n_labels, *shape[1:])

    def predict(x: Tensor, t: int, labels: Tensor) -> Tensor:
        return network(x, torch.full((len(x),), t, device=x.device), labels)

    try:
        drawn = sample(predict, noise.flatten(0, 1).to(trainer.device), labels, schedule=trainer.schedule, steps=steps)
    except torch.OutOfMemoryError:
        return  # training needs the memory more than the picture does
    words = [f"step {trainer.step}: {'no label' if label == null else LABEL_NAMES[label]}" for label in range(n_labels)]
    write_atomically(out / SAMPLES, sample_grid(drawn.view(n_labels, columns, *shape[2:]).cpu().numpy(), words))


def averaged_network(trainer: Trainer) -> Network:
    network = build_network(trainer.config.task, trainer.network.config).to(trainer.device)
    network.load_state_dict(trainer.average)
    return network.eval()
