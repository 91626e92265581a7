"""Every command on every page is run, every link followed. What the tables here do not know fails.

Commands are run as they stand on the page, in a folder where the names on the page stand for small things
(tests/docs/conftest.py), and with `CHEAPER`, which does nothing but make them quick.
"""

import contextlib
import io
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from anofpdm.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STORIES = ("first-hour.md",)  # pages whose commands follow from each other, in a folder that is empty at first

# ---- the tables ------------------------------------------------------------------------------------------------------

CHEAPER: dict[str, dict[str, str | None]] = {  # options that are given ("": a flag), or taken away where there is None
    "demo": {"--patients": "1", "--device": "cpu"},
    "phantom": {"--patients": "8", "--size": "32", "--slices": "8", "--workers": "1"},
    "fit": {
        "--minutes": None,
        "--steps": "3",
        "--preset": "tiny",
        "--size": "16",
        "--workers": "1",
        "--device": "cpu",
    },
    "prepare": {"--size": "16", "--workers": "1"},
    "train": {"--minutes": None, "--steps": "3", "--batch": "4", "--device": "cpu"},
    "calibrate": {"--levels": "3", "--device": "cpu"},
    "distill": {"--minutes": None, "--steps": "1", "--width": "8", "--device": "cpu"},
    "segment": {"--device": "cpu"},
    "join": {},
    "bids": {"--device": "cpu"},
    "score": {"--workers": "1"},
    "evaluate": {"--levels": "3", "--sample": "6", "--tune": "4", "--seeds": "1", "--device": "cpu"},
    "ablate": {"--levels": "3", "--levels-tried": "2,3", "--most": "20", "--device": "cpu"},
    "models": {},
    "export": {"--format": "monai"},  # ONNX takes longer
    "bench": {
        "--batch": "1",
        "--size": "16",
        "--levels": "2",
        "--literal-levels": "2",
        "--device": "cpu",
        "--no-scan": "",  # a full-size head takes minutes
    },
    "view": {"--host": "127.0.0.1", "--port": "0", "--open": None},
    "serve": {"--host": "127.0.0.1", "--port": "0", "--open": None, "--device": "cpu"},
}
ONLY_HELP = (  # they need a GPU, minutes, or real scans
    "benchmarks/training.py",
    "benchmarks/scaling.py",
    "benchmarks/contrast.py",
    "benchmarks/raw.py",
    "benchmarks/files.py",
)
QUICK_BENCHMARKS = {"benchmarks/guard.py": ["--only", "median", "--margin", "1000"]}
SERVERS = ("view", "serve")
PLACEHOLDERS = {"INPUT...": ["SCAN"], "N": ["4"], "S": ["7"], "M": ["60"], "NAME": ["all"]}
OUTPUTS = {"phantom": 1, "prepare": 3}  # which word names what is made; otherwise the one after --out
CONTAINERS = ("docker", "apptainer")
ONLY_PARSED = ("torchrun", "srun", "pip", "make", "curl", "ssh", "bash", *CONTAINERS)  # bash: a script
PROGRAMS = ("anofpdm", "python", "torchrun", "srun", "pip", "make", "curl", "ssh", *CONTAINERS)


# ---- what is on a page -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A line of a code block, or a whole block of Python or bash."""

    page: Path
    line: int
    kind: str  # a program, "import" for Python code, "bash" for a script
    text: str

    @property
    def words(self) -> list[str]:
        return [one for word in shlex.split(self.text, comments=True) for one in PLACEHOLDERS.get(word, [word])]

    @property
    def made(self) -> str | None:
        """What it is to make."""
        words = self.words[1:] if self.kind == "anofpdm" else [""]
        if words[0] in OUTPUTS:
            return [word for word in words if not word.startswith("--")][OUTPUTS[words[0]]]
        added = {"--resume", "--part"} & set(words)  # to what is there
        return words[words.index("--out") + 1] if "--out" in words and not added else None


