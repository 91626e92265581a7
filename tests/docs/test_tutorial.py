"""The tutorial notebook runs, on smaller scans, and its stored output is small."""

import json
import re
from pathlib import Path

import pytest

from docs.tools.notebook import code_cells, read_notebook, run_cell, run_notebook

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
SMALLER = {"PATIENTS": 3, "SLICES": 12, "SIZE": 64}


@pytest.fixture
def notebook():
    return read_notebook(NOTEBOOK)


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")  # few slices are far apart
def test_the_notebook_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_notebook(notebook, SMALLER)
    assert len(list(tmp_path.glob("masks/*/report.html"))) == SMALLER["PATIENTS"]
    assert len(names["cohort"]) <= SMALLER["PATIENTS"] * SMALLER["SLICES"]
    scores = names["scores"]
    assert len(scores) == SMALLER["PATIENTS"]
    assert max(score.dice for score in scores.values() if score.truth_ml) > 0.3  # the model finds a lesion
    unhealthy, healthy = names["evidence"].end_divergence[:, 0].tolist()
    assert unhealthy > healthy  # the method, in one line


def test_links_lead_somewhere(notebook):
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    assert len(targets) > 5
    assert all((NOTEBOOK.parent / target).is_file() for target in targets)


def test_output_is_stored_and_small(notebook):
    printed = [line for cell in code_cells(notebook) for output in cell["outputs"] for line in output.get("text", [])]
    assert any("DICE" in line for line in printed)
    assert NOTEBOOK.stat().st_size < 100_000
    assert not re.search(r"/(home|Users|root|tmp)/", NOTEBOOK.read_text())


def test_a_notebook_is_valid(notebook):
    """Against the parts of the format (nbformat 4.5) that this one uses."""
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | code


def test_output_of_a_cell():
    names: dict = {}
    (printed, value) = run_cell("x = 1\nprint('a')\nx + 1", names, "cell")
    assert (printed["text"], value["data"], names["x"]) == (["a\n"], {"text/plain": ["2"]}, 1)
    assert run_cell("x = 2", names, "cell") == []
    json.dumps([printed, value])
