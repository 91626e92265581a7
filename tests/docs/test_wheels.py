"""Wheels and sdists: the package, its models and their licences; models left out; the volume viewer, where npm has it.

`make package` also installs and runs the wheel. Most tests build a small project: the real build files and licences,
with toys in place of code, weights and npm.
"""

import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import anofpdm

ROOT = Path(__file__).parents[2]
MODELS, VIEWER = Path("src", "anofpdm", "models"), Path("src", "anofpdm", "viewer")
LICENCES = {path.parent.name: path.read_text().split()[1] for path in sorted((ROOT / MODELS).glob("*/DATA_LICENSE"))}
SCRIPT, LICENCE = "anofpdm/viewer/static/niivue.js", "anofpdm/viewer/static/niivue.LICENSE"
TOY = b"/* stands for niivue */"
OPTIONAL = {"monai", "onnx", "nilearn", "pydicom", "highdicom", "fastapi", "deepbet", "mkdocs"}


def expression(*left_out: str) -> str:
    """Licences of a package without these models."""
    others = {licence for name, licence in LICENCES.items() if name not in left_out} - {"Apache-2.0"}
    return " AND ".join(["Apache-2.0", *sorted(others)])


def build(root: Path, dist: Path, target: str = "wheel", **variables: str) -> subprocess.CompletedProcess:
    pytest.importorskip("hatchling")
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(dist)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANOFPDM_")}
    return subprocess.run(words, cwd=root, env=environment | variables, capture_output=True, text=True)


def build_wheel(root: Path, dist: Path, **variables: str) -> tuple[dict[str, bytes], Message]:
    """Its files, and its metadata."""
    done = build(root, dist, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    path.unlink()
    (metadata,) = (content for name, content in files.items() if name.endswith(".dist-info/METADATA"))
    return files, email.message_from_bytes(metadata)


def unpacked_sdist(root: Path, dist: Path, **variables: str) -> Path:
    """Where no .git is above it, as for `python -m build`."""
    assert build(root, dist, "sdist", **variables).returncode == 0
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(dist, filter="data")
    return next(path for path in dist.iterdir() if path.is_dir())


def models_in(files: dict[str, bytes]) -> set[str]:
    return {name.split("/")[2] for name in files if name.startswith("anofpdm/models/")}


# ---- the real package ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("dist"), ANOFPDM_NIIVUE="skip")


def test_every_file_of_the_package_is_in_the_wheel_as_it_is(wheel):
    words = ["git", "ls-files", "src/anofpdm"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(listed) > 150
    for path in filter(Path.is_file, (ROOT / name for name in listed)):
        assert wheel[0][path.relative_to(ROOT / "src").as_posix()] == path.read_bytes(), path


def test_metadata(wheel):
    files, metadata = wheel
    assert (metadata["Version"], metadata["License-Expression"]) == (anofpdm.__version__, expression())
    assert metadata["Description-Content-Type"] == "text/markdown"
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in required}
    assert {"torch", "nibabel", "typer"} <= names
    assert not names & OPTIONAL
    info = f"anofpdm-{anofpdm.__version__}.dist-info"
    for path in ("LICENSE", *((MODELS / name / "DATA_LICENSE").as_posix() for name in LICENCES)):
        assert files[f"{info}/licenses/{path}"] == (ROOT / path).read_bytes()
    assert b"anofpdm = anofpdm.__main__:main" in files[f"{info}/entry_points.txt"]


@pytest.mark.parametrize("path", sorted((ROOT / MODELS).glob("*/facts.json")), ids=lambda path: path.parent.name)
def test_the_terms_of_shipped_weights(path):
    """facts.json names the identifier of DATA_LICENSE (or else of the code); papers to cite are in CITATION.cff."""
    name = path.parent.name
    assert LICENCES.get(name, "Apache-2.0") in json.loads(path.read_text())["licence"]
    if name in LICENCES:
        papers = re.findall(r"(?:doi:|arXiv:)\S+", path.with_name("DATA_LICENSE").read_text().split("Please cite\n")[1])
        assert papers
        citation = (ROOT / "CITATION.cff").read_text()
        assert all(paper.removeprefix("doi:") in citation for paper in papers)


# ---- models left out -------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    code = ("src/anofpdm/__init__.py", "src/anofpdm/errors.py", "src/anofpdm/util/files.py")
    viewer = (
        str(VIEWER / name)
        for name in ("package.json", "package-lock.json", "niivue.py", "niivue.LICENSE", "__init__.py")
    )
    licences = (str(MODELS / name / "DATA_LICENSE") for name in LICENCES)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", *code, *viewer, *licences):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name in (*LICENCES, "phantom-tumour"):
        (root / MODELS / name / "student").mkdir(parents=True)
        for file in ("weights.safetensors", "facts.json", "student/weights.safetensors"):
            (root / MODELS / name / file).write_text("toy")
    package = json.loads((root / VIEWER / "package.json").read_text())
    package["anofpdm"]["sha256"] = hashlib.sha256(TOY).hexdigest()
    (root / VIEWER / "package.json").write_text(json.dumps(package))
    return root


@pytest.mark.parametrize("how", ["variable", "removed", "sdist without", "sdist with"])
def test_models_can_be_left_out_of_a_wheel(project, tmp_path, how):
    """By a variable, or by removing the folder, also from an sdist. The metadata of an sdist are fixed: with the model
    in it, they still list the licence."""
    without = {"ANOFPDM_LEAVE_OUT": "lgg"}
    root = project
    if how == "removed":
        shutil.rmtree(project / MODELS / "lgg")
        without = {}
    elif how != "variable":
        root = unpacked_sdist(project, tmp_path / "dist", **(without if how == "sdist without" else {}))
    files, metadata = build_wheel(root, tmp_path / "wheels", ANOFPDM_NIIVUE="skip", **without)
    assert models_in(files) == {*LICENCES, "phantom-tumour"} - {"lgg"}
    assert metadata["License-Expression"] == (expression() if how == "sdist with" else expression("lgg"))
    assert ("src/anofpdm/models/lgg/DATA_LICENSE" in metadata.get_all("License-File")) == (how == "sdist with")


@pytest.mark.parametrize(
    ("target", "variables", "message"),
    [
        ("wheel", {"ANOFPDM_LEAVE_OUT": "lggg"}, "ANOFPDM_LEAVE_OUT: lggg: choose from glioma, lgg, stroke"),
        ("wheel:editable", {"ANOFPDM_LEAVE_OUT": "lgg"}, "remove src/anofpdm/models/NAME there instead"),
        ("wheel", {"ANOFPDM_NIIVUE": "yes"}, "ANOFPDM_NIIVUE: yes: choose from require, skip"),
        ("wheel", {}, "the first line must be an SPDX-License-Identifier"),
    ],
)
def test_what_stops_a_build(project, tmp_path, target, variables, message):
    if not variables:
        (project / MODELS / "lgg" / "DATA_LICENSE").write_text("Some terms\n")
    done = build(project, tmp_path / "dist", target, **variables)
    assert done.returncode != 0
    assert message in done.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))


