"""Packages are pinned and audited; the package runs no data as code, contains no secrets and needs no network."""

import ast
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from faults.extent import Extent
from faults.processes import ANOFPDM, Argument, RunningCommand
from faults.summary import SUPPLY_CHAIN, skip_without
from faults.supply_chain.no_network import NoNetwork, network_namespace
from faults.supply_chain.packages import CONSTRAINTS, ROOT, all_requirements, read_pins
from faults.supply_chain.secret_patterns import files_in, find_secrets, is_secret_name
from faults.supply_chain.unsafe_code import find_unsafe

SOURCE = ROOT / "src" / "anofpdm"
TUMOUR_MODEL = SOURCE / "models" / "phantom-tumour"
FROM_PYTHON = {"pip"}  # part of every virtual environment


# ---- packages --------------------------------------------------------------------------------------------------------


def test_pins_are_exact_versions() -> None:
    for line in CONSTRAINTS.read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+", line), line


def test_all_requirements_are_pinned(record) -> None:
    pins, required_by = read_pins(), all_requirements()
    assert {"numpy", "torch", "starlette", "hatchling", "sympy"} <= set(required_by), "direct and indirect ones"
    names = sorted(set(required_by) - FROM_PYTHON)
    for name in names:
        context = f"{name}, required by {required_by[name]}"
        assert name in pins, f"{context}, is not pinned in {CONSTRAINTS.name}"
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        assert Version(installed).public == pins[name], f"{context}: installed {installed}, pinned {pins[name]}"
    record(SUPPLY_CHAIN, "packages of a fresh installation", len(names), "all pinned, and installed as pinned")


def test_npm_packages_have_hashes() -> None:
    packages = json.loads((SOURCE / "viewer" / "package-lock.json").read_text())["packages"]
    locked = {name: entry for name, entry in packages.items() if name}
    assert locked
    for name, entry in locked.items():
        assert entry["integrity"].startswith("sha512-"), name
        assert entry.get("resolved", "https://").startswith("https://"), name
    bundle = json.loads((SOURCE / "viewer" / "package.json").read_text())["anofpdm"]
    assert re.fullmatch("[0-9a-f]{64}", bundle["sha256"])


def test_pins_have_no_known_vulnerabilities(workspace: Path, extent: Extent, record) -> None:
    """By pip-audit, in a virtual environment of its own, so that it is not audited itself."""
    if not extent.measured:
        pytest.skip("pip-audit: not in the sample")
    table, program = workspace / "requirements.txt", workspace / "audit" / "bin"
    table.write_text("".join(f"{name}=={version}\n" for name, version in read_pins().items()))
    audit = ("--no-deps", "--disable-pip", "-r", table, "-f", "json", "--progress-spinner", "off")
    install = ((sys.executable, "-m", "venv", program.parent), (program / "pip", "install", "-q", "pip-audit"))
    try:
        for command in (*install, (program / "pip-audit", *audit)):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        audited = [package for package in json.loads(done.stdout)["dependencies"] if "vulns" in package]
    except (OSError, subprocess.TimeoutExpired, ValueError):
        audited = []
    if not audited:
        skip_without("a package index and the vulnerability database")
    known = [f"{package['name']}: {entry['id']}" for package in audited for entry in package["vulns"]]
    assert not known
    record(SUPPLY_CHAIN, "pinned versions audited by pip-audit", len(audited), "no known vulnerability")


# ---- source code -----------------------------------------------------------------------------------------------------


UNSAFE = [
    "import pickle", "from pickle import loads", "import torch.hub", "eval('1')", "exec(x)", "f = eval",
    "map(exec, x)", "compile(a, b, 'exec')", "import torch\ntorch.load('x')", "from torch import load as get\nget('x')",
    "import torch as t\nt.save(x, y)", "import numpy as np\nnp.load(p, allow_pickle=True)",
    "import numpy as np\nnp.load(p, allow_pickle=trusted)", "import numpy as np\nnp.load(p, None, True)",
    "import subprocess\nsubprocess.run('ls', shell=True)", "from subprocess import run\nrun('ls', **words)",
    "import subprocess as s\ns.Popen('ls', -1, None, None)", "import os\nos.system('ls')",
    "from os import popen\npopen('ls')", "import os\nos.execvp('ls', [])", "import yaml\nyaml.load(x)",
    "archive.extractall()", "archive.extract('a', 'b')", "import tarfile\ntarfile.open('x')",
    "import shutil\nshutil.unpack_archive(x)", "__import__('os')", "import importlib\nimportlib.import_module(name)",
    "import urllib.request", "from http import client", "import requests", "from tempfile import mktemp\nmktemp()",
]  # fmt: skip
SAFE = [
    "import numpy as np\nnp.load(p, allow_pickle=False)", "import numpy as np\nnp.load(p, mmap_mode='r')",
    "import subprocess\nsubprocess.run(words, check=False)", "network.eval()", "import re\nre.compile('x')",
    "import json\njson.load(x)", "from anofpdm.segment.model import load\nload(x)", "from urllib.parse import urlsplit",
    "from http.cookies import SimpleCookie", "import zipfile\nzipfile.ZipFile(p).read('a')",
    "import importlib\nimportlib.import_module('os')", "shell = True",
]  # fmt: skip


@pytest.mark.parametrize("text", [*UNSAFE, *SAFE])
def test_unsafe_code_is_found_and_nothing_else(text: str) -> None:
    assert bool(find_unsafe(text)) == (text in UNSAFE)


