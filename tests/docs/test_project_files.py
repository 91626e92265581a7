"""Files for contributors: they name what exists, and the version has one place."""

import re
import tomllib
from pathlib import Path

import pytest

import anofpdm

ROOT = Path(__file__).parents[2]


def test_the_version_has_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/anofpdm/__init__.py"
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == anofpdm.__version__
    assert f"## {anofpdm.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_runs_the_checks_of_every_machine():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert {"ubuntu-latest", "macos-latest"} <= set(job["strategy"]["matrix"]["os"])
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_hooks_before_a_commit_are_those_of_make_check():
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-format", "ruff", "mypy"]
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert all(tool in check for tool in ("ruff format", "ruff check", "mypy"))


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_issue_forms_are_valid(path):
    yaml = pytest.importorskip("yaml")
    form = yaml.safe_load(path.read_text())
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= set(form)
        assert all({"type", "attributes"} <= set(part) for part in form["body"])


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