# ---- niivue ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Replaces npm with a script that installs these bytes as niivue, or fails."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")

    def replace(content: bytes = TOY, *, fails=False) -> None:
        modules = tmp_path / "modules"
        (modules / "@niivue" / "niivue" / "dist").mkdir(parents=True)
        (modules / "@niivue" / "niivue" / "dist" / "niivue.umd.js").write_bytes(content)
        (modules / "fflate").mkdir()  # is part of niivue
        (modules / "fflate" / "LICENSE").write_text("MIT Licence\nCopyright (c) Somebody\n")
        copy = f'touch "{tmp_path}/ran"; cp -r "{modules}" node_modules'
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "npm").write_text(f"#!/bin/sh\n{'echo error: no network >&2; exit 1' if fails else copy}\n")
        (tmp_path / "bin" / "npm").chmod(0o755)

    return replace


def test_niivue_is_in_wheels_and_not_in_sdists(project, npm, tmp_path):
    npm()
    folder = unpacked_sdist(project, tmp_path / "dist")
    assert not (tmp_path / "ran").exists()
    assert not list(folder.rglob(Path(SCRIPT).name))
    assert f"License-Expression: {expression()}\n" in (folder / "PKG-INFO").read_text()
    files, metadata = build_wheel(folder, tmp_path / "wheels")
    assert files[SCRIPT] == TOY
    assert {"BSD-2-Clause", "MIT"} <= set(metadata["License-Expression"].split(" AND "))
    parts = ("Copyright (c) 2021, Niivue", "It contains parts of fflate", "Copyright (c) Somebody")
    assert all(part in files[LICENCE].decode() for part in parts)


@pytest.mark.parametrize(
    ("options", "reason"), [({"fails": True}, "no network"), ({"content": b"other"}, "does not have the hash")]
)
def test_without_niivue_the_wheel_is_built_unless_it_is_required(project, npm, tmp_path, options, reason):
    npm(**options)
    files, metadata = build_wheel(project, tmp_path / "dist")
    assert not {SCRIPT, LICENCE} & set(files)
    assert metadata["License-Expression"] == expression()
    done = build(project, tmp_path / "dist", ANOFPDM_NIIVUE="require")
    assert done.returncode != 0
    assert reason in done.stderr
    assert "ANOFPDM_NIIVUE: " in done.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))


def test_npm_is_not_run_for_editable_installs_or_when_skipped(project, npm, tmp_path):
    npm()
    build(project, tmp_path / "dist", "wheel:editable")  # may fail after the hooks, for lack of the package editables
    build(project, tmp_path / "dist", ANOFPDM_NIIVUE="skip")
    assert not (tmp_path / "ran").exists()
