"""The documentation site builds without a warning, has every page, and shows what the repository shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = ("h1", "h2", "h3", "li", "table", "tr", "pre", "img")
needs_site = "needs the packages of the site: pip install 'anofpdm[site]'"


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
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def article(site: Path, path: str) -> str:
    name = path.replace("README.md", "index.md").removesuffix(".md")
    return re.search(r"<article.*?</article>", (site / f"{name}.html").read_text(), re.DOTALL)[0]


def test_pages_look_as_in_the_repository(site, hooks):
    """The same headings, lists, tables and code as by another implementation of Markdown, the one GitHub follows."""
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark").enable("table").render
    pages = [(source, path) for source, path in hooks.site_paths().items() if source.endswith(".md")]
    assert len(pages) > 30
    for source, path in pages:
        if source != "docs/api.md":  # is generated
            count = lambda text: {name: len(re.findall(rf"<{name}\b", text)) for name in BLOCKS}  # noqa: E731
            assert count(render((ROOT / source).read_text())) == count(article(site, path)), source


def test_the_reference_has_docstrings_and_comments(site):
    import anofpdm
    from anofpdm.scoring.metrics.scan import score_masks

    page = re.sub(r"<[^>]+>", "", article(site, "api.md"))
    for thing in (anofpdm.load, score_masks):
        assert thing.__doc__.split(":")[0].split(";")[0] in page
    assert "anomaly_map: np.ndarray — float32 [i, j, k]" in page  # a comment beside an attribute
    assert "request: instead of options" in page  # a comment beside a parameter


def test_the_notebook_is_a_page(site):
    page = article(site, "tutorial.md")
    assert page.count("data:image/png;base64,") == 2
    assert 'href="first-hour.html"' in page
    assert (site / "tutorial.ipynb").is_file()


def test_links_lead_to_the_page_of_the_site(hooks):
    paths = {"docs/a.md": "a.md", "docs/how-to/b.md": "how-to/b.md", "results/README.md": "results/README.md"}
    change = hooks.change_links
    assert change("[r](../results/README.md#x)", "docs/a.md", paths) == "[r](results/README.md#x)"
    assert change("[r](../../results/README.md)", "docs/how-to/b.md", paths) == "[r](../results/README.md)"
    assert change("[a](../docs/a.md)", "results/README.md", paths) == "[a](../a.md)"
    for other in ("[x](https://example.org/a.md)", "[x](#here)", "[x](../pyproject.toml)"):
        assert change(other, "docs/a.md", paths) == other


def test_every_page_is_in_the_navigation():
    """Also where the site cannot be built."""
    listed = set(re.findall(r"([\w/-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert listed == pages | {"tutorial.md"}
