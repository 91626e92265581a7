"""The packages that a fresh installation takes, and the versions that constraints.txt pins."""

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
OWN = "anofpdm"


def read_pins() -> dict[str, str]:
    pins = {}
    for line in CONSTRAINTS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = version
    return pins


def direct_requirements() -> list[Requirement]:
    """To run, of all extras, and to build."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = [one for several in project["optional-dependencies"].values() for one in several]
    return [Requirement(one) for one in (*project["dependencies"], *extras, *pyproject["build-system"]["requires"])]


def all_requirements() -> dict[str, str]:
    """Package to the package that requires it, for a fresh installation of everything on this machine."""
    required_by: dict[str, str] = {}
    queue = [(requirement, OWN) for requirement in direct_requirements()]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, parent = queue.pop(0)
        name = canonicalize_name(requirement.name)
        if name == OWN or (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        required_by.setdefault(name, parent)
        queue += [(needed, name) for needed in _requirements(name, requirement.extras)]
    return required_by


def _requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # needed for the build only
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement
