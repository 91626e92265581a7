"""Error messages of the program, collected from its source: python docs/tools/messages.py

Prints every message that is raised as an error for the user, or given as a warning about a scan, with the file it is
in; values that are filled in are written as three dots. docs/troubleshooting.md quotes some of them, and
tests/docs/test_troubleshooting.py checks that each quoted message exists.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "anofpdm"
VALUE = "..."


@dataclass(frozen=True)
class Message:
    file: str  # below src/anofpdm
    line: int
    kind: str  # class of the error or warning
    text: str


def error_classes() -> set[str]:
    """Classes of errors.py, and typer's for wrong usage."""
    tree = ast.parse((SOURCE / "errors.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)} | {"BadParameter"}


def collect_messages() -> list[Message]:
    classes = error_classes()
    messages = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            for kind, argument in _messages_of(node, classes):
                if text := template(argument):
                    messages.append(Message(name, argument.lineno, kind, text))
    return messages


def _messages_of(node: ast.AST, classes: set[str]) -> Iterator[tuple[str, ast.expr]]:
    """Calls of an error class, of `warnings.warn`, of `warn_scan`, and of a module's `_warn` (its last argument)."""
    if not isinstance(node, ast.Call) or not node.args:
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in classes:
        yield name, node.args[0]
    elif name in ("warn", "warn_scan"):
        yield "ScanWarning", node.args[0]
    elif name == "_warn":
        yield "ScanWarning", node.args[-1]


def template(node: ast.expr) -> str:
    """A string with every value replaced by three dots; empty if it is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return ""


if __name__ == "__main__":
    for message in collect_messages():
        print(f"{message.file}:{message.line}: {message.kind}: {message.text}")
