"""Limits on the size of files and functions that ruff has no rule for. Each test lists all violations at once."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "anofpdm"
MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 40
LONG_FUNCTIONS = {"study/rivals/simplex_kernel.py _noise"}  # a Triton kernel


def test_files_are_short():
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    too_long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert not too_long


def test_functions_are_short():
    """Outside cli/, where options are parameters with help texts."""
    too_long = {
        f"{path.relative_to(SOURCE).as_posix()} {node.name}"
        for path in SOURCE.rglob("*.py")
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert not too_long - LONG_FUNCTIONS
