"""Two processes share the network's passes, and change no number."""

import shutil

import numpy as np
import pytest

from anofpdm.calibration.calibration_file import FIGURE, FILE
from anofpdm.errors import MethodError
from anofpdm.util.distributed import World
from tests.commands import run
from tests.two_processes import run_in_two_processes

QUICK = ("--split", "train", "--most", 20, "--levels", 2, "--strengths", "0,2", "--batch", 8, "--device", "cpu")


def run_in_one_process(*words):
    return run(*words).stdout


PROCESSES = (run_in_one_process, run_in_two_processes)


def test_calibrate(made, tmp_path):
    outputs = set()
    for start in PROCESSES:
        model = shutil.copytree(made / "model", tmp_path / start.__name__)
        output = start("calibrate", model, made / "cohort", *QUICK).replace(str(model), "MODEL")
        outputs.add((output, *((model / name).read_bytes() for name in (FILE, FIGURE))))
    assert len(outputs) == 1


def test_ablate(made, tmp_path):
    outputs = []
    for start in PROCESSES:
        out = tmp_path / start.__name__
        start("ablate", made / "model", made / "cohort", *QUICK, "--levels-tried", "2", "--no-variants", "--out", out)
        outputs.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10


def test_shares_are_whole_batches_and_cover_everything():
    shares = [World(rank, 3).share(22, 5) for rank in range(3)]
    assert sorted(np.concatenate(shares)) == [*range(22)]
    assert [np.unique(share // 5).tolist() for share in shares] == [[0, 3], [1, 4], [2]]


def test_an_error_of_another_process_is_raised(monkeypatch):
    monkeypatch.setattr(World, "all_gather", lambda _self, error: [error, MethodError("in process 1")])
    with pytest.raises(MethodError, match="in process 1"), World(0, 2).raise_in_all():
        pass
