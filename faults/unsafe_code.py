"""What source code does that it must not: found in its syntax tree, with names followed through imports."""

import ast
from collections.abc import Iterator

MODULES = {
    "pickle": "reads programs as data", "cPickle": "reads programs as data", "dill": "reads programs as data",
    "cloudpickle": "reads programs as data", "joblib": "reads programs as data", "shelve": "reads programs as data",
    "marshal": "reads programs as data", "yaml": "may read programs as data", "jsonpickle": "reads programs as data",
    "builtins": "hides what is called", "ctypes": "leaves Python", "code": "runs text", "runpy": "runs files",
    "pty": "runs a shell", "xml": "follows entities", "urllib.request": "fetches", "http.client": "fetches",
    "ftplib": "fetches", "smtplib": "sends", "telnetlib": "fetches", "requests": "fetches", "httpx": "fetches",
    "aiohttp": "fetches", "urllib3": "fetches", "huggingface_hub": "fetches", "torch.hub": "fetches",
    "torch.package": "reads programs as data",
}  # fmt: skip
CALLS = {
    "eval": "runs text", "exec": "runs text", "compile": "makes text a program", "__import__": "hides an import",
    "os.system": "runs a shell", "os.popen": "runs a shell", "subprocess.getoutput": "runs a shell",
    "subprocess.getstatusoutput": "runs a shell", "asyncio.create_subprocess_shell": "runs a shell",
    "torch.load": "reads a pickle", "torch.save": "writes a pickle", "torch.jit.load": "reads a program",
    "torch.hub.load": "fetches a program", "pandas.read_pickle": "reads a pickle", "tempfile.mktemp": "can be raced",
    "numpy.save": "may write a pickle", "shutil.unpack_archive": "unpacks unchecked", "numpy.DataSource": "fetches",
    "tarfile.open": "unpacks", "tarfile.TarFile": "unpacks", "socket.create_connection": "connects",
}  # fmt: skip
METHODS = {"extractall": "unpacks unchecked", "extract": "unpacks unchecked", "read_pickle": "reads a pickle"}
SHELLS = ("os.exec", "os.spawn", "os.posix_spawn")
MAY_SAY_FALSE = {"shell": "runs a shell", "allow_pickle": "reads a pickle"}


def unsafe(text: str) -> list[str]:
    """'line: what', for all of it."""
    tree = ast.parse(text)
    known = dict(_imported(tree))
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [(node.lineno, said) for said in _of_import(node)]
        elif isinstance(node, ast.Call):
            found += [(node.lineno, said) for said in _of_call(node, known)]
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            found += [(node.lineno, said) for said in _of_name(_full(node, known))]
    return [f"{line}: {said}" for line, said in sorted(set(found))]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What a name stands for: `import numpy as np` makes np numpy."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name.split(".")[0], _known_as(one)) for one in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _known_as(one: ast.alias) -> str:
    return one.name if one.asname else one.name.split(".")[0]


def _full(node: ast.expr, known: dict[str, str]) -> str:
    """The whole dotted name, or nothing where it is not one."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _full(node.value, known)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _of_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [one.name for one in node.names]
    else:
        names = [f"{node.module}.{one.name}" for one in node.names]
    for name in names:
        for module, why in MODULES.items():
            if name == module or name.startswith(f"{module}."):
                yield f"imports {module}, which {why}"


def _of_name(name: str) -> Iterator[str]:
    """Also where it is not called, but handed on."""
    if name in CALLS:
        yield f"{name} {CALLS[name]}"
    if name.startswith(SHELLS):
        yield f"{name} starts a program"


def _of_call(node: ast.Call, known: dict[str, str]) -> Iterator[str]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield f".{node.func.attr} {METHODS[node.func.attr]}"
    for word in node.keywords:
        if word.arg in MAY_SAY_FALSE and not (isinstance(word.value, ast.Constant) and word.value.value is False):
            yield f"{word.arg}={ast.unparse(word.value)} {MAY_SAY_FALSE[word.arg]}"
    name = _full(node.func, known)
    if name == "numpy.load" and len(node.args) > 2:
        yield "numpy.load: allow_pickle by place"
    if name.startswith("subprocess.") and (len(node.args) > 1 or any(word.arg is None for word in node.keywords)):
        yield f"{name}: arguments that may hold shell=True"
    if name == "importlib.import_module" and not (node.args and isinstance(node.args[0], ast.Constant)):
        yield "importlib.import_module of a name that is not written down"
