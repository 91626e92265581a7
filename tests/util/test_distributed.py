"""Several processes."""

import torch

from anofpdm.util.distributed import World


def test_finished_processes_wait_for_the_others(monkeypatch):
    given = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda _backend, **options: given.update(options))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert World.from_environment(torch.device("cpu")) == World(1, 2)
    assert given["timeout"].days == 7
