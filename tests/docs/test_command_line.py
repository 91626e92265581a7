"""What the command line does for people who do not know it yet: help, suggestions, completion."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from anofpdm.cli.main import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def said(*words: str, **env: str) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="anofpdm", env={"COLUMNS": "200", **env})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def test_no_argument_helps():
    help_text = said()
    assert "Usage: anofpdm" in help_text
    for name in COMMANDS:
        assert f" {name} " in help_text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    assert f"Usage: anofpdm {name}" in said(name, "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistyped_command_gets_a_suggestion(name):
    mistyped = f"{name[0]}{name[2]}{name[1]}{name[3:]}"
    assert f"'{name}'" in said(mistyped)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistyped_option_gets_a_suggestion(name):
    for option in COMMANDS[name].params:
        for whole in option.opts:
            if len(whole) > len("--out"):
                assert whole in said(name, f"{whole[:-2]}{whole[-1]}"), whole


def test_options_of_segment_are_in_panels():
    help_text = said("segment", "--help", COLUMNS="80")
    titles = ("Options", "Files", "Raw studies", "DICOM", "Clusters", "Diffusion engine only")
    places = [help_text.index(f" {title} ") for title in titles]
    assert places == sorted(places)
    cut_off = [name for option in COMMANDS["segment"].params for name in option.opts if name not in help_text]
    assert not cut_off


@pytest.mark.parametrize("name", ["detector", "threshold", "context", "peak", "seed"])
def test_no_default_is_shown_that_the_default_engine_refuses(name):
    (option,) = [one for one in COMMANDS["segment"].params if one.name == name]
    assert option.rich_help_panel == "Diffusion engine only"
    assert option.default is None
    assert "efault" not in option.help


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("seg", ["segment"]),
        ("s", ["segment", "score", "serve"]),
        ("train --min", ["--minutes"]),
        ("bench --j", ["--json"]),
    ],
)
def test_completion(typed, offered):
    words = ["anofpdm", *typed.split()]
    env = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    assert said(_ANOFPDM_COMPLETE="complete_bash", **env).split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_a_script_for_every_shell(shell):
    assert "_ANOFPDM_COMPLETE" in said(_ANOFPDM_COMPLETE=f"source_{shell}")
