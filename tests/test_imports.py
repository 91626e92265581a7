"""Layers of the package and what each may import, checked on the source. Each test lists all violations at once."""

import ast
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "anofpdm"
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
FOUNDATION = {"__init__", "errors", "labels", "options", "util"}
FORBIDDEN = {
    "network": {"raw", "phantoms"},
    "method": {"scans", "raw", "phantoms", "cohorts"},
}  # although earlier
ONLY_IN = {
    "typer": {"cli"}, "rich": {"cli"}, "fastapi": {"viewer"}, "pydicom": {"scans"}, "highdicom": {"scans"},
}  # fmt: skip


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def module_of(path: Path) -> str:
    return ".".join(("anofpdm", *path.relative_to(SOURCE).with_suffix("").parts))


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def layer_imported(name: str) -> str:
    layer = layer_of(name)
    return layer if layer in {*LAYERS, *FOUNDATION} else "__init__"


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports, anywhere in it; `from package import name` counts as package.name."""
    names = []
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
    return names


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


def test_a_prepared_cohort_opens_with_numpy_alone():
    """Training machines may have no nibabel, no terminal library and no atlas."""
    absent = ["nibabel", "nilearn", "typer", "rich", "pydantic"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}));import anofpdm.cohorts, anofpdm.scoring.truth"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
