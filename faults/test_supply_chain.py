"""Packages are pinned; the package runs no data as code, contains no secrets and needs no network."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from faults.no_network import NoNetwork
from faults.processes import RunningCommand

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anofpdm"
CONSTRAINTS = ROOT / "constraints.txt"
OWN = "anofpdm"
FROM_PYTHON = {"pip"}  # part of every virtual environment


# ---- packages --------------------------------------------------------------------------------------------------------


def test_all_requirements_are_pinned_to_exact_versions(record_property):
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+", line) for line in lines)
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    required_by = all_requirements()
    assert {"numpy", "torch", "starlette", "hatchling", "sympy"} <= set(required_by), "direct and indirect ones"
    for name, parent in required_by.items():
        if name in FROM_PYTHON:
            continue
        context = f"{name}, required by {parent}"
        assert name in pins, f"{context}, is not pinned in {CONSTRAINTS.name}"
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        assert Version(installed).public == pins[name], f"{context}: installed {installed}, pinned {pins[name]}"
    record_property("packages of a fresh installation", len(required_by))


def all_requirements() -> dict[str, str]:
    """Package to the package that requires it, for a fresh installation of everything on this machine."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    direct = (*project["dependencies"], *extras, *pyproject["build-system"]["requires"])
    required_by: dict[str, str] = {}
    queue = [(Requirement(line), OWN) for line in direct]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, parent = queue.pop(0)
        name = canonicalize_name(requirement.name)
        if name == OWN or (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        required_by.setdefault(name, parent)
        queue += [(needed, name) for needed in _requirements(name, requirement.extras)]
    return required_by


def _requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # needed for the build only
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


# ---- source code -----------------------------------------------------------------------------------------------------

BANNED = (  # unpickle, run text or files as code, call native code, run a shell, expand entities, download
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "torch.package",
    "torch.load", "torch.save", "torch.jit.load", "numpy.save", "pandas.read_pickle", "yaml", "builtins", "ctypes",
    "code", "runpy", "pty", "xml", "torch.hub", "urllib.request", "urllib3", "http.client", "httpx", "aiohttp",
    "requests", "ftplib", "telnetlib", "huggingface_hub", "smtplib", "subprocess.getoutput",
    "subprocess.getstatusoutput", "os.popen", "os.system", "tempfile.mktemp", "tarfile", "shutil.unpack_archive",
    "socket.create_connection",
)  # fmt: skip
RULES = "S102,S202,S3,S506,S602,S604,S605,S606,TID251"  # of ruff: eval, exec, shells, and names that are BANNED
UNSAFE_TEXT = re.compile(  # what ruff has no rule for
    r"allow_pickle=(?!False)|\.extract(all)?\(|\b__import__\b|(?<![\w.])compile\(|import_module\((?![\"'])"
)
ALLOWED = {
    # Deepbet's weights have this format only. Loaded are the bytes whose hash was compared with one in the source.
    "raw/brain.py `torch.jit.load` is banned",
    # One function of the C library, which the process has loaded anyway, with two constants.
    "util/memory.py `ctypes` is banned",
}
UNSAFE = [  # of each rule, and of each way to import
    "import pickle", "from pickle import loads", "import torch.hub", "exec(x)", "compile(a, b, 'exec')",
    "from torch import load as get\nget('x')", "import torch as t\nt.save(x, y)", "import urllib.request",
    "import numpy as np\nnp.load(p, allow_pickle=True)", "import subprocess\nsubprocess.run('ls', shell=True)",
    "from os import popen\npopen('ls')", "import os\nos.execvp('ls', [])", "import yaml\nyaml.load(x)",
    "archive.extractall()", "__import__('os')", "import importlib\nimportlib.import_module(name)",
]  # fmt: skip
SAFE = [
    "import numpy as np\nnp.load(p, allow_pickle=False)", "import subprocess\nsubprocess.run(words, check=False)",
    "network.eval()", "import re\nre.compile('x')", "from urllib.parse import urlsplit",
]  # fmt: skip


def find_unsafe(folder: Path) -> set[str]:
    """What is unsafe in the source files of a folder, each with the name of the file."""
    table = ", ".join(f'"{name}" = {{msg = ""}}' for name in BANNED)
    config = f"lint.flake8-tidy-imports.banned-api = {{{table}}}"
    options = ("--isolated", "--ignore-noqa", "--no-cache", "--output-format", "concise", "--select", RULES)
    program = (sys.executable, "-m", "ruff", "check", ".", *options, "--config", config)
    printed = RunningCommand(program=program, cwd=folder).wait().out
    findings = re.findall(r"^(.+?\.py):\d+:\d+: \S+ (.+?)(?:: )?$", printed, re.MULTILINE)
    unsafe = {f"{path} {message}" for path, message in findings}
    for path in folder.rglob("*.py"):
        for match in UNSAFE_TEXT.finditer(path.read_text()):
            unsafe.add(f"{path.relative_to(folder).as_posix()} {match[0]}")
    return unsafe


def test_unsafe_code_is_found_and_nothing_else(workspace):
    for number, text in enumerate((*UNSAFE, *SAFE)):
        (workspace / f"{number}.py").write_text(f"{text}\n")
    assert {int(finding.partition(".py ")[0]) for finding in find_unsafe(workspace)} == set(range(len(UNSAFE)))


def test_package_has_no_unsafe_code():
    assert find_unsafe(SOURCE) == ALLOWED


def test_weights_of_another_package_are_loaded_only_if_their_hash_is_known(tmp_path):
    from anofpdm.errors import ConfigError
    from anofpdm.raw import brain

    (tmp_path / brain.FINDER[0]).write_bytes(b"something else")
    with pytest.raises(ConfigError, match="not the file of deepbet"):
        brain._load(tmp_path, brain.FINDER)


# ---- secrets ---------------------------------------------------------------------------------------------------------

SECRET = re.compile(  # a private key; keys of AWS, GitHub, GitLab, PyPI, npm, Hugging Face, Slack, Google; in a URL
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}"
    r"|\bgithub_pat_[A-Za-z0-9_]{22,}|\bglpat-[A-Za-z0-9_-]{20,}|\bpypi-[A-Za-z0-9_-]{40,}|\bnpm_[A-Za-z0-9]{36}\b"
    r"|\bhf_[A-Za-z0-9]{30,}\b|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{35}\b|\bsk-[A-Za-z0-9_-]{32,}"
    r"|\b[a-z][a-z+]{2,}://[^\s/:@'\"{}<>]+:[^\s/:@'\"{}<>]{3,}@"
)
INVENTED = [
    "-----BEGIN RSA " + "PRIVATE KEY-----", "AKIA" + 16 * "A", "ghp_" + 36 * "a", "github_" + "pat_" + 30 * "a",
    "pypi-" + 50 * "A", "npm_" + 36 * "a", "hf_" + 34 * "a", "xoxb-" + 12 * "1", "AIza" + 35 * "a", "sk-" + 40 * "a",
    "https://anna:" + "geheim@example.org",
]  # fmt: skip


