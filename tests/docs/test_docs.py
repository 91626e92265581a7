"""Every document: its commands are run or parsed, and the links, files and options that it names exist.

Commands are run as they stand on the page, in a folder where the names on the page stand for small things
(tests/docs/conftest.py), and with the options of `CHEAPER`, which only make them quick.
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
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from anofpdm.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PAGES = [
    *sorted(ROOT.glob("[!R]*.md")),
    *sorted(ROOT.glob("results/*.md")),
    *ROOT.glob("src/anofpdm/models/**/*.md"),
]
STORY = ROOT / "docs" / "first-hour.md"  # its commands depend on each other, in a folder that is empty at first

CHEAPER: dict[str, dict[str, str | None]] = {  # options that are given ("": a flag), or taken away where there is None
    "demo": {"--patients": "1", "--device": "cpu"},
    "phantom": {"--patients": "8", "--size": "32", "--slices": "8", "--workers": "1"},
    "fit": {"--minutes": None, "--steps": "3", "--preset": "tiny", "--size": "16", "--workers": "1", "--device": "cpu"},
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
    "bench": {"--batch": "1", "--size": "16", "--levels": "2", "--literal-levels": "2", "--device": "cpu",
              "--no-scan": ""},  # a full-size head takes minutes
    "view": {"--host": "127.0.0.1", "--port": "0", "--open": None},
    "serve": {"--host": "127.0.0.1", "--port": "0", "--open": None, "--device": "cpu"},
}  # fmt: skip
ONLY_HELP = ("training", "contrast", "raw")  # benchmarks that need a GPU, minutes, or real scans
QUICK_BENCHMARKS = {"benchmarks/guard.py": ["--only", "median", "--margin", "1000"]}
PLACEHOLDERS = {"INPUT...": ["SCAN"], "N": ["4"], "S": ["7"], "M": ["60"], "NAME": ["all"]}
OUTPUTS = {"phantom": 1, "prepare": 3}  # which word names the output; otherwise the word after --out
ONLY_PARSED = ("torchrun", "srun", "pip", "make", "curl", "ssh", "bash", "docker", "apptainer")  # bash: a script
PROGRAMS = ("anofpdm", "python", *ONLY_PARSED[:-3], "docker", "apptainer")


@dataclass(frozen=True)
class Command:
    """A line of a code block, or a whole block of Python or bash."""

    page: Path
    kind: str  # a program, "import" for Python code, "bash" for a script
    text: str

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.text, comments=True)
        return [part for word in words for part in PLACEHOLDERS.get(word, [word])][1:]

    @property
    def output(self) -> str | None:
        if self.kind != "anofpdm" or {"--resume", "--part"} & set(self.words):  # these add to what is there
            return None
        if self.words[0] in OUTPUTS:
            return [word for word in self.words if not word.startswith("--")][OUTPUTS[self.words[0]]]
        return self.words[self.words.index("--out") + 1] if "--out" in self.words else None


@dataclass(frozen=True)
class Block:
    """Code between two empty lines: its commands may depend on each other."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[Command]:
        for kind, pattern in (("bash", r"\A#!"), ("import", r"^(import|from) anofpdm")):
            if re.search(pattern, self.text, re.MULTILINE):
                return [Command(self.page, kind, self.text)]
        lines = [line for line in join_lines(self.text) if not line.startswith("#")]
        if not any(line.split(" ")[0] in PROGRAMS for line in lines):
            assert not re.search(r"\b(anofpdm [a-z]+|torchrun|srun) ", self.text), f"{self}: a command in {self.text}"
            return []
        return [Command(self.page, line.split(" ")[0], line) for line in lines]

    @property
    def is_run(self) -> bool:
        return any(command.kind not in ONLY_PARSED for command in self.commands)

    @property
    def as_run(self) -> tuple[object, ...]:
        """What blocks have in common that differ only in options which `CHEAPER` replaces: the first of them is run."""
        commands = [command for command in self.commands if command.kind not in ONLY_PARSED]
        if not all(command.kind == "anofpdm" and command.words[0] in CHEAPER for command in commands):
            return (self.text,)
        return ("student" in self.text, *(tuple(cheaper(command.words)) for command in commands))


def join_lines(text: str) -> list[str]:
    return re.sub(r"\\\n\s*", " ", text).splitlines()


def blocks_of(page: Path) -> list[Block]:
    """Code on a page that has commands, fenced or indented, cut at empty lines."""
    blocks: list[Block] = []
    fenced, before = False, ""
    current: list[str] = []
    for number, line in enumerate([*page.read_text().splitlines(), ""], start=1):
        if line.lstrip().startswith("```"):
            fenced, line = not fenced, ""
        if line.strip() and (fenced or (line.startswith("    ") and (current or not before))):
            current.append(line)
        elif current:
            blocks.append(Block(page, number - len(current), textwrap.dedent("\n".join(current))))
            current = []
        before = line.strip()
    return [block for block in blocks if block.commands]


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
    for option, value in wanted.items():
        kept += [] if value is None else [part for part in (option, value) if part]
    return kept


