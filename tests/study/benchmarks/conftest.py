"""Benchmarks are no package: Python finds modules next to the script."""

import sys
from pathlib import Path

import pytest

from tests import toys


@pytest.fixture(autouse=True)
def find_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture
def run_benchmark(monkeypatch, capsys):
    """Run a script with these arguments; returns what it prints."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        toys.benchmark(name).main()
        return capsys.readouterr().out

    return run