# Deepbet's weights have this format only. Loaded are the bytes whose hash was compared with one in the source.
PINNED_FILES = ("src/anofpdm/raw/brain.py: torch.jit.load loads code",)
# One function of the C library, which the process has loaded anyway, with two constants.
NATIVE_CODE = ("src/anofpdm/util/memory.py: imports ctypes, which calls native code",)


def test_weights_of_another_package_are_loaded_only_if_their_hash_is_known(tmp_path: Path) -> None:
    from anofpdm.errors import ConfigError
    from anofpdm.raw import brain

    (tmp_path / brain.FINDER[0]).write_bytes(b"something else")
    with pytest.raises(ConfigError, match="not the file of deepbet"):
        brain._load(tmp_path, brain.FINDER)


def test_native_code_is_the_allocators_setting_only() -> None:
    tree = ast.parse((SOURCE / "util" / "memory.py").read_text())
    calls = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert {call for call in calls if "ctypes" in call or call.startswith("mallopt")} == {
        "ctypes.CDLL(None)",
        "getattr(ctypes.CDLL(None), 'mallopt', None)",
        "mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)",
        "mallopt(M_TRIM_THRESHOLD, KEPT)",
    }


def test_package_has_no_unsafe_code(record) -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    findings = [f"{path.relative_to(ROOT)}:{what}" for path in files for what in find_unsafe(path.read_text())]
    findings = [one for one in findings if re.sub(r":\d+:", ":", one) not in PINNED_FILES + NATIVE_CODE]
    assert not findings
    result = "no pickle, eval, exec, shell, download or unchecked extraction"
    record(SUPPLY_CHAIN, "source files checked for unsafe code", len(files), result)


def test_only_the_viewer_imports_socket() -> None:
    pattern = re.compile(r"^\s*(import|from) socket\b", re.MULTILINE)
    importing = [path for path in SOURCE.rglob("*.py") if pattern.search(path.read_text())]
    assert {path.parent.name for path in importing} == {"viewer"}


# ---- secrets ---------------------------------------------------------------------------------------------------------


INVENTED = [
    "-----BEGIN RSA " + "PRIVATE KEY-----", "AKIA" + 16 * "A", "ghp_" + 36 * "a", "github_" + "pat_" + 30 * "a",
    "pypi-" + 50 * "A", "npm_" + 36 * "a", "hf_" + 34 * "a", "xoxb-" + 12 * "1", "AIza" + 35 * "a", "sk-" + 40 * "a",
    "password = " + "'correct-horse'", '"api_key": ' + '"0123456789abcdef"', "https://anna:" + "geheim@example.org",
    "eyJ" + 12 * "a" + ".eyJ" + 12 * "a" + "." + 12 * "a",
]  # fmt: skip


@pytest.mark.parametrize("secret", INVENTED)
def test_secret_is_found(secret: str) -> None:
    assert find_secrets(f"x\n{secret}\ny")


def test_repository_has_no_secrets(record) -> None:
    files = list(files_in(ROOT))
    assert {ROOT / "pyproject.toml", SOURCE / "errors.py", Path(__file__)} <= set(files)
    findings = [f"{path.relative_to(ROOT)}: its name" for path in files if is_secret_name(path)]
    for path in files:
        findings += [f"{path.relative_to(ROOT)}: {what}" for what in find_secrets(path.read_text(errors="replace"))]
    assert not findings
    record(SUPPLY_CHAIN, "files checked for secrets", len(files), "none")


# ---- network ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create_connection(('198.51.100.1', 80), 2)", "getaddrinfo('example.org', 80)"])
def test_network_access_is_recorded(call: str, tmp_path: Path) -> None:
    no_network = NoNetwork(tmp_path)
    program = (sys.executable, "-c", f"import socket\ntry: socket.{call}\nexcept OSError: print('refused')")
    outcome = RunningCommand(program=program, **no_network.environment).wait()
    assert outcome.out.strip() == "refused", outcome
    assert len(no_network.attempts) == 1


def test_namespace_has_no_network() -> None:
    if not network_namespace():
        skip_without("permission to create a network namespace")
    program = (*network_namespace(), sys.executable, "-c", "import socket; print(socket.if_nameindex())")
    assert re.fullmatch(r"\[\(\d+, 'lo'\)\]", RunningCommand(program=program).wait().out.strip())


def test_segment_needs_no_network(workspace: Path) -> None:
    scans, out = workspace / "scans", workspace / "out"
    small = ("--kind", "tumour", "--patients", "1", "--size", "32", "--slices", "16", "--workers", "1")
    run_without_network(workspace, ("phantom", scans, *small), ("segment", TUMOUR_MODEL, scans, "--out", out))
    assert len(list(out.rglob("summary.json"))) == 1


def test_demo_needs_no_network(workspace: Path, extent: Extent, record) -> None:
    if not extent.measured:
        pytest.skip("the demo: not in the sample")
    out = workspace / "demo"
    run_without_network(workspace, ("demo", "--out", out, "--patients", "1", "--device", "cpu"))
    page = (out / "index.html").read_text()
    assert page.count("data:image/png") == 4, "a tumour and a stroke, each by both engines"
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    assert len(list((out / "results").rglob("summary.json"))) == 4
    how = "in a network namespace of its own" if network_namespace() else "with sockets refused"
    record(SUPPLY_CHAIN, "demo without a network", 1, f"{how}, with empty caches; completed, no attempt to connect")


def run_without_network(folder: Path, *commands: tuple[Argument, ...]) -> None:
    no_network = NoNetwork(folder)
    for arguments in commands:
        program = (*network_namespace(), ANOFPDM)
        outcome = RunningCommand(*arguments, program=program, **no_network.environment).wait(timeout=3600)
        assert outcome.code == 0, outcome
    assert not no_network.attempts
