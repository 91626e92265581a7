"""What the command line does for people who do not know it yet: help, suggestions, completion."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from anofpdm.cli.main import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def output(*words: str, **env: str) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="anofpdm", env={"COLUMNS": "200", **env})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def test_no_argument_helps():
    assert all(f" {name} " in output() for name in ("Usage: anofpdm", *COMMANDS))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_and_suggestions_for_mistyped_words(name):
    assert f"Usage: anofpdm {name}" in output(name, "--help")
    assert f"'{name}'" in output(f"{name[0]}{name[2]}{name[1]}{name[3:]}")
    for option in (option for parameter in COMMANDS[name].params for option in parameter.opts):
        if len(option) > len("--out"):
            assert option in output(name, f"{option[:-2]}{option[-1]}"), option


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("s", ["segment", "score", "serve"]),
        ("train --min", ["--minutes"]),
    ],
)
def test_completion(typed, offered):
    words = ["anofpdm", *typed.split()]
    env = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    assert output(_ANOFPDM_COMPLETE="complete_bash", **env).split() == offered
