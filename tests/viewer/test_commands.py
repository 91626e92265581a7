"""The commands view and serve, their error messages, and the installation of the volume viewer."""

import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.viewer import niivue


def error_message(*arguments, env=None):
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
    assert ran.exit_code == 1, ran.output
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("anofpdm: ")]
    return line


def test_mistakes(results_folder, tmp_path):
    assert "no results given" in error_message("view")
    assert "no model given" in error_message("serve")
    assert "no such folder" in error_message("view", tmp_path / "nowhere")
    assert "no results in it" in error_message("view", tmp_path)
    assert "choose another" in error_message("view", results_folder, "--host", "no such host")
    assert "--token" in error_message("view", results_folder, "--token", "1234")
    assert "--token" in error_message("view", results_folder, env={"ANOFPDM_TOKEN": "1234"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = error_message("view", results_folder, "--port", taken.getsockname()[1])
    assert "--port" in message
    assert "in use" in message
    message = error_message("serve", tmp_path, "--out", tmp_path / "store", "--device", "cpu", "--port", 0)
    assert str(tmp_path) in message  # no model


def test_without_the_extra(results_folder, model, tmp_path):
    code = "import sys; sys.modules['fastapi'] = None; from anofpdm.cli.main import main; main()"
    for arguments in (["view", results_folder], ["serve", model, "--out", tmp_path]):
        command = [sys.executable, "-c", code, *map(str, arguments), "--port", "0"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 1
        assert "pip install 'anofpdm[serve]'" in ran.stderr
        assert "Traceback" not in ran.stderr


def test_the_server_process_does_not_import_torch():
    """The model is in the worker, so that the server process stays small."""
    code = "import sys, anofpdm.viewer.server; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# ---- niivue ----------------------------------------------------------------------------------------------------------


def test_the_lock_file_has_a_hash_for_every_package():
    locked = json.loads(niivue._read_resource("package-lock.json"))["packages"]
    wanted = json.loads(niivue._read_resource("package.json"))["dependencies"]
    assert locked["node_modules/@niivue/niivue"]["version"] == wanted["@niivue/niivue"]
    for name, package in locked.items():
        assert not name or package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package


def test_niivue_is_used_only_with_the_expected_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "not installed" in niivue.find_niivue().why_not
    niivue.cache_path().parent.mkdir()
    niivue.cache_path().write_text("alert(1)")
    damaged = niivue.find_niivue()
    assert damaged.path is None
    assert "unexpected hash" in damaged.why_not


@pytest.mark.parametrize(
    ("script", "expected"),
    [(None, "npm is not installed"), ("exit 7", "ended with code 7"), ("mkdir -p x", "node_modules")],
)
def test_set_up_when_npm_fails(tmp_path, monkeypatch, script, expected):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert expected in error_message("serve", "--set-up")
    assert expected in error_message("view", "--set-up")
    assert not (tmp_path / "cache").exists()