@dataclass(frozen=True)
class Block:
    """Code between two empty lines: its commands may follow from each other."""

    page: Path
    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def commands(self) -> list[Command]:
        if self.text.startswith("#!"):
            return [Command(self.page, self.line, "bash", self.text)]
        if re.search(r"^(import|from) anofpdm", self.text, re.MULTILINE):
            return [Command(self.page, self.line, "import", self.text)]
        logical = [(number, line) for number, line in joined(self.lines) if not line.startswith("#")]
        if not any(line.split(" ")[0] in PROGRAMS for _, line in logical):
            assert not re.search(r"\b(anofpdm [a-z]+|torchrun|srun) ", self.text), f"{self}: a command in {self.text}"
            return []
        return [Command(self.page, self.line + number, line.split(" ")[0], line) for number, line in logical]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Code on a page, fenced or indented, cut at empty lines."""
    found: list[Block] = []
    fenced, before = False, ""
    current: list[str] = []
    for number, line in enumerate([*page.read_text().splitlines(), ""], start=1):
        if line.lstrip().startswith("```"):
            fenced, line = not fenced, ""
        if line.strip() and (fenced or (line.startswith("    ") and (current or not before))):
            current.append(line if fenced else line[4:])
        elif current:
            lines = textwrap.dedent("\n".join(current)).splitlines()  # code in a list
            found.append(Block(page, number - len(current), tuple(lines)))
            current = []
        before = line.strip()
    return found


def joined(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Lines that end in a backslash go on in the next."""
    found: list[tuple[int, str]] = []
    goes_on = False
    for number, line in enumerate(lines):
        if goes_on:
            first, before = found[-1]
            found[-1] = (first, f"{before[:-1]} {line.strip()}")
        else:
            found.append((number, line))
        goes_on = line.endswith("\\")
    return found


def all_blocks(pages: Sequence[Path]) -> list[Block]:
    """With commands in them. Pages may say the same; once is enough."""
    found = [block for page in pages for block in blocks_of(page) if block.commands]
    return list({block.lines: block for block in reversed(found)}.values())[::-1]


def is_run(command: Command) -> bool:
    return command.kind not in ONLY_PARSED


STORY = [command for page in PAGES if page.name in STORIES for block in blocks_of(page) for command in block.commands]
BLOCKS = all_blocks([page for page in PAGES if page.name not in STORIES])
ALL_RUN = [block for block in BLOCKS if any(map(is_run, block.commands))]
PARSED = [one for one in [*(one for block in BLOCKS for one in block.commands), *STORY] if not is_run(one)]


def test_commands_are_found():
    """By another way of looking: lines that begin as commands do."""
    starts = re.compile(rf"^(?: {{4}})*(?:{'|'.join(PROGRAMS)}) ")
    for page in PAGES:
        lines = page.read_text().splitlines()
        commands = [command for block in blocks_of(page) for command in block.commands]
        found = {command.line + n for command in commands for n in range(len(command.text.splitlines()))}
        assert {number for number, line in enumerate(lines, start=1) if starts.match(line)} <= found, page.name


def test_the_tables_know_every_subcommand():
    assert set(CHEAPER) == set(subcommands())


@pytest.mark.parametrize(
    "text",
    [
        "anofpdm frobnicate MODEL",
        "anofpdm train COHORT --out MODEL --minuets 3",
        "anofpdm segment MODEL nowhere --out DIR",
        "anofpdm calibrate MODEL COHORT\nwget anywhere",
        "cat x | anofpdm segment MODEL SCAN --out DIR",
        "python nowhere.py",
        "import anofpdm\nanofpdm.unload",
    ],
)
def test_what_is_unknown_or_wrong_fails(text, shelf, run_anofpdm, tmp_path, monkeypatch):
    block = Block(ROOT / "README.md", 1, tuple(text.splitlines()))
    with pytest.raises((AssertionError, AttributeError)):
        test_commands(block, shelf, run_anofpdm, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("torchrun", "torchrun --nproc-per-node 4 -m anofpdm train COHORT --out MODEL --minuets 3"),
        ("torchrun", "torchrun --nproc-a-node 4 -m anofpdm train COHORT --out MODEL"),
        ("torchrun", "torchrun --nproc-per-node 4 -m anofpdm train --out MODEL"),
        ("bash", "#!/bin/bash\nif srun torchrun -m anofpdm bench"),
        ("make", "make coffee"),
        ("pip", "pip install 'anofpdm[coffee]'"),
        ("ssh", "ssh host torchrun -m anofpdm train"),
        ("npm", "npm install"),
    ],
)
def test_what_is_unknown_or_wrong_is_not_parsed(kind, text):
    with pytest.raises((AssertionError, SystemExit)):
        test_command_is_parsed(Command(ROOT / "README.md", 1, kind, text))


