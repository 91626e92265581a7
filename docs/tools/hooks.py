"""Hooks of mkdocs: pages of the site that are not in docs/, and links between them.

Results, model cards and the tutorial notebook become pages. Links are written for readers of the repository; here they
are changed to lead to the same page of the site. A link to a file that is not on the site stays, and a strict build
fails on it.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = "docs/tutorial.ipynb"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
PICTURES = (".png", ".svg")


def site_paths() -> dict[str, str]:
    """File in the repository to file of the site, for all pages and pictures."""
    files = {f"docs/{path.relative_to(ROOT / 'docs').as_posix()}" for path in (ROOT / "docs").rglob("*.*")}
    paths = {path: path.removeprefix("docs/") for path in files}
    paths[NOTEBOOK] = "tutorial.md"
    for path in sorted((ROOT / "results").iterdir()):
        if path.suffix in (".md", *PICTURES):
            paths[f"results/{path.name}"] = f"results/{path.name}"
    for card in sorted((ROOT / "src/anofpdm/models").rglob("README.md")):
        name = "-".join(card.parent.relative_to(ROOT / "src/anofpdm/models").parts)
        paths[card.relative_to(ROOT).as_posix()] = f"models/{name}.md"
    return paths


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add results and model cards to the navigation."""
    pages = [path for path in site_paths().values() if path.endswith(".md")]
    cards = sorted((path for path in pages if path.startswith("models/")), key=lambda path: Path(path).stem)
    config.nav = [
        *(config.nav or []),
        {"Results": in_order([path for path in pages if path.startswith("results/")])},
        {"Model cards": [{card_title(path): path} for path in cards]},
    ]
    return config


def in_order(results: list[str]) -> list[str]:
    """The page of all results, those in the order of its links, then others."""
    linked = LINK.findall((ROOT / "results/README.md").read_text())
    order = ["README.md", *dict.fromkeys(target for _, target, _, _ in linked)]
    places = {f"results/{name}": place for place, name in enumerate(order)}
    return sorted(results, key=lambda path: (places.get(path, len(places)), path))


def card_title(path: str) -> str:
    """In the navigation, where every student's card would be called 'Student network'."""
    name = Path(path).stem
    return f"{name.removesuffix('-student')}: its student" if name.endswith("-student") else name


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, path in site_paths().items():
        if source == NOTEBOOK:
            files.append(File.generated(config, path, content=render_notebook((ROOT / source).read_text())))
        elif not source.startswith("docs/"):
            files.append(File.generated(config, path, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links between files of the repository to links between pages of the site."""
    paths = site_paths()
    sources = {path: source for source, path in paths.items()}
    return change_links(markdown, sources[page.file.src_uri], paths)


def change_links(markdown: str, source: str, paths: dict[str, str]) -> str:
    here = posixpath.dirname(paths[source]) or "."

    def change(match: re.Match[str]) -> str:
        start, target, anchor, end = match.groups()
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if re.match(r"[a-z]+:", target) or there not in paths:
            return match[0]
        return f"{start}{posixpath.relpath(paths[there], here)}{anchor or ''}{end}"

    return LINK.sub(change, markdown)


def render_notebook(text: str) -> str:
    """Cells of a notebook as Markdown; of the output of code, text and pictures."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_render_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _render_output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    lines = output.get("text", data.get("text/plain", []))
    return f"```text\n{''.join(lines).rstrip()}\n```"
