"""Student training on a GPU: batches from its memory, and steps as a CUDA graph."""

import numpy as np
import pytest
import torch

from anofpdm.student import student_batches
from anofpdm.student.student_batches import training_batches
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.student.targets import PseudoLabels
from anofpdm.student.train_student import StudentTrainer, StudentTrainingConfig

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
TRAINING = StudentTrainingConfig(batch=8)


def pseudo_labels():
    rng = np.random.default_rng(0)
    slices = rng.random((30, 2, 64, 64)).astype(np.float16).astype(np.float32)
    masks = (slices[:, 0] > 0.7).astype(np.uint8) * 200
    neighbours = np.stack([np.arange(30), rng.integers(0, 30, 30)], axis=1)
    return PseudoLabels(lambda rows: slices[rows], masks, neighbours, rng.integers(0, 3, 30))


def test_batches_are_the_same_from_the_gpu_and_from_files(monkeypatch):
    data = pseudo_labels()
    there = training_batches(data, 8, 3, GPU)
    from_gpu = [next(there) for _ in range(6)]
    monkeypatch.setattr(student_batches, "_fits", lambda *_: False)
    elsewhere = training_batches(data, 8, 3, GPU)
    for batch, other in zip(from_gpu, elsewhere, strict=False):
        assert all(torch.equal(*parts) for parts in zip(batch, other, strict=True))


def test_a_recorded_step_computes_what_a_plain_one_does():
    config, data, trainers = StudentConfig(("a", "b"), 64, (2.0,), width=16), pseudo_labels(), []
    for graph in (True, False):
        torch.manual_seed(0)
        trainer = StudentTrainer(StudentNet(config), TRAINING, GPU)
        trainer._uses_graph = graph
        source = training_batches(data, 8, 0, GPU)
        losses = []
        for step in range(8):
            trainer.set_learning_rate(step, step / 100)
            losses.append(float(trainer.update(next(source))))
        trainers.append((trainer, losses))
    (recorded, losses), (plain, expected) = trainers
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    for parameters in zip(recorded.average.parameters(), plain.average.parameters(), strict=True):
        torch.testing.assert_close(*parameters, rtol=1e-2, atol=1e-3)
