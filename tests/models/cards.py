"""Scores that model cards state."""

import re

from anofpdm.demo.run_demo import BUNDLED


def lower_bound(kind: str, method: str, column: str) -> float:
    """The lower end of a 95% interval in the table of a bundled model's card, as a fraction."""
    lines = (BUNDLED / f"phantom-{kind}" / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    header = next(row for row in rows if row[0] == "method")
    (cells,) = (row for row in rows if row[0] == method)
    interval = re.fullmatch(r"[\d.]+ \(([\d.]+)-[\d.]+\)", cells[header.index(column)])
    assert interval is not None, cells
    return float(interval[1]) / 100
