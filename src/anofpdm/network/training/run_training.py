"""A training run from its first step to its last: steps, saves, log, stop requests."""

import contextlib
import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anofpdm.choices import Task
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ModelError, Terminated, TrainingError
from anofpdm.labels import LABEL_NAMES
from anofpdm.network import checkpoint
from anofpdm.network.config import ModelConfig, UNetConfig
from anofpdm.network.training.batches import read_ahead, row_batches
from anofpdm.network.training.log import TrainingLog
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.network.weight_format import store
from anofpdm.util.artifacts import to_plain
from anofpdm.util.files import folder_lock, remove_temporary_files
from anofpdm.util.progress import Progress, silent

REPORT_SECONDS = 5.0
CHECK_STEPS = 10  # how often several processes agree on time limits and stop requests
MakeTrainer = Callable[[UNetConfig, TrainingConfig], Trainer]  # on this process's device


# ---- starting --------------------------------------------------------------------------------------------------------


def start(cohort: Cohort, network: UNetConfig, config: TrainingConfig, make: MakeTrainer) -> Trainer:
    """A trainer at step 0, with the same weights in every process."""
    size = cohort.slices.shape[-1]
    if size % network.side_divisor:
        raise ModelError(
            f"{cohort.path} has slices of {size} x {size}, and the network needs a multiple of {network.side_divisor}; "
            "prepare the cohort with another --size"
        )
    torch.manual_seed(config.seed)
    return make(network, config)


def start_from(model: Path, cohort: Cohort, config: TrainingConfig, make: MakeTrainer) -> Trainer:
    """A trainer at step 0 with the weights of a model, for fine-tuning."""
    weights, payload, _ = checkpoint.load_model(model)
    task = payload.get("task")
    if task not in set(Task):
        raise ModelError(f"{model}: not a diffusion model (task {task!r}); give the folder of one with --from")
    trained = ModelConfig.from_header(payload, model)
    if trained.modalities != cohort.modalities:
        modalities = trained.modalities
        raise ModelError(
            f"{model} was trained on {', '.join(modalities)}, and {cohort.path} has {', '.join(cohort.modalities)}; "
            f"prepare the cohort with --modalities {','.join(modalities)}"
        )
    if (task == Task.CLASSIFIER) != (config.task == Task.CLASSIFIER):
        raise ModelError(f"{model} was trained for task '{task}' and cannot be fine-tuned for task '{config.task}'")
    if config.task == Task.GUIDED and trained.network.n_labels < len(LABEL_NAMES):
        raise ModelError(f"{model} was trained without labels (task '{task}') and cannot be guided; set --task")
    trainer = start(cohort, trained.network, config, make)
    with checkpoint.weights_must_fit(model):
        trainer.load_weights(weights)
    return trainer


def resume(model: Path, cohort: Cohort, make: MakeTrainer) -> Trainer:
    """A trainer as it was at its last save."""
    tensors, payload = checkpoint.load_state(model)
    saved = ModelConfig.from_header(payload, model, "resume with that version, or fine-tune with --from")
    if saved.cohort != cohort_identity(cohort):
        raise ModelError(
            f"{model} was trained on another cohort than {cohort.path} (or its labels or split have changed since); "
            "use the same cohort, or fine-tune with --from"
        )
    trainer = start(cohort, saved.network, saved.training, make)
    with checkpoint.weights_must_fit(model):
        trainer.restore(tensors, saved.step)
    return trainer


def cohort_identity(cohort: Cohort) -> dict[str, Any]:
    """Hashes of slices, labels and split, which must be the same for a run to resume."""
    return {name: getattr(cohort.manifest, name) for name in ("preparation_sha256", "slices_sha256", "tables_sha256")}


# ---- training --------------------------------------------------------------------------------------------------------


def train(trainer: Trainer, cohort: Cohort, out: Path, limits: TrainingLimits, progress: Progress = silent) -> None:
    """Train until a limit is reached. Saves into `out` regularly, at the end, and on Ctrl-C."""
    out.mkdir(parents=True, exist_ok=True)
    is_main = trainer.world.is_main
    with folder_lock(out, needed=is_main):
        if is_main:
            remove_temporary_files(out)
        _Run(trainer, cohort, out, limits, progress).train()


