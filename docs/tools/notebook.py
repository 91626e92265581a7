"""Runs the code of a notebook and stores its output: python docs/tools/notebook.py docs/tutorial.ipynb

The cells are run in order, in this process, in an empty folder. Of each cell, what it prints and the value of its last
line are kept, as a picture if that value has one. No Jupyter is needed.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
PARAMETERS = "parameters"  # tag of the cell with the settings


def read_notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def run_notebook(notebook: dict[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run all cells; `settings` replace values after the cell of parameters. Returns the names at the end."""
    names: dict[str, Any] = {}
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell["outputs"] = run_cell("".join(cell["source"]), names, f"cell {number}")
        cell["execution_count"] = number
        if PARAMETERS in cell["metadata"].get("tags", []):
            names.update(settings or {})
    return names


def code_cells(notebook: dict[str, Any]) -> Iterator[Cell]:
    return (cell for cell in notebook["cells"] if cell["cell_type"] == "code")


def run_cell(source: str, names: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The output of a cell as a notebook stores it."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if isinstance(last, ast.Expr) else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": _data(value)})
    return outputs


def _data(value: Any) -> dict[str, Any]:
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode()}
    return {"text/plain": repr(value).splitlines(True)}


def main(path: Path) -> None:
    notebook = read_notebook(path)
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        try:
            os.chdir(folder)
            run_notebook(notebook)
        finally:
            os.chdir(before)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
