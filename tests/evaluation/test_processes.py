"""A comparison shared by two processes."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.evaluation.comparison.methods import METHODS
from tests.evaluation.comparison_toys import SHORT, fill

# Two processes with the environment that torchrun gives them, forked after the imports, which take most of the time.
FORKED = """
import os, sys
from anofpdm.cli.main import main
from anofpdm.evaluation.comparison.methods import METHODS
from tests.evaluation.comparison_toys import SHORT

METHODS.update(SHORT)
children = []
for rank in range(2):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    children += [os.fork()]
    if not children[-1]:
        main()
        sys.exit(0)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def test_number_of_processes_does_not_change_scores(tmp_path, monkeypatch):
    fill(tmp_path)
    words = ["evaluate", tmp_path / "guided", tmp_path / "cohort", "--with", f"classifier={tmp_path / 'classifier'}"]
    for name in ("anofpdm-ddim", "anofpdm-ddpm", "ddim-classifier-free", "cg-cdm"):
        words += ["--method", name]
    words += ["--sample", 16, "--tune", 12, "--seeds", 1]
    words += ["--levels", 3, "--strengths", "0,2", "--first-setting", "--device", "cpu", "--batch", 8]
    for name, method in SHORT.items():
        monkeypatch.setitem(METHODS, name, method)
    done = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    command = [sys.executable, "-c", FORKED, *map(str, words), "--out", str(tmp_path / "two")]
    root = Path(__file__).parents[2]
    both = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=root)
    assert both.returncode == 0, both.stderr
    one, two = (json.loads((tmp_path / name / "results.json").read_text())["methods"] for name in ("one", "two"))
    assert len(one) > 4
    for name, by_setup in one.items():
        for setup, several in by_setup.items():
            for key, value in several["mean"].items():
                if key != "seconds":
                    assert two[name][setup]["mean"][key] == pytest.approx(value, abs=2e-3), (name, setup, key)
