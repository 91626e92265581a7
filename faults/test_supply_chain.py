"""What comes in from elsewhere: packages, pinned and audited; nothing that runs data; no secrets; no network."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from commands import ANOFPDM, Running, record
from no_network import NoNetwork, cut_off
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from secrets_in_text import files_of, in_name, in_text
from unsafe_code import unsafe

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anofpdm"
CONSTRAINTS = ROOT / "constraints.txt"
OURSELVES = "anofpdm"
OF_THE_ENVIRONMENT = {"pip"}  # Python itself brings it
REACHED_BY = "a fresh install takes {name}, for {of}"


# ---- versions --------------------------------------------------------------------------------------------------------


def pins() -> dict[str, str]:
    found = {}
    for line in CONSTRAINTS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonicalize_name(name)] = version
    return found


def asked_for() -> list[Requirement]:
    """By us: to run, by every extra, and to build."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = said["project"]
    extras = [one for several in project["optional-dependencies"].values() for one in several]
    return [Requirement(one) for one in (*project["dependencies"], *extras, *said["build-system"]["requires"])]


def taken() -> dict[str, str]:
    """Package to who asked for it first: all that a fresh install of everything takes on this machine."""
    found: dict[str, str] = {}
    waiting = [(one, OURSELVES) for one in asked_for()]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one, of = waiting.pop(0)
        name = canonicalize_name(one.name)
        if name == OURSELVES or (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        found.setdefault(name, of)
        waiting += [(needed, name) for needed in needs(name, one.extras)]
    return found


def needs(name: str, extras: set[str]) -> Iterator[Requirement]:
    try:
        said = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # needed to build, and gone again
        return
    for one in map(Requirement, said):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield one


def test_every_pin_is_an_exact_version() -> None:
    for line in CONSTRAINTS.read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+", line), line


def test_all_that_a_fresh_install_takes_is_pinned() -> None:
    pinned, found = pins(), taken()
    assert {"numpy", "torch", "starlette", "hatchling", "sympy"} <= set(found), "asked for by us, and by others"
    for name in sorted(set(found) - OF_THE_ENVIRONMENT):
        said = REACHED_BY.format(name=name, of=found[name])
        assert name in pinned, f"{said}, and it is not pinned in {CONSTRAINTS.name}"
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        assert Version(here).public == pinned[name], f"{said}: {here} is installed, {pinned[name]} is pinned"
    record("packages a fresh install takes", len(set(found) - OF_THE_ENVIRONMENT), "all pinned, and as installed")


def test_what_npm_brings_is_held_against_hashes() -> None:
    packages = json.loads((SOURCE / "viewer" / "package-lock.json").read_text())["packages"]
    brought = {name: said for name, said in packages.items() if name}
    assert brought
    for name, said in brought.items():
        assert said["integrity"].startswith("sha512-"), name
        assert said.get("resolved", "https://").startswith("https://"), name
    wanted = json.loads((SOURCE / "viewer" / "package.json").read_text())["anofpdm"]
    assert re.fullmatch("[0-9a-f]{64}", wanted["sha256"])


# ---- known holes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pip_audit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In an environment of its own, so that it is not among what it looks at."""
    folder = tmp_path_factory.mktemp("audit")
    for words in ((sys.executable, "-m", "venv", folder), (folder / "bin/pip", "install", "-q", "pip-audit")):
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180)
        except subprocess.TimeoutExpired:
            pytest.skip("pip-audit could not be had in three minutes")
        if done.returncode:
            pytest.skip(f"pip-audit cannot be had here: {done.stderr.strip()[-200:]}")
    yield folder / "bin" / "pip-audit"
    shutil.rmtree(folder, ignore_errors=True)


