"""Lines and tables on the terminal; control characters in names of files are not printed."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from anofpdm.util.text import printable

if TYPE_CHECKING:
    from rich.table import Column, Table


def print_lines(*lines: str) -> None:
    for line in lines:
        print(printable(line))


def print_table(table: "Table") -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=True, markup=False).print(table)


def print_rows(heads: "Iterable[str | Column]", rows: Iterable[Iterable[str]]) -> None:
    """As a table."""
    from rich.table import Table

    table = Table(*heads, box=None)
    for row in rows:
        table.add_row(*row)
    print_table(table)


def problem_lines(warnings: Iterable[tuple[str, str]], failed: Mapping[str, str]) -> list[str]:
    """Warnings and failures, each with the name of a scan."""
    lines = [f"warning: {name}: {text}" for name, text in warnings]
    return lines + [f"failed: {name}: {reason}" for name, reason in failed.items()]