class _Run:
    def __init__(self, trainer: Trainer, cohort: Cohort, out: Path, limits: TrainingLimits, progress: Progress):
        self.trainer, self.cohort, self.out, self.limits, self.progress = trainer, cohort, out, limits, progress
        self.log = TrainingLog(out, trainer.step) if trainer.world.is_main else None
        self.start = self.last_save = self.last_report = time.monotonic()
        self.first_step = self.reported_step = trainer.step

    def train(self) -> None:
        trainer, world, loss = self.trainer, self.trainer.world, None
        with stop_requests() as requests, contextlib.closing(self._batches()) as batches:
            for slices, labels in batches:
                loss = trainer.update(trainer.inputs(slices, labels))
                if world.count > 1 and trainer.step % CHECK_STEPS:
                    continue
                requested, finished = self._agree(bool(requests)), self._agree(self._fraction_done() >= 1)
                to_save = requested or self._agree(time.monotonic() - self.last_save >= 60 * self.limits.save_minutes)
                to_report = time.monotonic() - self.last_report > REPORT_SECONDS
                # Before a save, after which the run may be killed
                if to_save or trainer.step % self.limits.log_steps == 0 or self._agree(to_report):
                    self._report(loss)
                if to_save:
                    self.last_save = time.monotonic()
                    self.save()
                if requested:
                    raise requests[0] if requests else KeyboardInterrupt
                if finished:
                    break
        if loss is not None:
            self._report(loss)
        self.save()  # also without a step: an earlier run may have been killed between the state and the model

    def _batches(self) -> Generator[tuple[Tensor, Tensor], None, None]:
        trainer, last_step = self.trainer, self.limits.steps
        steps_left = None if last_step is None else max(0, last_step - trainer.step)
        batches = itertools.islice(row_batches(self.cohort, trainer.config, trainer.step), steps_left)
        return read_ahead(self.cohort, batches, part=trainer.part, pin=trainer.device.type == "cuda")

    def _fraction_done(self) -> float:
        return self.limits.fraction_done(self.trainer.step, time.monotonic() - self.start, self.first_step)

    def _agree(self, flag: bool) -> bool:
        """True in every process if the flag is set in any of them."""
        return self.trainer.world.any(flag, self.trainer.device)

    def _report(self, loss: Tensor) -> None:
        trainer, step, value = self.trainer, self.trainer.step, float(loss)
        if self._agree(not math.isfinite(value)):
            raise self._not_finite()
        if self.reported_step == step:
            return
        now = time.monotonic()
        speed = (step - self.reported_step) / max(now - self.last_report, 1e-9)
        self.last_report, self.reported_step = now, step
        if self.log is None:
            return
        note = memory_note(trainer)
        self.log.write(step, value, speed, note)
        text = f"step {step}  loss {value:.4f}  {speed:.1f}/s  {note}".rstrip()
        self.progress("Training", min(1.0, self._fraction_done()), 1.0, text)

    def _not_finite(self) -> TrainingError:
        return TrainingError(
            f"non-finite loss at step {self.trainer.step}; the last good save, if any, is kept in {self.out}. "
            "Resume from it, or start again with a smaller --learning-rate"
        )

    def save(self) -> None:
        trainer, cohort = self.trainer, self.cohort
        if not trainer.world.is_main:
            return
        weights = trainer.average.state_dict()
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise self._not_finite()
        config = ModelConfig(
            task=trainer.config.task,
            network=trainer.network_config,
            modalities=cohort.modalities,
            size=cohort.slices.shape[-1],
            step=trainer.step,
            training=trainer.config,
            cohort=cohort_identity(cohort),
            expects=cohort.manifest.expects,
        )
        header = to_plain(config)
        checkpoint.save_state(self.out, trainer.state(), header)
        checkpoint.save_model(self.out, store(weights, self.limits.weights), header)


def memory_note(trainer: Trainer) -> str:
    share = trainer.config.batch // trainer.world.count
    if trainer.micro_batch == share:
        return ""
    return f"memory is short: {trainer.micro_batch} of {share} slices at a time, the batch size is unchanged"


@contextlib.contextmanager
def stop_requests() -> Iterator[list[type[KeyboardInterrupt]]]:
    """The exceptions of the signals received so far. A signal takes effect at the end of the step, so that no
    half-finished step is saved; a second one at once."""
    received: list[type[KeyboardInterrupt]] = []

    def handle(number: int, _frame: object) -> None:
        received.append(Terminated if number == signal.SIGTERM else KeyboardInterrupt)
        if len(received) > 1:
            raise received[-1]

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
