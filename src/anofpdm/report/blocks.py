"""Text with headings and tables, as Markdown; templates write the same blocks as HTML (parts.html)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    heading: str


@dataclass(frozen=True)
class Table:
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = Heading | Table | str  # str: a paragraph


def to_markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join(map(_block, blocks)) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"### {block.heading}"
    if isinstance(block, Table):
        return "\n".join(map(_row, (block.heads, ["---"] * len(block.heads), *block.rows)))
    return block


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