def test_no_pinned_version_has_a_known_hole(pip_audit: Path, tmp_path: Path) -> None:
    table = tmp_path / "requirements.txt"
    table.write_text("".join(f"{name}=={version}\n" for name, version in pins().items()))
    words = [pip_audit, "--no-deps", "--disable-pip", "-r", table, "-f", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
        looked_at = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        pytest.skip("the database of known holes did not answer in four minutes")
    except ValueError:
        pytest.skip(f"the database of known holes cannot be reached: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    audited = [one for one in looked_at if "vulns" in one]
    if not audited:
        pytest.skip(f"the database of known holes cannot be reached: {looked_at[0]['skip_reason']}")
    holes = [f"{one['name']} {one['version']}: {hole['id']}" for one in audited for hole in one["vulns"]]
    assert not holes
    record("pinned versions that pip-audit looked at", len(audited), f"no known hole; {len(pins())} are pinned")


# ---- what the code does ----------------------------------------------------------------------------------------------


BAD = [
    "import pickle",
    "from pickle import loads",
    "import torch.hub",
    "eval('1')",
    "exec(x)",
    "f = eval",
    "map(exec, x)",
    "compile(a, b, 'exec')",
    "import torch\ntorch.load('x')",
    "from torch import load as get\nget('x')",
    "import torch as t\nt.save(x, y)",
    "import numpy as np\nnp.load(p, allow_pickle=True)",
    "import numpy as np\nnp.load(p, allow_pickle=trusted)",
    "import numpy as np\nnp.load(p, None, True)",
    "import subprocess\nsubprocess.run('ls', shell=True)",
    "from subprocess import run\nrun('ls', **words)",
    "import subprocess as s\ns.Popen('ls', -1, None, None)",
    "import os\nos.system('ls')",
    "from os import popen\npopen('ls')",
    "import os\nos.execvp('ls', [])",
    "import yaml\nyaml.load(x)",
    "archive.extractall()",
    "archive.extract('a', 'b')",
    "import tarfile\ntarfile.open('x')",
    "import shutil\nshutil.unpack_archive(x)",
    "__import__('os')",
    "import importlib\nimportlib.import_module(name)",
    "import urllib.request",
    "from http import client",
    "import requests",
    "from tempfile import mktemp\nmktemp()",
]
GOOD = [
    "import numpy as np\nnp.load(p, allow_pickle=False)",
    "import numpy as np\nnp.load(p, mmap_mode='r')",
    "import subprocess\nsubprocess.run(words, check=False)",
    "network.eval()",
    "import re\nre.compile('x')",
    "import json\njson.load(x)",
    "from anofpdm.segment.model import load\nload(x)",
    "from urllib.parse import urlsplit",
    "from http.cookies import SimpleCookie",
    "import zipfile\nzipfile.ZipFile(p).read('a')",
    "import importlib\nimportlib.import_module('os')",
    "shell = True",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_unsafe_is_seen(text: str) -> None:
    assert unsafe(text)


@pytest.mark.parametrize("text", GOOD)
def test_what_is_safe_is_left_alone(text: str) -> None:
    assert not unsafe(text)


def test_nothing_in_the_package_runs_data_or_a_shell_or_fetches() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    found = [f"{path.relative_to(ROOT)}:{said}" for path in files for said in unsafe(path.read_text())]
    assert not found
    record(
        "files of the package read for unsafe calls", len(files), "no pickle, eval, exec, shell or unchecked unpacking"
    )


def test_sockets_are_opened_by_the_server_alone() -> None:
    for path in SOURCE.rglob("*.py"):
        names = {
            one.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for one in node.names
        }
        assert "socket" not in names or path.parent.name == "viewer", path


# ---- secrets ---------------------------------------------------------------------------------------------------------


MADE_UP = [
    "-----BEGIN RSA " + "PRIVATE KEY-----",
    "AKIA" + 16 * "A",
    "ghp_" + 36 * "a",
    "github_" + "pat_" + 30 * "a",
    "pypi-" + 50 * "A",
    "npm_" + 36 * "a",
    "hf_" + 34 * "a",
    "xoxb-" + 12 * "1",
    "AIza" + 35 * "a",
    "sk-" + 40 * "a",
    "password = " + "'correct-horse'",
    '"api_key": ' + '"0123456789abcdef"',
    "https://anna:" + "geheim@example.org",
    "eyJ" + 12 * "a" + ".eyJ" + 12 * "a" + "." + 12 * "a",
]


@pytest.mark.parametrize("secret", MADE_UP)
def test_a_secret_is_seen(secret: str) -> None:
    assert in_text(f"x\n{secret}\ny")


def test_no_secrets_in_the_tree() -> None:
    files = list(files_of(ROOT))
    assert {ROOT / "pyproject.toml", SOURCE / "segment" / "model.py", Path(__file__)} <= set(files)
    found = [f"{path.relative_to(ROOT)}: its name" for path in files if in_name(path)]
    for path in files:
        found += [f"{path.relative_to(ROOT)}: {said}" for said in in_text(path.read_text(errors="replace"))]
    assert not found
    record("files of the tree read for secrets", len(files), "none has any")


# ---- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create_connection(('198.51.100.1', 80), 2)", "getaddrinfo('example.org', 80)"])
def test_an_attempt_to_reach_the_network_is_seen(call: str, tmp_path: Path) -> None:
    nowhere = NoNetwork(tmp_path)
    program = (sys.executable, "-c", f"import socket\ntry: socket.{call}\nexcept OSError: print('refused')")
    ended = Running(program=program, **nowhere.environment).wait()
    assert ended.out.strip() == "refused", ended
    assert len(nowhere.attempts) == 1


def test_without_a_network_there_is_none() -> None:
    if not cut_off():
        pytest.skip("a network of its own needs a right that this machine does not give")
    program = (*cut_off(), sys.executable, "-c", "import socket; print(socket.if_nameindex())")
    assert re.fullmatch(r"\[\(\d+, 'lo'\)\]", Running(program=program).wait().out.strip())


def test_the_demo_needs_no_network(space: Path) -> None:
    nowhere = NoNetwork(space)
    words = ("demo", "--out", space / "demo", "--patients", "1", "--device", "cpu")
    ended = Running(*words, program=(*cut_off(), ANOFPDM), **nowhere.environment).wait(within=900)
    assert ended.code == 0, ended
    assert not nowhere.attempts
    page = (space / "demo" / "index.html").read_text()
    assert page.count("data:image/png") == 2, "a tumour and a stroke"
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    assert len(list((space / "demo" / "results").rglob("summary.json"))) == 2
    how = "in a network namespace of its own" if cut_off() else "with sockets refused"
    record("demo without a network", 1, f"{how}, with empty caches: to the end, and no attempt to reach one")
