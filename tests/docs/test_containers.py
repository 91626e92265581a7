"""Container recipes and the boutiques descriptor: what they name exists. None of them can be built here."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from anofpdm.choices import AnalysisLevel, Engine, Raw
from tests.docs.test_docs import parse, subcommands

ROOT = Path(__file__).parents[2]
DOCKERFILE, APPTAINER = ROOT / "containers" / "Dockerfile", ROOT / "containers" / "anofpdm.def"
DESCRIPTOR: dict[str, Any] = json.loads((ROOT / "boutiques" / "anofpdm.json").read_text())
CHOICES = {"level": AnalysisLevel, "engine": Engine, "raw": Raw}


def lines(path: Path) -> list[str]:
    """Without comments; continued lines are joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("path", [DOCKERFILE, APPTAINER], ids=lambda path: path.name)
def test_a_recipe_installs_what_make_does_on_a_supported_python(path):
    """All extras but those of developers, with the versions of constraints.txt."""
    text = "\n".join(lines(path))
    (version,) = re.findall(r"python:3\.(\d+)-slim", text)
    assert int(version) >= 11
    (extras,) = re.findall(r"pip install --no-cache-dir '\.\[(.+)\]'$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["dev"][0] == f"anofpdm[{extras}]"
    assert all(setting in text for setting in re.findall(r"PIP_\w+=\S+", (ROOT / "Makefile").read_text()))


def test_dockerfile():
    instructions = [line.split(" ", 1) for line in lines(DOCKERFILE)]
    assert {name for name, _ in instructions} <= {"FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT"}
    assert instructions[0][0] == "FROM"
    copied = [word for name, rest in instructions if name == "COPY" for word in rest.split()[:-1]]
    assert {"pyproject.toml", "hatch_build.py", "constraints.txt", "src"} <= set(copied)
    assert all((ROOT / word).exists() for word in copied)
    assert json.loads(instructions[-1][1]) == ["anofpdm"]


def test_apptainer_definition():
    parts = re.split(r"^%(\w+)$", "\n".join(lines(APPTAINER)), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(sections) == {"files", "post", "runscript"}
    assert "Bootstrap: docker" in parts[0]
    for source, target in (line.split() for line in sections["files"].strip().splitlines()):
        assert (ROOT / source).exists()
        assert target.endswith(source)
    script = sections["post"] + sections["runscript"]
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_descriptor_is_that_of_the_command_and_follows_the_schema_of_boutiques():
    assert {"name", "description", "schema-version", "command-line", "inputs"} <= set(DESCRIPTOR)
    assert DESCRIPTOR["schema-version"] == "0.5"
    line, inputs = DESCRIPTOR["command-line"], DESCRIPTOR["inputs"]
    assert sorted(given["value-key"] for given in inputs) == sorted(re.findall(r"\[[A-Z_]+\]", line))
    assert len({given["id"] for given in inputs}) == len(inputs)
    options = {name: option for option in subcommands()["bids"].params for name in option.opts}
    for given in inputs:
        flag, kind = given.get("command-line-flag", ""), given["type"]
        assert kind in ("String", "File", "Flag", "Number")
        assert kind != "Flag" or (given["optional"] and flag)
        assert given.get("value-choices", []) == [str(word) for word in CHOICES.get(given["id"], ())]
        assert given.get("optional", False) == (not options[flag or given["id"]].required)
        word = "cpu" if given["id"] == "device" else given.get("value-choices", ["word"])[0]
        line = line.replace(given["value-key"], flag if kind == "Flag" else f"{flag} {word}")
    parse(shlex.split(line)[1:])


@pytest.mark.skipif(shutil.which("bosh") is None, reason="boutiques is not installed")
def test_bosh_accepts_the_descriptor():
    words = ["bosh", "validate", ROOT / "boutiques" / "anofpdm.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