# ---- running them ----------------------------------------------------------------------------------------------------


def cheaper(words: list[str]) -> list[str]:
    """The words of `anofpdm ...` after the program's name."""
    assert words[0] in CHEAPER, f"unknown command: anofpdm {shlex.join(words)}"
    wanted = dict(CHEAPER[words[0]])
    if words[0] == "evaluate" and "--native" in words:  # the other options do not apply
        wanted = {"--device": "cpu", "--workers": "1"}
    if words[0] == "train" and "--resume" in words:
        wanted |= {"--steps": "5", "--batch": None}
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word.partition("=")[0] not in wanted:
            kept.append(word)
        elif "=" not in word and word != "--open":
            next(rest)
    given = ((name, value) for name, value in wanted.items() if value is not None)
    return [*kept, *(part for one in given for part in one if part)]


def as_run(block: Block) -> tuple[object, ...]:
    """What blocks have in common that differ only in options which `CHEAPER` replaces: one of them is run."""
    commands = [command for command in block.commands if is_run(command)]
    if not all(one.kind == "anofpdm" and one.words[1] in CHEAPER for one in commands):
        return block.lines
    return ("student" in block.text, *(tuple(cheaper(command.words[1:])) for command in commands))


RUN = list({as_run(block): block for block in reversed(ALL_RUN)}.values())[::-1]
NOT_RUN = [command for block in ALL_RUN if block not in RUN for command in block.commands]


def test_one_of_each_kind_is_run():
    assert {as_run(block) for block in RUN} == {as_run(block) for block in ALL_RUN}
    assert len(NOT_RUN) < len(RUN)


@pytest.mark.parametrize("command", NOT_RUN, ids=lambda command: f"{command.page.name}:{command.line}")
def test_command_like_another_one_is_parsed(command):
    parse(command.words[1:])


def sandbox(shelf: Path, folder: Path, *, with_student: bool) -> None:
    """Everything that a page may name."""
    for thing in shelf.iterdir():
        if thing.name == "MODEL":  # commands write into it
            shutil.copytree(shelf / "with_student" if with_student else thing, folder / thing.name)
        else:
            (folder / thing.name).symlink_to(thing)


