"""The two commands, their mistakes in one line, and the volume viewer's file."""

import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.viewer import niivue


def refused(*words, env=None):
    done = CliRunner().invoke(app, [str(word) for word in words], env=env)
    assert done.exit_code == 1, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("anofpdm: ")]
    return line


def test_what_is_missing_is_said(tmp_path):
    assert "which results?" in refused("view")
    assert "which model?" in refused("serve")
    assert "no such folder" in refused("view", tmp_path / "nowhere")
    assert "no results in it" in refused("view", tmp_path)


def test_a_port_that_is_taken(made_results):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused("view", made_results, "--port", taken.getsockname()[1])
    assert "--port" in said
    assert "in use" in said
    assert "choose another" in refused("view", made_results, "--host", "no such host")


def test_a_token_that_is_soon_guessed(made_results):
    assert "--token" in refused("view", made_results, "--token", "1234")
    assert "--token" in refused("view", made_results, env={"ANOFPDM_TOKEN": "1234"})


def test_a_model_that_cannot_be_loaded(tmp_path):
    said = refused("serve", tmp_path, "--out", tmp_path / "kept", "--device", "cpu", "--port", 0)
    assert str(tmp_path) in said


def test_without_the_extra(made_results, model, tmp_path):
    code = "import sys; sys.modules['fastapi'] = None; from anofpdm.cli.main import main; main()"
    for words in (["view", made_results], ["serve", model, "--out", tmp_path]):
        command = [sys.executable, "-c", code, *map(str, words), "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert "pip install 'anofpdm[serve]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_server_itself_loads_no_torch():
    """The model lives in the worker: the process that answers stays small."""
    code = "import sys, anofpdm.viewer.serve_app, anofpdm.viewer.view_app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- niivue ----------------------------------------------------------------------------------------------------------


def test_the_lock_file_holds_every_package_to_a_hash():
    locked = json.loads(niivue._ours("package-lock.json"))["packages"]
    wanted = json.loads(niivue._ours("package.json"))["dependencies"]
    assert locked["node_modules/@niivue/niivue"]["version"] == wanted["@niivue/niivue"]
    for name, one in locked.items():
        assert not name or one["integrity"].startswith("sha512-"), name
        assert "resolved" not in one


def test_the_viewers_file_is_what_it_should_be_or_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "not set up here" in niivue.niivue().why_not
    niivue.kept_at().parent.mkdir()
    niivue.kept_at().write_text("alert(1)")
    found = niivue.niivue()
    assert found.path is None
    assert "not the file it should be" in found.why_not


def test_without_npm_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "npm is not installed" in refused("serve", "--set-up")
    assert "npm is not installed" in refused("view", "--set-up")


@pytest.mark.parametrize(("script", "said"), [("exit 7", "ended with code 7"), ("mkdir -p x", "node_modules")])
def test_an_npm_that_fails(tmp_path, monkeypatch, script, said):
    (tmp_path / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert said in refused("serve", "--set-up")
    assert not (tmp_path / "cache").exists()