BLOCKS = list({block.text: block for page in PAGES[::-1] if page != STORY for block in blocks_of(page)[::-1]}.values())[
    ::-1
]
FIRST = {block.as_run: block for block in BLOCKS[::-1] if block.is_run}  # the first of those that would run the same


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands(block, shelf, run_anofpdm, tmp_path, monkeypatch):
    if block.is_run and FIRST.get(block.as_run, block) is not block:
        for command in block.commands:
            parse(command.words)
        return
    for thing in shelf.iterdir():
        if thing.name == "MODEL":  # commands write into it
            source = shelf / "with_student" if "student" in block.text else thing
            shutil.copytree(source, tmp_path / "MODEL")
        else:
            (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.setenv("PATH", str(shelf / "bin"), prepend=":")
    for command in block.commands:
        output = tmp_path / (command.output or "nothing")
        if output.is_symlink():
            output.unlink()
        elif command.output:
            shutil.rmtree(output, ignore_errors=True)
        check_command(command, run_anofpdm, tmp_path, monkeypatch)


CARDS = [block for card in ROOT.glob("src/anofpdm/models/*/README.md") for block in blocks_of(card)]


@pytest.mark.parametrize("block", CARDS, ids=str)
def test_commands_of_the_cards_of_models_are_parsed(block):
    for command in block.commands:
        if command.kind == "anofpdm":
            parse(command.words)


def test_a_story_can_be_followed(shelf, run_anofpdm, tmp_path, monkeypatch):  # noqa: ARG001  the shelf makes networks small
    """And leaves the files that it tells its reader to look at."""
    for block in blocks_of(STORY):
        for command in block.commands:
            check_command(command, run_anofpdm, tmp_path, monkeypatch)
    spans = inline_code(STORY.read_text())
    named = [span for span in spans if re.fullmatch(r"(cohort|demo|masks|model|scores)(/[\w.]+)*", span)]
    assert len(named) > 3
    for name in (*named, "masks/*/report.html", "masks_of_student/*/report.html"):
        assert list(tmp_path.glob(name)), name


@pytest.mark.parametrize(
    "text",
    [
        "anofpdm frobnicate MODEL",
        "anofpdm train COHORT --out MODEL --minuets 3",
        "anofpdm segment MODEL nowhere --out DIR",
        "python nowhere.py",
        "torchrun --nproc-per-node 4 -m anofpdm train --out MODEL",
        "#!/bin/bash\nif srun torchrun -m anofpdm bench",
        "make coffee",
        "pip install 'anofpdm[coffee]'",
        "anofpdm models\nwget anywhere",
    ],
)
def test_what_is_unknown_or_wrong_fails(text, shelf, run_anofpdm, tmp_path, monkeypatch):
    with pytest.raises((AssertionError, AttributeError, SystemExit)):
        test_commands(Block(ROOT / "README.md", 1, text), shelf, run_anofpdm, tmp_path, monkeypatch)


# ---- one command -----------------------------------------------------------------------------------------------------


def check_command(command: Command, run_anofpdm, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folder)
    if command.kind == "import":
        exec(compile(command.text, command.page.name, "exec"), {})
    elif command.kind == "python":
        run_python(command, patch)
    elif command.kind == "anofpdm" and command.words == ["--install-completion"]:
        install_completion(folder)
    elif command.kind == "anofpdm" and command.words[0] in ("view", "serve"):
        run_server(command.words, folder, patch)
    elif command.kind == "anofpdm":
        run_anofpdm(*cheaper(command.words))
    else:
        assert command.kind in ONLY_PARSED, f"unknown to this test: {command.text}"
        check_elsewhere(command)


def run_python(command: Command, patch: pytest.MonkeyPatch) -> None:
    """Code, whose answer stands on the page; or a benchmark, on less than it is meant for."""
    words = command.words
    if words[0] == "-c":
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        assert done.stdout.strip()
        assert all(line in command.page.read_text() for line in done.stdout.splitlines())
        return
    if words[:2] == ["-m", "monai.bundle"]:  # needs a bundle, and packages that are not ours
        assert words[2] in ("run", "verify_metadata")
        return
    assert words[0].startswith("benchmarks/"), command.text
    only_help = Path(words[0]).stem in ONLY_HELP
    patch.syspath_prepend(str(ROOT / "benchmarks"))  # Python finds modules next to a script
    patch.setattr(sys, "argv", [words[0], "--help"] if only_help else [*words, *QUICK_BENCHMARKS[words[0]]])
    printed = io.StringIO()
    exits = pytest.raises(SystemExit, match=r"^0$") if only_help else contextlib.nullcontext()
    with contextlib.redirect_stdout(printed), exits:
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
    install = "anofpdm --install-completion >&2 || exit 1; source $(find ~ -name anofpdm.sh)"
    words = "COMP_WORDS=(anofpdm seg); COMP_CWORD=1; _anofpdm_completion anofpdm"
    script = f'{install}; {words}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["segment"]), done.stderr


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

    parsed = get_args_parser().parse_args(words)
    assert (parsed.module, parsed.training_script) == (True, "anofpdm"), words
    parse([part for word in parsed.training_script_args for part in PLACEHOLDERS.get(word, [word])])


def check_elsewhere(command: Command) -> None:
    """A command that needs another machine, a network or a container: what it names exists."""
    words = command.words
    makefile, project = (ROOT / "Makefile").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if command.kind == "bash":
        done = subprocess.run(["bash", "-n"], input=command.text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        lines = [shlex.split(line)[1:] for line in join_lines(command.text) if line.startswith("srun ")]
        assert lines, command.text
        for program, *rest in lines:
            {"torchrun": parse_torchrun, "anofpdm": parse}[program](rest)
    elif command.kind == "torchrun":
        parse_torchrun(words)
    elif command.kind == "make":
        for word in words:
            name, given, value = word.partition("=")
            assert re.search(rf"^{name} \?=" if given else rf"^{name}:", makefile, re.MULTILINE), word
            assert all((ROOT / file).is_file() for file in value.split() if "/" in file), word
    elif command.kind == "pip":
        assert words[0] == "install"
        for extras in re.findall(rf"{project['name']}\[(.+?)\]", command.text):
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
    elif command.kind in ("docker", "apptainer") and words[0] == "build":
        assert all((ROOT / word).is_file() for word in words if word.startswith("containers/")), words
    elif command.kind in ("docker", "apptainer"):
        image = next(number for number, word in enumerate(words) if word in ("anofpdm", "anofpdm.sif"))
        parse(words[image + 1 :])
    else:  # curl, ssh
        assert "anofpdm" not in words


# ---- one page --------------------------------------------------------------------------------------------------------

EARLIER = re.compile(r"`(benchmarks/\w+\.py)`\s+of\s+commit\s+([0-9a-f]{7,40})")  # scripts that were removed since
ABSOLUTE = (
    r"(?:^|[\s`'\"(=:])(/(?:home|Users|root|work|tmp|usr|opt|mnt|media|var|srv|data|etc|scratch)\b[\w./-]*|[A-Z]:\\\S+)"
)


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not re.match(r"https?:|mailto:", target):
            assert there.is_relative_to(ROOT), target
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target
    assert not re.findall(ABSOLUTE, text, re.MULTILINE)
    for script, commit in EARLIER.findall(text):
        if git_has(f"{commit}^{{commit}}"):  # not in a shallow clone, or an unpacked archive
            assert git_has(f"{commit}:{script}"), script
    if page in PAGES:
        starts = re.compile(rf"^(?: {{4}})*((?:{'|'.join(PROGRAMS)}) .*)")
        commands = "\n".join(block.text for block in blocks_of(page))
        assert all(match[1] in commands for match in map(starts.match, text.splitlines()) if match)
        for span in inline_code(EARLIER.sub("", text)):
            check_named_in_passing(span)


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def git_has(name: str) -> bool:
    return subprocess.run(["git", "cat-file", "-e", name], cwd=ROOT, capture_output=True, check=False).returncode == 0


def inline_code(text: str) -> list[str]:
    """Spans between backticks, outside of code blocks; what a table needs to escape is put back."""
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    return [" ".join(span.replace("\\|", "|").split()) for span in re.findall(r"`([^`]+)`", prose)]


def check_named_in_passing(span: str) -> None:
    parameters = [parameter for command in subcommands().values() for parameter in command.params]
    options = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
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


def variants(words: list[str]) -> list[list[str]]:
    """`a|b` is either, `[c d]` may be left out: with all of it, once for each either."""
    choices = [(word.strip("[]") if word not in PLACEHOLDERS else word).split("|") for word in words]
    texts = [[choice[number % len(choice)] for choice in choices] for number in range(max(map(len, choices)))]
    return [[part for word in text for part in PLACEHOLDERS.get(word, [word])] for text in texts]


def test_the_index_names_every_command_and_page():
    index = (ROOT / "docs" / "README.md").read_text()
    table = [line.split()[2].strip("`") for line in index.splitlines() if line.startswith("| `anofpdm ")]
    assert table == list(subcommands())
    assert set(table) == set(CHEAPER)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    assert all(f"]({name})" in index for name in pages - {"README.md"})
    navigation = re.findall(r"([\w/-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert set(navigation) == pages | {"tutorial.md"}
