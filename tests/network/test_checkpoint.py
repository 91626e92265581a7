import json
import os

import pytest
import torch

from anofpdm.errors import ModelError, OutputError
from anofpdm.network import checkpoint
from anofpdm.util.files import write_atomically

WEIGHTS = {"a": torch.randn(3, 4), "b.c": torch.arange(5), "half": torch.randn(6).half()}
CONFIG = {"format": 1, "step": 7, "modalities": ["t1"]}


@pytest.fixture
def saved(tmp_path):
    checkpoint.save_model(tmp_path, WEIGHTS, CONFIG)
    return tmp_path


def test_round_trip(tmp_path):
    digest = checkpoint.save_model(tmp_path, WEIGHTS, CONFIG)
    weights, config, again = checkpoint.load_model(tmp_path)
    assert (config, again) == (CONFIG, digest)
    for name, tensor in WEIGHTS.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=0)
    assert json.loads((tmp_path / "config.json").read_text()) == {**CONFIG, "sha256": digest}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "weights.safetensors"]


@pytest.mark.parametrize("content", ["", "{]", "[1]", '{"sha256": "0"}', {"step": 8}, {"other": 1}, {"sha256": "0"}])
def test_a_copy_of_the_configuration_that_differs_is_refused(saved, content):
    """Edited by hand it would have no effect."""
    copy = saved / "config.json"
    config = json.loads(copy.read_text())
    copy.write_text(json.dumps(config))
    checkpoint.load_model(saved)  # another layout, the same configuration
    copy.write_text(content if isinstance(content, str) else json.dumps({**config, **content}))
    with pytest.raises(ModelError, match=r"config\.json: differs .* restore config.json, or remove it"):
        checkpoint.load_model(saved)
    copy.unlink()
    assert checkpoint.load_model(saved)[1] == CONFIG


def test_weights_are_never_beside_the_configuration_of_others(saved, monkeypatch):
    """As after a kill between the two files."""

    def killed_before_the_configuration(path, data):
        if path.name != "config.json":
            write_atomically(path, data)

    monkeypatch.setattr(checkpoint, "write_atomically", killed_before_the_configuration)
    checkpoint.save_model(saved, WEIGHTS, {**CONFIG, "step": 8})
    assert checkpoint.load_model(saved)[1]["step"] == 8


def test_the_hash_depends_on_weights_and_configuration_only(tmp_path):
    first = checkpoint.save_model(tmp_path, WEIGHTS, CONFIG)
    assert checkpoint.save_model(tmp_path, dict(reversed(WEIGHTS.items())), CONFIG) == first
    assert checkpoint.save_model(tmp_path, {**WEIGHTS, "a": WEIGHTS["a"] + 1e-6}, CONFIG) != first
    assert checkpoint.save_model(tmp_path, WEIGHTS, {**CONFIG, "step": 8}) != first


def test_any_flipped_byte_and_any_truncation_is_detected(saved):
    path = saved / "weights.safetensors"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        for damaged in (flipped, whole[:place]):
            path.write_bytes(damaged)
            with pytest.raises(ModelError, match=r"weights\.safetensors: (damaged|format)"):
                checkpoint.load_model(saved)


def test_a_file_of_another_format(saved):
    checkpoint.save_model(saved, WEIGHTS, {**CONFIG, "format": 99})
    with pytest.raises(ModelError, match="format 99, but"):
        checkpoint.load_model(saved)


def test_the_previous_state_is_kept(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save_state(tmp_path, WEIGHTS, {**CONFIG, "step": step})
    assert checkpoint.load_state(tmp_path)[1]["step"] == 3
    (tmp_path / "state.previous.safetensors").rename(tmp_path / "state.safetensors")
    assert checkpoint.load_state(tmp_path)[1]["step"] == 2


def test_a_full_disk_leaves_the_previous_save(tmp_path, monkeypatch):
    checkpoint.save_state(tmp_path, WEIGHTS, CONFIG)

    def full(_number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            OutputError, match=r"state\.safetensors: .*No space left on device.*free disk space, then re-run"
        ):
            checkpoint.save_state(tmp_path, WEIGHTS, {**CONFIG, "step": 8})
    assert checkpoint.load_state(tmp_path)[1]["step"] == 7
    assert not list(tmp_path.glob(".*"))
