"""A step of student training on a GPU is recorded as a CUDA graph."""

import numpy as np
import pytest
import torch

from anofpdm.student.student_batches import training_batches
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.student.train_student import StudentTrainer, StudentTrainingConfig
from tests.student.student_toys import adjacent, blobs, pseudo_labels

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)


def test_a_recorded_step_computes_what_a_plain_one_does():
    data, results = pseudo_labels(*blobs(30, 64), adjacent(30)), []
    for graph in (True, False):
        torch.manual_seed(0)
        network = StudentNet(StudentConfig(("a",), 64, (-1.0, 1.0), width=16))
        trainer = StudentTrainer(network, StudentTrainingConfig(batch=8), GPU)
        trainer.uses_graph = graph
        losses = []
        for step, batch in zip(range(8), training_batches(data, 8, 0, GPU), strict=False):
            losses.append(float(trainer.update(batch, step + 1, step / 100)))
        results.append((losses, list(trainer.average.parameters())))
    (losses, parameters), (expected, plain) = results
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    for pair in zip(parameters, plain, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-2, atol=1e-3)
