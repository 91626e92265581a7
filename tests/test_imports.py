"""The rooms of the house, and who may enter which: read from the source, so that no rule rots."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "anofpdm"
FILES = sorted(SOURCE.rglob("*.py"))
# In the order in which data walks through them; a room imports only from rooms before it.
ROOMS = [
    "scans",
    "cohorts",
    "network",
    "method",
    "baselines",
    "student",
    "calibrating",
    "distilling",
    "report",
    "segment",
    "segment_many",
]
ROOMS += ["evaluation", "demo", "viewer", "bench", "bench_scan", "cli"]
FOUNDATION = {"__init__", "errors", "labels", "files", "workers", "drawing"}
NEVER = {"network": {"scans"}, "method": {"scans", "cohorts"}}  # earlier, and still not theirs
ONLY_IN = {"typer": {"cli"}, "rich": {"cli"}, "matplotlib": {"evaluation", "report"}, "fastapi": {"viewer"}}
ONLY_IN |= {"pydicom": {"scans"}, "highdicom": {"scans"}}


def module_of(path: Path) -> str:
    return ".".join(("anofpdm", *path.relative_to(SOURCE).with_suffix("").parts))


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> list[str]:
    """Every module that a file imports, anywhere in it; `from package import name` counts as package.name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def room_imported(name: str) -> str:
    room = room_of(name)
    return room if room in {*ROOMS, *FOUNDATION} else "__init__"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_room_imports_only_from_rooms_before_it(path):
    room = room_of(module_of(path))
    if room not in ROOMS:
        allowed = FOUNDATION | {"__main__": {"cli"}, "__init__": {"segment"}}.get(room, set())
        assert {room_imported(name) for name in imports(path) if name.startswith("anofpdm")} <= allowed
        return
    for name in imports(path):
        if not name.startswith("anofpdm"):
            continue
        other = room_imported(name)
        if other in FOUNDATION or other == room:
            continue
        assert ROOMS.index(other) < ROOMS.index(room), f"{room} imports {name}"
        assert other not in NEVER.get(room, set()), f"{room} imports {name}"
        # The method sees a callable that predicts noise; of the network it knows the noise schedule alone.
        assert (room, other) != ("method", "network") or name.startswith("anofpdm.network.schedule")


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_drawn_lesions_are_reached_only_from_cohorts_and_evaluation(path):
    module = module_of(path)
    for name in imports(path):
        if name.endswith(".MASKS"):
            assert room_of(module) == "cohorts" or module == "anofpdm.evaluation.truth", f"{module} imports {name}"
        if name.startswith(("anofpdm.evaluation.truth", "anofpdm.evaluation.oracle")):
            assert room_of(module) == "evaluation", f"{module} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_terminal_and_plots_stay_in_their_rooms(path):
    room = room_of(module_of(path))
    for name in imports(path):
        allowed = ONLY_IN.get(name.split(".")[0])
        assert allowed is None or room in allowed, f"{module_of(path)} imports {name}"
    if room not in ("cli", "__main__"):
        calls = [node.func.id for node in ast.walk(ast.parse(path.read_text())) if _calls_a_name(node)]
        assert not {"print", "input", "eval", "exec"} & set(calls)


def _calls_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_state_at_module_level(path):
    """Constants in capitals, type aliases in CapWords, and nothing that changes."""
    for node in ast.parse(path.read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for name in [target.id for target in targets if isinstance(target, ast.Name)]:
            assert (
                name.isupper()
                or name[0].isupper()
                or name.startswith("__")
                or (path.parent.name, name) == ("cli", "app")
            )


def test_a_prepared_cohort_opens_where_only_numpy_is():
    """Training machines may have no nibabel, no terminal library and no atlas."""
    absent = ["nibabel", "nilearn", "typer", "rich", "pydantic"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}));import anofpdm.cohorts, anofpdm.evaluation.truth"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
