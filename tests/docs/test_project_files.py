"""Files for contributors, the documentation site and the release: they agree with each other and with the code."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import anofpdm

ROOT = Path(__file__).parents[2]
BLOCKS = ("h1", "h2", "h3", "li", "table", "tr", "pre", "img")
needs_site = "needs the packages of the site: pip install 'anofpdm[site]'"


def test_the_version_has_one_place_and_files_that_repeat_it_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/anofpdm/__init__.py"
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    descriptor = json.loads((ROOT / "boutiques" / "anofpdm.json").read_text())
    assert {descriptor["tool-version"], citation} == {anofpdm.__version__}
    assert f"## {anofpdm.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    page = (ROOT / "docs" / "release.md").read_text()
    listed = ("src/anofpdm/__init__.py", "CITATION.cff", "boutiques/anofpdm.json", "CHANGELOG.md", "make package")
    assert all(name in page for name in listed)


def test_the_workflow_and_the_hooks():
    yaml = pytest.importorskip("yaml")
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert {"ubuntu-latest", "macos-latest"} <= set(job["strategy"]["matrix"]["os"])
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-format", "ruff", "mypy"]
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert all(tool in check for tool in ("ruff format", "ruff check", "mypy"))


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs", reason=needs_site)
    from docs.tools import hooks

    return hooks


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings", "griffe"):
        pytest.importorskip(package, reason=needs_site)
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def article(site: Path, path: str) -> str:
    name = path.replace("README.md", "index.md").removesuffix(".md")
    return re.search(r"<article.*?</article>", (site / f"{name}.html").read_text(), re.DOTALL)[0]


def test_pages_of_the_site_look_as_in_the_repository(site, hooks):
    """The same headings, lists, tables and code as by another implementation of Markdown, the one GitHub follows."""
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark").enable("table").render
    pages = [(source, path) for source, path in hooks.site_paths().items() if source.endswith(".md")]
    assert len(pages) > 30
    for source, path in pages:
        if source != "docs/api.md":  # is generated
            count = lambda text: {name: len(re.findall(rf"<{name}\b", text)) for name in BLOCKS}  # noqa: E731
            assert count(render((ROOT / source).read_text())) == count(article(site, path)), source


def test_generated_pages_of_the_site(site):
    from anofpdm.scoring.metrics.scan import score_masks

    page = re.sub(r"<[^>]+>", "", article(site, "api.md"))
    for thing in (anofpdm.load, score_masks):
        assert thing.__doc__.split(":")[0].split(";")[0] in page
    assert "anomaly_map: np.ndarray — float32 [i, j, k]" in page  # a comment beside an attribute
    assert "request: instead of options" in page  # a comment beside a parameter
    notebook = article(site, "tutorial.md")
    assert notebook.count("data:image/png;base64,") == 2
    assert 'href="first-hour.html"' in notebook