def test_repository_has_no_secrets():
    assert all(SECRET.search(f"x\n{secret}\ny") for secret in INVENTED)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [path for name in listed.split("\0") if (path := ROOT / name).is_file()]
    assert {ROOT / "pyproject.toml", SOURCE / "errors.py"} <= set(files)
    assert not [path for path in files if path.name.startswith(".env") or path.suffix in (".pem", ".key", ".p12")]
    assert not [path for path in files if SECRET.search(path.read_text(errors="replace"))]


# ---- network ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create_connection(('198.51.100.1', 80), 2)", "getaddrinfo('example.org', 80)"])
def test_network_access_is_recorded(call, tmp_path):
    no_network = NoNetwork(tmp_path)
    program = (sys.executable, "-c", f"import socket\ntry: socket.{call}\nexcept OSError: print('refused')")
    outcome = RunningCommand(program=program, **no_network.environment).wait()
    assert outcome.out.strip() == "refused", outcome
    assert len(no_network.attempts) == 1


def test_commands_need_no_network(workspace, extent):
    """The demo, which contains all of it, takes too long for the sample."""
    scans, out = workspace / "scans", workspace / "out"
    small = ("--kind", "tumour", "--patients", "1", "--size", "32", "--slices", "16", "--workers", "1")
    commands = [("phantom", scans, *small), ("segment", "phantom-tumour", scans, "--out", out)]
    if extent.measured:
        commands.append(("demo", "--out", workspace / "demo", "--patients", "1", "--device", "cpu"))
    no_network = NoNetwork(workspace)
    for arguments in commands:
        outcome = RunningCommand(*arguments, **no_network.environment).wait(timeout=3600)
        assert outcome.code == 0, outcome
    assert not no_network.attempts
    assert len(list(out.rglob("summary.json"))) == 1
