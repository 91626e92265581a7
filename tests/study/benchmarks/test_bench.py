import time

import torch

from anofpdm.choices import Preset
from anofpdm.method import NoiseSchedule, forward_evidence
from anofpdm.network.predictor import NoisePredictor
from anofpdm.study.bench import scan_speed as bench_scan
from anofpdm.study.bench.forward import BenchConfig, literal_loop, random_network


def test_the_literal_loop_computes_the_same():
    """A speed-up over a loop that computes something else would mean nothing."""
    config = BenchConfig(torch.device("cpu"), Preset.TINY, 16, 3, (5,), 5)
    network = random_network(config).eval()
    x0 = torch.rand(3, 4, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    levels = [0, 100, 200, 300]
    maps, curve = literal_loop(network, x0, levels)
    ours = forward_evidence(  # the first slice has the same noise, by the seed of the batch and by its own
        NoisePredictor(network, torch.device("cpu")),
        x0[:1],
        levels=levels,
        strengths=[0.0],
        schedule=NoiseSchedule.linear(),
        seeds=[0],
    )
    torch.testing.assert_close(ours.divergence[0, 0], curve[0], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(ours.maps[0, 0], maps[0], rtol=1e-3, atol=1e-5)


def test_a_scan_is_timed_from_files_to_mask(monkeypatch):
    """The second run of two."""
    monkeypatch.setattr(bench_scan, "SIDE", 32)
    start = time.perf_counter()
    seconds = bench_scan.scan_seconds(torch.device("cpu"), (60, 60, 8))
    assert 0 < seconds < time.perf_counter() - start
