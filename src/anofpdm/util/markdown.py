"""Markdown as text for a terminal: without links, wrapped, tables in columns."""

import re
import textwrap
from collections.abc import Iterator, Sequence

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
ITEM = re.compile(r" ?[-*] ")
RULE = re.compile(r"\|[\s:|-]+\|")  # between the head of a table and its body
CODE, GAP = "    ", 2
Table = list[list[str]]


def to_terminal(text: str, width: int) -> str:
    return "\n".join(line for block in _blocks(_without_links(text)) for line in _render(block, width))


def _without_links(text: str) -> str:
    """Web addresses stay behind the words; folders of the repository mean nothing elsewhere."""
    shown = LINK.sub(lambda link: f"{link[1]} ({link[2]})" if link[2].startswith("http") else link[1], text)
    return shown.replace("**", "")


def _blocks(text: str) -> Iterator[list[str]]:
    """Lines that belong together: a paragraph, a list item, a table, a heading; each line of code; each blank line."""
    block: list[str] = []
    for line in text.splitlines():
        continues = block and _kind(block[0]) in ("paragraph", "item") and _kind(line) == "paragraph"
        if continues or (block and _kind(block[0]) == _kind(line) == "table"):
            block.append(line)
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block


def _kind(line: str) -> str:
    starts = {"code": line.startswith(CODE), "heading": line.startswith("#"), "table": line.startswith("|")}
    starts |= {"item": bool(ITEM.match(line)), "blank": not line.strip()}
    return next((kind for kind, applies in starts.items() if applies), "paragraph")


def _render(block: list[str], width: int) -> list[str]:
    kind = _kind(block[0])
    if kind == "blank":
        return [""]
    if kind == "code":
        return _wrap_command(block[0], width)
    if kind == "table":
        return _render_table([_cells(line) for line in block if not RULE.fullmatch(line.strip())], width)
    text = " ".join(line.strip() for line in block)
    if kind == "heading":
        lines = textwrap.wrap(text.lstrip("# "), width)
        return [*lines, ("=" if text.startswith("# ") else "-") * max(map(len, lines))]
    first, rest = (" - ", "   ") if kind == "item" else ("", "")
    text = text[2:] if kind == "item" else text
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _wrap_command(line: str, width: int) -> list[str]:
    """Continued with backslashes, so that it can still be pasted into a shell."""
    if len(line) <= width:
        return [line]
    parts = textwrap.wrap(line.strip(), width - 10, break_long_words=False, break_on_hyphens=False)
    return [CODE * (2 if number else 1) + part + " \\" * (number < len(parts) - 1) for number, part in enumerate(parts)]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _render_table(rows: Table, width: int) -> list[str]:
    """Columns, narrowed until they fit; where words would have to be broken, each row as a list."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        spare = [column - word for column, word in zip(widths, words, strict=True)]
        if not any(spare):
            return _render_list(rows)
        widths[spare.index(max(spare))] -= 1
    head, *body = ([*_render_row(row, widths)] for row in rows)
    return [*head, (" " * GAP).join("-" * column for column in widths), *(line for row in body for line in row)]


def _render_list(rows: Table) -> list[str]:
    indent = max(map(len, rows[0][1:])) + GAP
    lines = []
    for name, *values in rows[1:]:
        lines += [name, *(f"  {key:{indent}}{value}" for key, value in zip(rows[0][1:], values, strict=True))]
    return lines


def _render_row(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [
        textwrap.wrap(cell, column, break_on_hyphens=False) or [""] for cell, column in zip(row, widths, strict=True)
    ]
    for number in range(max(map(len, cells))):
        parts = (cell[number] if number < len(cell) else "" for cell in cells)
        yield (" " * GAP).join(f"{part:{column}}" for part, column in zip(parts, widths, strict=True)).rstrip()
