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

from anofpdm import __version__
from anofpdm.options import AnalysisLevel, Engine, Raw
from tests.docs.test_docs import parse, subcommands

ROOT = Path(__file__).parents[2]
DOCKERFILE, APPTAINER = ROOT / "containers" / "Dockerfile", ROOT / "containers" / "anofpdm.def"
DESCRIPTOR: dict[str, Any] = json.loads((ROOT / "boutiques" / "anofpdm.json").read_text())
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT"}  # not ENV: settings of pip are for the build only
VALUES = {"device": "cpu"}  # of options whose values are checked
CHOICES = {"level": AnalysisLevel, "engine": Engine, "raw": Raw}
SECTIONS = {"files", "post", "runscript"}


def lines(path):
    """Without comments; continued lines are joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def sections(path):
    """Header lines under "", and the lines of each %section."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in lines(path):
        if line.startswith("%"):
            current = line[1:]
            found[current] = []
        else:
            found[current].append(line.strip())
    return found


def check_install(line):
    """The command of the Makefile without developers' extras; its extras exist."""
    extras = re.search(r"pip install --no-cache-dir '\.\[(.+)\]'$", line).group(1).split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    all_extras = project["optional-dependencies"]["dev"][0]
    assert all_extras == f"anofpdm[{','.join(extras)}]"


def check_image(image):
    version = re.fullmatch(r"python:3\.(\d+)-slim", image).group(1)
    assert int(version) >= 11


def test_dockerfile():
    instructions = [line.split(" ", 1) for line in lines(DOCKERFILE)]
    assert {name for name, _ in instructions} <= INSTRUCTIONS
    assert instructions[0][0] == "FROM"
    check_image(instructions[0][1])
    copied = [word for name, rest in instructions if name == "COPY" for word in rest.split()[:-1]]
    assert set(copied) >= {"pyproject.toml", "hatch_build.py", "constraints.txt", "src"}
    assert all((ROOT / word).exists() for word in copied)
    (install,) = [rest for name, rest in instructions if name == "RUN"]
    check_install(install)
    assert json.loads(instructions[-1][1]) == ["anofpdm"]


def test_apptainer_definition():
    found = sections(APPTAINER)
    assert set(found) == {"", *SECTIONS}
    header = dict(line.split(": ") for line in found[""])
    assert header["Bootstrap"] == "docker"
    check_image(header["From"])
    pairs = [line.split() for line in found["files"]]
    assert all((ROOT / source).exists() and target.endswith(source) for source, target in pairs)
    check_install(found["post"][-1])
    script = "\n".join([*found["post"], *found["runscript"]])
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_both_containers_install_the_same_with_the_versions_of_make():
    makefile = (ROOT / "Makefile").read_text()
    for path in (DOCKERFILE, APPTAINER):
        text = path.read_text()
        for setting in re.findall(r"PIP_\w+=\S+", makefile):
            assert setting in text


def test_the_descriptor_follows_the_schema():
    """The rules of boutiques' schema that concern it."""
    assert {"name", "description", "tool-version", "schema-version", "command-line", "inputs"} <= set(DESCRIPTOR)
    assert DESCRIPTOR["schema-version"] == "0.5"
    assert DESCRIPTOR["tool-version"] == __version__
    keys = [one["value-key"] for one in DESCRIPTOR["inputs"]]
    assert sorted(keys) == sorted(re.findall(r"\[[A-Z_]+\]", DESCRIPTOR["command-line"]))
    assert len({one["id"] for one in DESCRIPTOR["inputs"]}) == len(keys)
    for one in DESCRIPTOR["inputs"]:
        assert one["type"] in ("String", "File", "Flag", "Number")
        assert one["type"] != "Flag" or (one["optional"] and one["command-line-flag"])


def test_the_descriptor_is_that_of_the_command():
    command = subcommands()["bids"]
    options = {name: option for option in command.params for name in option.opts}
    for one in DESCRIPTOR["inputs"]:
        option = options[one.get("command-line-flag", one["id"])]
        assert one.get("value-choices", []) == [str(word) for word in CHOICES.get(one["id"], ())]
        assert one.get("optional", False) == (not option.required)
    line = DESCRIPTOR["command-line"]
    for one in DESCRIPTOR["inputs"]:
        value = "" if one["type"] == "Flag" else one.get("value-choices", [VALUES.get(one["id"], "word")])[0]
        line = line.replace(one["value-key"], f"{one.get('command-line-flag', '')} {value}")
    parse(shlex.split(line)[1:])


@pytest.mark.skipif(shutil.which("bosh") is None, reason="boutiques is not installed")
def test_bosh_accepts_the_descriptor():
    words = ["bosh", "validate", ROOT / "boutiques" / "anofpdm.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
