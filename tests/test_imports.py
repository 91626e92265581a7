"""Layers of the package and what each may import, checked on the source. Each test lists all violations at once."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anofpdm"
# In the order of the data flow; a layer imports only from layers before it. Of these, `study` may be absent.
LAYERS = [
    "scans",
    "raw",
    "phantoms",
    "cohorts",
    "network",
    "method",
    "calibration",
    "student",
    "models",
    "report",
    "segment",
    "scoring",
    "fit",
    "export",
    "bids_app",
    "demo",
    "viewer",
    "study",
    "cli",
]
FOUNDATION = {"__init__", "choices", "errors", "labels", "util"}
FORBIDDEN = {
    "network": {"raw", "phantoms"},
    "method": {"scans", "raw", "phantoms", "cohorts"},
}  # although earlier
ONLY_IN = {
    "typer": {"cli"}, "rich": {"cli"}, "fastapi": {"viewer"}, "socket": {"viewer"}, "pydicom": {"scans"},
    "highdicom": {"scans"},
}  # fmt: skip


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def module_of(path: Path) -> str:
    return ".".join(("anofpdm", *path.relative_to(SOURCE).with_suffix("").parts))


def layer_of(module: str) -> str:
    if module.startswith("anofpdm.study.cli"):
        return "cli"  # commands; only their folder may be absent
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def layer_imported(name: str) -> str:
    layer = layer_of(name)
    return layer if layer in {*LAYERS, *FOUNDATION} else "__init__"


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports, anywhere in it; `from package import name` counts as package.name."""
    return list(imported_names(ast.walk(trees()[path])))


def imported_names(nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported."""
    yield node
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not for_types and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from outside_functions(child)


def violations(allowed: Callable[[Path, str], bool]) -> list[str]:
    return [
        f"{module_of(path)} imports {name}" for path in trees() for name in imports(path) if not allowed(path, name)
    ]


def test_the_source_is_found():
    assert len(trees()) > 100
    assert {layer_of(module_of(path)) for path in trees()} >= {*LAYERS}


def test_imports_are_absolute():
    assert not violations(lambda _, name: not name.startswith("."))


def test_a_layer_imports_only_from_earlier_layers():
    def allowed(path: Path, name: str) -> bool:
        layer, other = layer_of(module_of(path)), layer_imported(name)
        if not name.startswith("anofpdm") or other in FOUNDATION:
            return True
        if layer not in LAYERS:
            return other in {"__main__": {"cli"}, "__init__": {"segment"}}.get(layer, set())
        return LAYERS.index(other) <= LAYERS.index(layer) and other not in FORBIDDEN.get(layer, set())

    assert not violations(allowed)


@pytest.mark.parametrize("folder", ["src", "benchmarks", "tests", "faults"])
def test_no_modules_import_each_other_in_a_circle(folder):
    """Benchmarks import each other by name alone: Python finds modules next to a script."""
    start = ROOT / folder if folder in ("src", "benchmarks") else ROOT
    files = {
        ".".join(path.relative_to(start).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(files) > 5
    graph = {}
    for module, path in files.items():
        names = list(imported_names(outside_functions(ast.parse(path.read_text()))))
        modules = {name if name in files else name.rpartition(".")[0] or name for name in names}
        graph[module] = (modules & files.keys()) - {module, "anofpdm"}  # the package loads its front door on first use
    TopologicalSorter(graph).prepare()  # CycleError names the modules


def test_the_method_sees_the_noise_schedule_and_no_network():
    def allowed(path: Path, name: str) -> bool:
        return layer_of(module_of(path)) != "method" or not (
            name.startswith("anofpdm.network") and not name.startswith("anofpdm.network.schedule")
        )

    assert not violations(allowed)


def test_lesion_masks_are_read_only_where_masks_are_scored():
    def allowed(path: Path, name: str) -> bool:
        module = module_of(path)
        if name.endswith(".MASKS"):
            return layer_of(module) == "cohorts" or module == "anofpdm.scoring.truth"
        if name.startswith(("anofpdm.scoring.truth", "anofpdm.study.comparison.tuning")):
            return layer_of(module) in ("scoring", "study")
        return True

    assert not violations(allowed)


def test_libraries_are_imported_only_in_their_layers():
    def allowed(path: Path, name: str) -> bool:
        layers = ONLY_IN.get(name.split(".")[0])
        return layers is None or layer_of(module_of(path)) in layers

    assert not violations(allowed)
    imported = {name.split(".")[0] for path in trees() for name in imports(path)}
    assert set(ONLY_IN) <= imported, "rules for libraries that are imported nowhere"


def test_printing_stays_in_the_command_line_and_nothing_is_evaluated():
    calls = [
        f"{module_of(path)}:{node.lineno} calls {node.func.id}"
        for path, tree in trees().items()
        if layer_of(module_of(path)) not in ("cli", "__main__")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("print", "input", "eval", "exec")
    ]
    assert not calls


def test_no_state_at_module_level():
    """Constants in capitals, type aliases in CapWords, and nothing that changes."""
    names = [
        f"{module_of(path)}:{node.lineno} defines {target.id}"
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
        if not (target.id.isupper() or target.id[0].isupper() or target.id.startswith("__"))
        if (path.parent.name, target.id) != ("cli", "app")
    ]
    assert not names


def test_a_model_trains_on_a_prepared_cohort_with_numpy_torch_and_safetensors_alone():
    """Training machines may have no nibabel, no terminal library and no atlas."""
    absent = ["nibabel", "nilearn", "typer", "rich", "pydantic", "zlib_ng"]
    modules = "anofpdm.cohorts, anofpdm.scoring.truth, anofpdm.network.training.run_training"
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
