"""Finds unsafe calls and imports in source code, by its syntax tree; names are resolved through imports."""

import ast
from collections.abc import Iterator


def _by_name(reasons: dict[str, str]) -> dict[str, str]:
    """Name to reason, from reason to names."""
    return {name: reason for reason, names in reasons.items() for name in names.split()}


MODULES = _by_name(
    {
        "unpickles": "pickle cPickle dill cloudpickle joblib shelve marshal jsonpickle torch.package",
        "may unpickle": "yaml",
        "hides what is called": "builtins",
        "calls native code": "ctypes",
        "runs text as code": "code",
        "runs files": "runpy",
        "runs a shell": "pty",
        "expands entities": "xml",
        "downloads": "urllib.request urllib3 http.client httpx aiohttp requests ftplib telnetlib torch.hub "
        "huggingface_hub",
        "sends mail": "smtplib",
    }
)
CALLS = _by_name(
    {
        "runs text as code": "eval exec",
        "compiles text to code": "compile",
        "hides an import": "__import__",
        "runs a shell": "os.system os.popen subprocess.getoutput subprocess.getstatusoutput "
        "asyncio.create_subprocess_shell",
        "reads a pickle": "torch.load pandas.read_pickle",
        "writes a pickle": "torch.save",
        "may write a pickle": "numpy.save",
        "loads code": "torch.jit.load",
        "downloads": "torch.hub.load numpy.DataSource",
        "has a race condition": "tempfile.mktemp",
        "extracts unchecked paths": "shutil.unpack_archive tarfile.open tarfile.TarFile",
        "connects": "socket.create_connection",
    }
)
METHODS = _by_name({"extracts unchecked paths": "extractall extract", "reads a pickle": "read_pickle"})
SHELLS = ("os.exec", "os.spawn", "os.posix_spawn")
MUST_BE_FALSE = {"shell": "runs a shell", "allow_pickle": "reads a pickle"}


def find_unsafe(text: str) -> list[str]:
    """All findings, as 'line: what'."""
    tree = ast.parse(text)
    names = dict(_imported(tree))
    findings: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            findings += [(node.lineno, what) for what in _check_import(node)]
        elif isinstance(node, ast.Call):
            findings += [(node.lineno, what) for what in _check_call(node, names)]
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            findings += [(node.lineno, what) for what in _check_name(_full_name(node, names))]
    return [f"{line}: {what}" for line, what in sorted(set(findings))]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Local name to full name: after `import numpy as np`, np is numpy."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name.split(".")[0], _imported_name(one)) for one in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _imported_name(one: ast.alias) -> str:
    return one.name if one.asname else one.name.split(".")[0]


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """The full dotted name; empty for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        parent = _full_name(node.value, names)
        return f"{parent}.{node.attr}" if parent else ""
    return ""


def _check_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [one.name for one in node.names]
    else:
        names = [f"{node.module}.{one.name}" for one in node.names]
    for name in names:
        for module, why in MODULES.items():
            if name == module or name.startswith(f"{module}."):
                yield f"imports {module}, which {why}"


def _check_name(name: str) -> Iterator[str]:
    """Also where it is not called but passed on."""
    if name in CALLS:
        yield f"{name} {CALLS[name]}"
    if name.startswith(SHELLS):
        yield f"{name} starts a program"


def _check_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield f".{node.func.attr} {METHODS[node.func.attr]}"
    for word in node.keywords:
        if word.arg in MUST_BE_FALSE and not (isinstance(word.value, ast.Constant) and word.value.value is False):
            yield f"{word.arg}={ast.unparse(word.value)} {MUST_BE_FALSE[word.arg]}"
    name = _full_name(node.func, names)
    if name == "numpy.load" and len(node.args) > 2:
        yield "numpy.load: allow_pickle as a positional argument"
    if name.startswith("subprocess.") and (len(node.args) > 1 or any(word.arg is None for word in node.keywords)):
        yield f"{name}: arguments that may include shell=True"
    if name == "importlib.import_module" and not (node.args and isinstance(node.args[0], ast.Constant)):
        yield "importlib.import_module of a name that is not a literal"
