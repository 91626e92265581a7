"""Models can be left out of a build, and the metadata name the licences of what remains."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = Path("src", "anofpdm", "models")
NAMES = ("glioma", "lgg", "stroke")
WITHOUT_LGG = "Apache-2.0 AND LicenseRef-BraTS-research"


@pytest.fixture
def project(tmp_path):
    """The real build files and licences, around small files in place of code and weights."""
    pytest.importorskip("hatchling")
    root = tmp_path / "project"
    (root / MODELS).mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src/anofpdm/__init__.py"):
        shutil.copy(ROOT / name, root / name)
    for name in (*NAMES, "phantom-tumour"):
        (root / MODELS / name / "student").mkdir(parents=True)
        for file in ("weights.safetensors", "facts.json", "student/weights.safetensors"):
            (root / MODELS / name / file).write_text("toy")
    for name in NAMES:
        shutil.copy(ROOT / MODELS / name / "DATA_LICENSE", root / MODELS / name)
    return root


def build(root: Path, target: str, leave_out: str = "") -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(root.parent / "dist")]
    environment = os.environ | {"ANOFPDM_LEAVE_OUT": leave_out, "ANOFPDM_NIIVUE": "skip"}
    return subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True)


def wheel(root: Path, leave_out: str = "") -> tuple[set[str], email.message.Message]:
    """Names of models in it, and its metadata."""
    done = build(root, "wheel", leave_out)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (root.parent / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        models = {Path(name).parts[2] for name in archive.namelist() if name.startswith("anofpdm/models/")}
        return models, email.message_from_bytes(archive.read(metadata))


def unpacked_sdist(root: Path, leave_out: str = "") -> Path:
    done = build(root, "sdist", leave_out)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (root.parent / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(root.parent / "unpacked", filter="data")
    (folder,) = (root.parent / "unpacked").iterdir()
    return folder


def licence_files(metadata) -> list[str]:
    return metadata.get_all("License-File")


def test_everything_is_built_by_default(project):
    models, metadata = wheel(project)
    assert models == {*NAMES, "phantom-tumour"}
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-NC-SA-4.0 AND LicenseRef-BraTS-research"
    assert licence_files(metadata) == ["LICENSE", *((MODELS / name / "DATA_LICENSE").as_posix() for name in NAMES)]


def test_a_wheel_without_lgg(project):
    models, metadata = wheel(project, "lgg")
    assert models == {"glioma", "stroke", "phantom-tumour"}
    assert metadata["License-Expression"] == WITHOUT_LGG
    assert not any("lgg" in name for name in licence_files(metadata))


def test_a_wheel_without_models_of_real_brains(project):
    models, metadata = wheel(project, "lgg, glioma,stroke")
    assert models == {"phantom-tumour"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licence_files(metadata) == ["LICENSE"]


def test_a_removed_folder_is_left_out(project):
    shutil.rmtree(project / MODELS / "lgg")
    models, metadata = wheel(project)
    assert models == {"glioma", "stroke", "phantom-tumour"}
    assert metadata["License-Expression"] == WITHOUT_LGG


def test_an_sdist_without_lgg_and_the_wheel_built_from_it(project):
    """As `python -m build` does."""
    folder = unpacked_sdist(project, "lgg")
    assert sorted(path.name for path in (folder / MODELS).iterdir()) == ["glioma", "phantom-tumour", "stroke"]
    shutil.rmtree(project.parent / "dist")
    moved = folder.rename(project.parent / "from_sdist")
    models, metadata = wheel(moved, "lgg")
    assert models == {"glioma", "stroke", "phantom-tumour"}
    assert metadata["License-Expression"] == WITHOUT_LGG


def test_a_wheel_without_lgg_from_an_sdist_that_has_it(project):
    """The metadata of an sdist are fixed: they still list the licence."""
    moved = unpacked_sdist(project).rename(project.parent / "from_sdist")
    models, metadata = wheel(moved, "lgg")
    assert models == {"glioma", "stroke", "phantom-tumour"}
    assert "CC-BY-NC-SA-4.0" in metadata["License-Expression"]


@pytest.mark.parametrize("name", ["lggg", "phantom-tumour", "LGG"])
def test_a_wrong_name_stops_the_build(name, project):
    done = build(project, "wheel", name)
    assert done.returncode != 0
    assert f"ANOFPDM_LEAVE_OUT: {name}: choose from glioma, lgg, stroke" in done.stderr
    assert not list((project.parent / "dist").glob("*.whl"))


def test_an_editable_install_cannot_leave_out(project):
    done = build(project, "wheel:editable", "lgg")
    assert done.returncode != 0
    assert "remove src/anofpdm/models/NAME there instead" in done.stderr


def test_a_licence_without_identifier_stops_the_build(project):
    (project / MODELS / "lgg" / "DATA_LICENSE").write_text("Some terms\n")
    done = build(project, "wheel")
    assert done.returncode != 0
    assert "the first line must be an SPDX-License-Identifier" in done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / MODELS).glob("*/facts.json")), ids=lambda path: path.parent.name)
def test_the_terms_of_shipped_weights_are_one(path):
    """facts.json names the identifier of DATA_LICENSE; without that file, the licence of the code."""
    licence, terms = json.loads(path.read_text())["licence"], path.with_name("DATA_LICENSE")
    first = terms.read_text().splitlines()[0] if terms.is_file() else "SPDX-License-Identifier: Apache-2.0"
    assert first.removeprefix("SPDX-License-Identifier: ") in licence


@pytest.mark.parametrize("name", NAMES)
def test_the_citation_file_has_the_papers_of_the_weights(name):
    cited = (ROOT / MODELS / name / "DATA_LICENSE").read_text().split("Please cite\n")[1]
    found = re.findall(r"(?:doi:|arXiv:)\S+", cited)
    assert found
    assert all(one.removeprefix("doi:") in (ROOT / "CITATION.cff").read_text() for one in found)
