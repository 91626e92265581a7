"""The tutorial notebook runs, on smaller scans, and its stored output is small."""

import re
from pathlib import Path

import pytest

from docs.tools.notebook import read_notebook, run_notebook

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
SMALLER = {"PATIENTS": 3, "SLICES": 12, "SIZE": 64}


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")  # few slices are far apart
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_notebook(read_notebook(NOTEBOOK), SMALLER)
    assert len(list(tmp_path.glob("masks/*/report.html"))) == SMALLER["PATIENTS"]
    assert len(names["cohort"]) <= SMALLER["PATIENTS"] * SMALLER["SLICES"]
    scores = names["scores"]
    assert len(scores) == SMALLER["PATIENTS"]
    assert max(score.dice for score in scores.values() if score.truth_ml) > 0.3  # the model finds a lesion
    unhealthy, healthy = names["evidence"].end_divergence[:, 0].tolist()
    assert unhealthy > healthy  # the method, in one line


def test_what_is_stored():
    """Small output without paths, and links that lead to files."""
    text, notebook = NOTEBOOK.read_text(), read_notebook(NOTEBOOK)
    assert len(text) < 100_000
    assert not re.search(r"/(home|Users|root|tmp)/", text)
    for cell in notebook["cells"]:
        for target in re.findall(r"\]\(([^)#\s]+)", "".join(cell["source"])):
            assert (NOTEBOOK.parent / target).is_file(), target
