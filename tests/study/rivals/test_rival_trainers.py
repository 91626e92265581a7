"""Training steps of the networks that only comparison methods need."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from anofpdm.network.config import UNetConfig
from anofpdm.network.training import run_training
from anofpdm.network.training import trainer as trainer_module
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.study.rivals.noised_classifier import NoisedClassifier
from anofpdm.study.rivals.rival_trainers import SimplexTrainer, choose_trainer
from anofpdm.util.distributed import World
from tests.network.trainers import CPU, UNLABELLED, inputs_of, without_zeros


def trainer_of(cohort, **options):
    config = TrainingConfig(batch=8, warm_up=3, **options)
    return run_training.start(cohort, UNLABELLED, config, partial(choose_trainer(config), device=CPU))


def test_the_loss_of_a_classifier_falls(cohort):
    cohort = replace(cohort, splits=np.full(len(cohort), "train"))
    trainer = trainer_of(cohort, task="classifier", learning_rate=4e-3)
    losses = [trainer.update(inputs_of(trainer, cohort)).item() for _ in range(60)]
    assert np.mean(losses[-15:]) < 0.9 * np.mean(losses[:5])


def test_the_classifier_depends_on_noise_level_and_slice():
    torch.manual_seed(0)
    classifier = without_zeros(NoisedClassifier(UNetConfig(2, 1, 0, channels=8, multipliers=(1, 2), attention=(2,))))
    x, t = torch.randn(3, 2, 16, 16), torch.tensor([0, 300, 999])
    logits = classifier(x, t)
    assert logits.shape == (3, 2)
    assert not torch.allclose(logits, classifier(x, t.flip(0)))
    assert not torch.allclose(logits, classifier(-x, t))


def test_simplex_noise_is_added_to_the_slices(cohort):
    trainer = trainer_of(cohort, task="healthy", noise="simplex", augment=False)
    steps = [inputs_of(trainer, cohort) for trainer.step in range(12)]
    for inputs in steps:
        clean = trainer.schedule.clean(inputs.x, inputs.target, inputs.t)[inputs.t < 500]
        assert clean.abs().max() < 1.001  # x is the slice plus that noise
    seen = torch.cat([inputs.target.flatten(0, 1) for inputs in steps])
    assert np.corrcoef(seen[:, 1:].flatten(), seen[:, :-1].flatten())[0, 1] > 0.5  # Gaussian noise would have 0
    assert len(seen.unique(dim=0)) == len(seen)  # each slice, channel and step its own


def test_simplex_noise_does_not_depend_on_the_number_of_processes(cohort, monkeypatch):
    monkeypatch.setattr(trainer_module, "DistributedDataParallel", lambda network, **_: network)  # no exchange here
    config = TrainingConfig(batch=8, noise="simplex")
    whole, *parts = (
        inputs_of(SimplexTrainer(UNLABELLED, config, CPU, world), cohort)
        for world in (World(), World(0, 2), World(1, 2))
    )
    for tensor, *halves in zip(whole, *parts, strict=True):
        assert torch.equal(tensor, torch.cat(halves))
