"""Extension of griffe for the API reference: comments beside attributes and parameters become their description.

In this project, `mask: np.ndarray  # bool [i, j, k]` describes an attribute of a class, and the same a parameter. The
attributes of a class become one list below its docstring.
"""

import ast
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Object


class CommentDocs(Extension):
    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        fields = [
            field for field in cls.members.values() if isinstance(field, Attribute) and "property" not in field.labels
        ]
        lines = [
            f"- `{field.name}: {field.annotation}`{_dash(describe(field))}" for field in fields if field.annotation
        ]
        _append(cls, lines)
        for field in fields:
            del cls.members[field.name]

    def on_function_instance(self, *, node: Any, func: Function, **_: Any) -> None:
        if not isinstance(node, ast.FunctionDef):
            return
        comments = line_comments(func)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        described = [(field.arg, comments.get(field.end_lineno or 0, "")) for field in arguments]
        _append(func, [f"- `{name}`: {comment}" for name, comment in described if comment])


def describe(attribute: Attribute) -> str:
    return line_comments(attribute).get(attribute.endlineno or 0, "")


def line_comments(thing: Object) -> dict[int, str]:
    return file_comments(Path(str(thing.filepath)))


@cache
def file_comments(path: Path) -> dict[int, str]:
    """Line number to comment; comments for tools are left out."""
    with path.open() as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
    texts = {token.start[0]: token.string for token in tokens}
    return {line: text.lstrip("# ") for line, text in texts.items() if not text.startswith(("# noqa", "# type:"))}


def _dash(comment: str) -> str:
    return f" — {comment}" if comment else ""


def _append(thing: Object, lines: list[str]) -> None:
    if lines:
        text = thing.docstring.value if thing.docstring else ""
        thing.docstring = Docstring("\n".join([text, "", *lines]).strip(), parent=thing)
