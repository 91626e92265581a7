"""The volume viewer in wheels: from npm, with its licence, only where it can be had."""

import email
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VIEWER = Path("src", "anofpdm", "viewer")
SCRIPT, LICENCE = "anofpdm/viewer/static/niivue.js", "anofpdm/viewer/static/niivue.LICENSE"
TOY = b"/* stands for niivue */"
PACKAGES = {"@niivue/niivue": "BSD-2-Clause", "fflate": "MIT"}  # the second is part of the first
PLAIN, WITH_NIIVUE = "Apache-2.0", "Apache-2.0 AND BSD-2-Clause AND MIT"


@pytest.fixture
def project(tmp_path):
    """The real build files and what they use; package.json has the hash of a toy."""
    pytest.importorskip("hatchling")
    root = tmp_path / "project"
    names = ("package.json", "package-lock.json", "niivue.py", "niivue.LICENSE", "__init__.py")
    others = ("src/anofpdm/__init__.py", "src/anofpdm/errors.py", "src/anofpdm/util/files.py")
    viewer = (str(VIEWER / name) for name in names)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", *others, *viewer):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    package = json.loads((root / VIEWER / "package.json").read_text())
    package["anofpdm"]["sha256"] = hashlib.sha256(TOY).hexdigest()
    (root / VIEWER / "package.json").write_text(json.dumps(package))
    return root


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Replaces npm with a script that installs these bytes as niivue, or fails."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")

    def replace(content: bytes = TOY, *, fails=False) -> None:
        modules = tmp_path / "modules"
        for name in PACKAGES:
            (modules / name).mkdir(parents=True)
        (modules / "fflate" / "LICENSE").write_text("MIT Licence\nCopyright (c) Somebody\n")
        (modules / "@niivue" / "niivue" / "dist").mkdir()
        (modules / "@niivue" / "niivue" / "dist" / "niivue.umd.js").write_bytes(content)
        (tmp_path / "bin").mkdir()
        copy = f'touch "{tmp_path}/ran"; cp -r "{modules}" node_modules'
        (tmp_path / "bin" / "npm").write_text(f"#!/bin/sh\n{'echo error: no network >&2; exit 1' if fails else copy}\n")
        (tmp_path / "bin" / "npm").chmod(0o755)

    return replace


def build(root: Path, target="wheel", choice=None) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "ANOFPDM_NIIVUE"}
    environment |= {"ANOFPDM_NIIVUE": choice} if choice else {}
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(root.parent / "dist")]
    return subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True)


def contents(root: Path) -> tuple[dict[str, bytes], str]:
    """Files of the wheel, and its licence."""
    (path,) = (root.parent / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (metadata,) = (content for name, content in files.items() if name.endswith(".dist-info/METADATA"))
    return files, email.message_from_bytes(metadata)["License-Expression"]


def assert_without_niivue(root):
    files, licence = contents(root)
    assert licence == PLAIN
    assert SCRIPT not in files
    assert LICENCE not in files


def test_a_wheel_has_niivue_and_its_licences(project, npm):
    npm()
    done = build(project)
    assert done.returncode == 0, done.stdout + done.stderr
    files, licence = contents(project)
    assert files[SCRIPT] == TOY
    assert licence == WITH_NIIVUE
    text = files[LICENCE].decode()
    assert "Copyright (c) 2021, Niivue" in text
    assert "It contains parts of fflate" in text
    assert "Copyright (c) Somebody" in text


def test_an_sdist_has_no_niivue_and_the_wheel_built_from_it_has(project, npm, tmp_path):
    """As `python -m build` does; the licence is of the wheel."""
    npm()
    done = build(project, "sdist")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()
    (path,) = (tmp_path / "dist").glob("*.tar.gz")
    shutil.unpack_archive(path, tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert not [path for path in folder.rglob("*") if path.name == Path(SCRIPT).name]
    assert f"License-Expression: {PLAIN}\n" in (folder / "PKG-INFO").read_text()
    folder = folder.rename(tmp_path / "from_sdist")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    files, licence = contents(folder)
    assert (files[SCRIPT], licence) == (TOY, WITH_NIIVUE)


@pytest.mark.parametrize(
    ("options", "reason"), [({"fails": True}, "no network"), ({"content": b"other"}, "does not have the hash")]
)
def test_without_it_the_wheel_is_built_unless_it_is_required(project, npm, options, reason):
    npm(**options)
    done = build(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "built without niivue" in done.stderr
    assert reason in done.stderr
    assert_without_niivue(project)
    shutil.rmtree(project.parent / "dist")
    done = build(project, choice="require")
    assert done.returncode != 0
    assert "ANOFPDM_NIIVUE: " in done.stderr
    assert reason in done.stderr
    assert not list(project.parent.glob("dist/*.whl"))


def test_npm_is_not_run_for_editable_installs_or_when_skipped(project, npm, tmp_path):
    npm()
    build(project, "wheel:editable")  # may fail after the hooks, for lack of the package editables
    shutil.rmtree(tmp_path / "dist", ignore_errors=True)
    assert build(project, choice="skip").returncode == 0
    assert_without_niivue(project)
    assert not (tmp_path / "ran").exists()
    done = build(project, choice="yes")
    assert done.returncode != 0
    assert "ANOFPDM_NIIVUE: yes: choose from require, skip" in done.stderr


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_real_one(project):
    shutil.copy(ROOT / VIEWER / "package.json", project / VIEWER)
    done = build(project)
    assert done.returncode == 0, done.stdout + done.stderr
    if "without niivue" in done.stderr:
        pytest.skip(done.stderr)
    files, licence = contents(project)
    pinned = json.loads((project / VIEWER / "package.json").read_text())["anofpdm"]["sha256"]
    assert hashlib.sha256(files[SCRIPT]).hexdigest() == pinned
    assert "BSD-2-Clause" in licence.split(" AND ")
    assert b"Copyright (c) 2021, Niivue" in files[LICENCE]


def test_the_file_of_the_wheel_is_used(project, tmp_path):
    """Before that of the cache, if its hash is the expected one."""
    code = "from anofpdm.viewer.niivue import find_niivue; print(find_niivue())"
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "XDG_CACHE_HOME": str(tmp_path)}
    script = project / "src" / SCRIPT
    script.parent.mkdir()

    def found() -> str:
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout

    assert "not installed" in found()
    script.write_bytes(b"alert(1)")
    assert "unexpected hash" in found()
    script.write_bytes(TOY)
    assert str(script) in found()
