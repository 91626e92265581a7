"""Container recipes and the boutiques descriptor: what they name exists. None of them can be built here."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from anofpdm.choices import AnalysisLevel, Engine, Raw
from tests.docs.test_docs import parse, subcommands

ROOT = Path(__file__).parents[2]
DOCKERFILE, APPTAINER = ROOT / "containers" / "Dockerfile", ROOT / "containers" / "anofpdm.def"
CHOICES = {"level": AnalysisLevel, "engine": Engine, "raw": Raw}


@pytest.mark.parametrize("path", [DOCKERFILE, APPTAINER], ids=lambda path: path.name)
def test_a_recipe_installs_what_make_does_on_a_supported_python(path):
    """All extras but those of developers, with the versions of constraints.txt; files that it copies exist."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    (version,) = re.findall(r"python:3\.(\d+)-slim", text)
    assert int(version) >= 11
    (extras,) = re.findall(r"pip install --no-cache-dir '\.\[(.+)\]'$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["dev"][0] == f"anofpdm[{extras}]"
    assert all(setting in text for setting in re.findall(r"PIP_\w+=\S+", (ROOT / "Makefile").read_text()))
    copied = re.findall(r"^(?:COPY)? *(.+) (?:\./|/opt/\S+/)\S*$", text, re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert {"pyproject.toml", "hatch_build.py", "constraints.txt", "src"} <= names
    assert all((ROOT / name).exists() for name in names)


def test_the_descriptor_is_that_of_the_command():
    descriptor: dict[str, Any] = json.loads((ROOT / "boutiques" / "anofpdm.json").read_text())
    assert descriptor["schema-version"] == "0.5"
    line, inputs = descriptor["command-line"], descriptor["inputs"]
    assert sorted(given["value-key"] for given in inputs) == sorted(re.findall(r"\[[A-Z_]+\]", line))
    options = {name: option for option in subcommands()["bids"].params for name in option.opts}
    for given in inputs:
        flag = given.get("command-line-flag", "")
        assert given.get("value-choices", []) == [str(word) for word in CHOICES.get(given["id"], ())]
        assert given.get("optional", False) == (not options[flag or given["id"]].required)
        word = "cpu" if given["id"] == "device" else given.get("value-choices", ["word"])[0]
        line = line.replace(given["value-key"], flag if given["type"] == "Flag" else f"{flag} {word}")
    parse(shlex.split(line)[1:])
