"""The training log."""

import sys
from types import SimpleNamespace
from unittest.mock import Mock, call

import numpy as np
import pytest

from anofpdm.network.training import run_training
from anofpdm.network.training.log import TrainingLog, loss_jump
from anofpdm.network.training.training_config import TrainingLimits
from tests.network.trainers import trainer_of


class TestLossJump:
    @staticmethod
    def logged(folder, losses):
        log = TrainingLog(folder, 0)
        for number, loss in enumerate(losses):
            log.write(50 * (number + 1), float(loss), 10.0)
        return loss_jump(folder)

    @pytest.fixture
    def losses(self):
        """Falling from 0.2 to 0.005; single batches differ by a factor of two."""
        noise = np.random.default_rng(3).standard_normal(100)
        return (0.2 * np.exp(-np.arange(100) / 5) + 0.005) * np.exp(0.35 * noise)

    def test_a_falling_loss_has_no_jump_nor_has_one_bad_batch(self, losses, tmp_path):
        assert self.logged(tmp_path, losses) is None
        losses[80] = 1.0
        assert self.logged(tmp_path, losses) is None

    @pytest.mark.parametrize("place", [80, 97])
    def test_a_jump_is_located(self, losses, tmp_path, place):
        """Also near the end."""
        losses[place:] += 0.07 * np.exp(-np.arange(100 - place) / 20)
        jump = self.logged(tmp_path, losses)
        assert jump.step == 50 * (place + 1)
        assert 0.004 < jump.before < 0.006
        assert jump.after > 0.04

    def test_a_short_log_or_an_incomplete_line_gives_no_jump(self, losses, tmp_path):
        assert loss_jump(tmp_path) is None
        assert self.logged(tmp_path, losses[:10]) is None
        with (tmp_path / "log.jsonl").open("a") as file:
            file.write('{"step": 550, "lo')
        assert loss_jump(tmp_path) is None


def test_tensorboard_is_written_if_installed(cohort, tmp_path, monkeypatch):
    writer = Mock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=2, log_steps=1))
    writer.assert_called_once_with(tmp_path / "tensorboard", purge_step=1)
    *_, last = calls = writer.return_value.mock_calls
    assert [made.args[2] for made in calls if made.args[:1] == ("loss",)] == [1, 2]
    assert last == call.flush()
