"""A comparison shared by two processes."""

import json

import pytest

from anofpdm.study.comparison.methods import METHODS
from tests.commands import run
from tests.study.comparison_toys import SHORT
from tests.two_processes import run_in_two_processes

SHORT_METHODS = """
from anofpdm.study.comparison.methods import METHODS
from tests.study.comparison_toys import SHORT

METHODS.update(SHORT)
"""


def test_number_of_processes_does_not_change_scores(made, tmp_path, monkeypatch):
    words = ["evaluate", made / "guided", made / "cohort", "--with", f"classifier={made / 'classifier'}"]
    for name in ("anofpdm-ddim", "cg-cdm"):
        words += ["--method", name]
    words += ["--sample", 16, "--tune", 12, "--seeds", 1]
    words += ["--levels", 3, "--strengths", "0,2", "--first-setting", "--device", "cpu", "--batch", 8]
    for name, method in SHORT.items():
        monkeypatch.setitem(METHODS, name, method)
    run(*words, "--out", tmp_path / "one")
    run_in_two_processes(*words, "--out", tmp_path / "two", before=SHORT_METHODS)
    alone, shared = (json.loads((tmp_path / name / "results.json").read_text())["methods"] for name in ("one", "two"))
    assert len(alone) == 3
    for name, by_setup in alone.items():
        for setup, several in by_setup.items():
            for key, value in several["mean"].items():
                if key != "seconds":
                    assert shared[name][setup]["mean"][key] == pytest.approx(value, abs=2e-3), (name, setup, key)
