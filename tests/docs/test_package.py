"""The wheel contains the package, its models and its entry point. `make package` also installs and runs it."""

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import anofpdm
from anofpdm.models.registry import shipped_models

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
OPTIONAL = {"monai", "onnx", "nilearn", "pydicom", "highdicom", "fastapi", "deepbet", "mkdocs"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = os.environ | {"ANOFPDM_NIIVUE": "skip"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    assert path.name == f"anofpdm-{anofpdm.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        yield archive


def read(wheel, name) -> str:
    return wheel.read(f"anofpdm-{anofpdm.__version__}.dist-info/{name}").decode()


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "src/anofpdm"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(listed) > 150
    expected = {Path(name).relative_to("src").as_posix() for name in listed if (ROOT / name).is_file()}
    assert expected <= set(wheel.namelist())


@pytest.mark.parametrize("name", shipped_models())
def test_models_are_in_the_wheel_as_they_are(name, wheel):
    files = [path for path in shipped_models()[name].folder.rglob("*") if path.is_file()]
    assert {"weights.safetensors", "config.json", "facts.json", "README.md"} <= {path.name for path in files}
    for path in files:
        assert wheel.read(path.relative_to(SOURCE).as_posix()) == path.read_bytes()


def test_metadata(wheel):
    metadata = email.message_from_string(read(wheel, "METADATA"))
    assert metadata["Version"] == anofpdm.__version__
    licences = metadata["License-Expression"].split(" AND ")
    assert licences == ["Apache-2.0", "CC-BY-NC-SA-4.0", "LicenseRef-BraTS-research"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in required}
    assert {"torch", "nibabel", "typer"} <= names
    assert not names & OPTIONAL
    for path in [ROOT / "LICENSE", *SOURCE.glob("anofpdm/models/*/DATA_LICENSE")]:
        assert read(wheel, f"licenses/{path.relative_to(ROOT).as_posix()}") == path.read_text()


def test_entry_point(wheel):
    assert "anofpdm = anofpdm.__main__:main" in read(wheel, "entry_points.txt")


def test_one_version_everywhere():
    """Of files that repeat it."""
    descriptor = json.loads((ROOT / "boutiques" / "anofpdm.json").read_text())
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    assert {descriptor["tool-version"], citation} == {anofpdm.__version__}


def test_the_release_checklist_names_every_file_with_the_version():
    page = (ROOT / "docs" / "release.md").read_text()
    listed = ("src/anofpdm/__init__.py", "CITATION.cff", "boutiques/anofpdm.json", "CHANGELOG.md", "make package")
    assert all(name in page for name in listed)
