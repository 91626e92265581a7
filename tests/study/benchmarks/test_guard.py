"""benchmarks/guard.py: what it reports when something became slower. Nothing is timed here."""

import sys
from dataclasses import replace

import pytest

from tests import toys


@pytest.fixture
def guard(monkeypatch):
    module = toys.benchmark("guard")
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setattr(module.torch, "set_num_threads", lambda _count: None)
    for name, limit in module.LIMITS.items():
        module.LIMITS[name] = replace(limit, measure=lambda at=limit.usual: at)
    return module


@pytest.mark.parametrize("times", [1.01, float("nan")])
def test_a_regression_is_named(guard, times):
    slow, other = list(guard.LIMITS)[:2]
    limit = guard.LIMITS[slow]
    guard.LIMITS[slow] = replace(limit, measure=lambda: times * limit.usual * limit.margin)
    with pytest.raises(SystemExit) as end:
        guard.main()
    assert slow in str(end.value.code)
    assert other not in str(end.value.code)