def take_away(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("block", RUN, ids=str)
def test_commands(block, shelf, run_anofpdm, tmp_path, monkeypatch):
    sandbox(shelf, tmp_path, with_student="student" in block.text)
    monkeypatch.setenv("PATH", str(shelf / "bin"), prepend=":")
    for command in filter(is_run, block.commands):
        if command.made:
            take_away(tmp_path / command.made)
        run(command, run_anofpdm, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def followed(shelf, run_anofpdm, tmp_path_factory):  # noqa: ARG001  the shelf makes networks small
    """The folder in which the commands of a story were run, one after the other."""
    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        for command in filter(is_run, STORY):
            run(command, run_anofpdm, folder, patch)
    return folder


def test_a_story_can_be_followed(followed):
    """And leaves the files that it tells its reader to look at."""
    text = "\n".join(page.read_text() for page in PAGES if page.name in STORIES)
    named = [span for span in inline_code(text) if re.fullmatch(r"(cohort|demo|masks|model|scores)(/[\w.]+)*", span)]
    assert len(named) > 3
    for name in named:
        assert (followed / name).exists(), name
    assert list(followed.glob("masks/*/report.html"))
    assert list(followed.glob("masks_of_student/*/report.html"))


def run(command: Command, run_anofpdm, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folder)
    if command.kind == "import":
        exec(compile(command.text, command.page.name, "exec"), {})
    elif command.kind == "python":
        run_python(command, patch)
    elif command.kind == "anofpdm" and command.words[1:] == ["--install-completion"]:
        install_completion(folder)
    elif command.kind == "anofpdm" and command.words[1] in SERVERS:
        run_server(command.words[1:], folder, patch)
    elif command.kind == "anofpdm":
        run_anofpdm(*cheaper(command.words[1:]))
    else:
        raise AssertionError(f"unknown to this test: {command.text}")


def run_python(command: Command, patch: pytest.MonkeyPatch) -> None:
    """Code, whose answer stands on the page; or a benchmark, on less than it is meant for."""
    words = command.words[1:]
    if words[0] == "-c":
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        assert done.stdout.strip()
        assert all(line in command.page.read_text() for line in done.stdout.splitlines())
        return
    if words[:2] == ["-m", "monai.bundle"]:  # needs a bundle, and packages that are not ours
        assert words[2] in ("run", "verify_metadata")
        return
    assert words[0].startswith("benchmarks/"), command.text
    printed = io.StringIO()
    patch.syspath_prepend(str(ROOT / "benchmarks"))  # Python finds modules next to a script
    if words[0] in ONLY_HELP:
        patch.setattr(sys, "argv", [words[0], "--help"])
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit, match=r"^0$"):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        return
    patch.setattr(sys, "argv", [*words, *QUICK_BENCHMARKS[words[0]]])
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    assert printed.getvalue().strip()


def run_server(words: list[str], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Start it, request its page, stop it."""
    if "--set-up" in words:  # fetches something from elsewhere
        parse(words)
        return
    patch.setenv("XDG_STATE_HOME", str(folder / "state"))
    log = folder / "server.log"
    server = subprocess.Popen(
        [sys.executable, "-m", "anofpdm", *cheaper(words)], stdout=subprocess.PIPE, stderr=log.open("w"), text=True
    )
    try:
        address = next((line.split()[1] for line in server.stdout if line.startswith("open ")), None)
        assert address is not None, log.read_text()
        with contextlib.suppress(urllib.error.HTTPError):  # the page that asks for a token
            urllib.request.urlopen(address, timeout=30).read()
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(30)
        server.stdout.close()
    assert code == 130
    assert "Traceback" not in log.read_text()


def install_completion(home: Path) -> None:
    """Into a home of its own; afterwards the script knows the commands."""
    env = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", "anofpdm --install-completion; exit $?"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    script = next(home.rglob("anofpdm.sh"))
    words = "COMP_WORDS=(anofpdm seg); COMP_CWORD=1"
    ask = f'source {shlex.quote(str(script))}; {words}; _anofpdm_completion anofpdm; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["segment"], done.stderr


# ---- parsing them ----------------------------------------------------------------------------------------------------


def subcommands() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return command.commands


def parse(words: list[str], *, whole: bool = True) -> None:
    """By the parser of the command itself. In passing, pages leave out arguments, and values of options."""
    known = subcommands()
    assert words[0] in known, f"unknown command: anofpdm {shlex.join(words)}"
    usage_error: Any = typer.BadParameter.__bases__[0]
    try:
        known[words[0]].make_context(words[0], list(words[1:]))
    except usage_error as problem:
        if whole or type(problem).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise AssertionError(f"anofpdm {shlex.join(words)}: {problem.format_message()}") from None


def parse_torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    printed = get_args_parser().parse_args(words)
    assert (printed.module, printed.training_script) == (True, "anofpdm"), words
    parse([one for word in printed.training_script_args for one in PLACEHOLDERS.get(word, [word])])


def parse_container(words: list[str]) -> None:
    """What is built exists; what is run in it is a command."""
    if words[0] == "build":
        assert all((ROOT / word).is_file() for word in words if word.startswith("containers/")), words
        return
    assert words[0] == "run", words
    image = next(number for number, word in enumerate(words) if word in ("anofpdm", "anofpdm.sif"))
    parse(words[image + 1 :])


@pytest.mark.parametrize("command", PARSED, ids=lambda command: f"{command.page.name}:{command.line}")
def test_command_is_parsed(command):
    if command.kind == "bash":
        done = subprocess.run(["bash", "-n"], input=command.text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line for _, line in joined(command.text.splitlines()) if not line.startswith("#")]
        asked = [shlex.split(line)[1:] for line in lines if line.startswith("srun ")]
        assert asked, command.text
        for words in asked:
            assert words[0] in ("torchrun", "anofpdm")
            (parse_torchrun if words[0] == "torchrun" else parse)(words[1:])
    elif command.kind == "torchrun":
        parse_torchrun(command.words[1:])
    elif command.kind in CONTAINERS:
        parse_container(command.words[1:])
    elif command.kind in ("curl", "ssh"):  # they need another machine, or a server
        assert "anofpdm" not in command.words
    elif command.kind == "make":
        for word in command.words[1:]:
            name, given, value = word.partition("=")
            assert re.search(
                rf"^{name} \?=" if given else rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE
            ), word
            files = [part for part in value.split() if "/" in part]
            assert all((ROOT / file).is_file() for file in files), word
    elif command.kind == "pip":
        import tomllib

        assert command.words[1] == "install"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(rf"{project['name']}\[(.+?)\]", command.text):
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
    else:
        raise AssertionError(f"unknown to this test: {command.text}")


# ---- what is named in passing ----------------------------------------------------------------------------------------


def inline_code(text: str) -> list[str]:
    """Spans between backticks, outside of code blocks; what a table needs to escape is put back."""
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    return [" ".join(span.replace("\\|", "|").split()) for span in re.findall(r"`([^`]+)`", prose)]


EARLIER = re.compile(r"`(benchmarks/\w+\.py)`\s+of\s+commit\s+([0-9a-f]{7,40})")  # scripts that were removed since


def has_commit(commit: str) -> bool:
    words = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_of_earlier_commits_exist(page):
    for script, commit in EARLIER.findall(page.read_text()):
        if not has_commit(commit):
            pytest.skip(f"no commit {commit} here")  # a shallow clone, or an unpacked archive
        words = ["git", "cat-file", "-e", f"{commit}:{script}"]
        assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0, script


def variants(words: list[str]) -> list[list[str]]:
    """`a|b` is either, `[c d]` may be left out: with all of it, once for each either."""
    words = [word.strip("[]") if word not in PLACEHOLDERS else word for word in words]
    most = max(len(word.split("|")) for word in words)
    either = [[word.split("|")[n % len(word.split("|"))] for word in words] for n in range(most)]
    return [[one for word in several for one in PLACEHOLDERS.get(word, [word])] for several in either]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_named_in_passing(page):
    options = {name for one in subcommands().values() for option in one.params for name in option.opts}
    options |= {name for one in subcommands().values() for option in one.params for name in option.secondary_opts}
    for span in inline_code(EARLIER.sub("", page.read_text())):
        if span.startswith("anofpdm --"):
            assert span in ("anofpdm --install-completion", "anofpdm --version", "anofpdm --help")
        elif re.match(r"anofpdm [a-z]", span):
            for words in variants(span.split()[1:]):
                parse(words, whole=False)
        elif span.startswith("--"):
            assert re.split(r"[ =]", span)[0] in {*options, "--help"}, span
        elif span.startswith("make "):
            assert f"\n{span.split()[1]}:" in (ROOT / "Makefile").read_text(), span
        elif re.fullmatch(r"[\w./]+\.py", span):
            assert (ROOT / span).is_file() or (ROOT / "src" / "anofpdm" / span).is_file(), span


def test_the_index_names_every_command():
    table = [line for line in (ROOT / "docs" / "README.md").read_text().splitlines() if line.startswith("| `anofpdm ")]
    assert [line.split()[2].strip("`") for line in table] == list(subcommands())


# ---- links and paths -------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(ROOT), target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs") and page.name != "README.md":
            assert f"]({page.relative_to(ROOT / 'docs').as_posix()})" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_absolute_path(page):
    roots = r"(?:home|Users|root|work|tmp|usr|opt|mnt|media|var|srv|data|etc|scratch)"
    assert not re.findall(rf"(?:^|[\s`'\"(=:])(/{roots}\b[\w./-]*|[A-Z]:\\\S+)", page.read_text(), re.MULTILINE)
