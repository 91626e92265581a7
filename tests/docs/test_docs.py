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
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from anofpdm.cli.main import app
from tests.commands import run

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
    "export": {"--format": "monai"},  # ONNX takes longer
    "bench": {"--batch": "1", "--size": "16", "--levels": "2", "--literal-levels": "2", "--device": "cpu",
              "--no-scan": ""},  # a full-size head takes minutes
}  # fmt: skip
ONLY_PARSED = ("--install-completion", "view", "serve")  # tests/viewer starts them
PLACEHOLDERS = {"INPUT...": ["SCAN"], "N": ["4"], "S": ["7"], "M": ["60"], "NAME": ["all"]}
OUTPUTS = {"phantom": 1, "prepare": 3}  # which word names the output; otherwise the word after --out
ELSEWHERE = ("torchrun", "srun", "docker", "apptainer", "pip", "make", "curl", "ssh")
PROGRAMS = ("anofpdm", "python", *ELSEWHERE)


@dataclass(frozen=True)
class Block:
    """Code between two empty lines: its commands may depend on each other."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_python(self) -> bool:
        return re.search(r"^(import|from) anofpdm", self.text, re.MULTILINE) is not None

    @property
    def commands(self) -> list[str]:
        """Its lines, or those of a script that start programs."""
        lines = re.sub(r"\\\n\s*", " ", self.text).splitlines()
        known = [line for line in lines if line.split(" ")[0] in PROGRAMS]
        if known and not self.text.startswith("#!"):
            assert known == [line for line in lines if not line.startswith("#")], f"{self}: unknown to this test"
        return known


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
    return [block for block in blocks if block.is_python or block.commands]


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
        elif "=" not in word:
            next(rest)
    for option, value in wanted.items():
        kept += [] if value is None else [part for part in (option, value) if part]
    return kept


BLOCKS = {block.text: block for page in PAGES if page != STORY for block in blocks_of(page)}.values()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands(block, shelf, tmp_path, monkeypatch):
    for thing in shelf.iterdir():
        if thing.name == "MODEL":  # commands write into it
            source = shelf / "with_student" if "student" in block.text else thing
            shutil.copytree(source, tmp_path / "MODEL")
        else:
            (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.setenv("PATH", str(shelf / "bin"), prepend=":")
    monkeypatch.chdir(tmp_path)
    if block.is_python:
        exec(compile(block.text, block.page.name, "exec"), {})
    else:
        for command in block.commands:
            check_command(block.page, command)


CARDS = [block for card in ROOT.glob("src/anofpdm/models/*/README.md") for block in blocks_of(card)]


@pytest.mark.parametrize("block", CARDS, ids=str)
def test_commands_of_the_cards_of_models_are_parsed(block):
    for command in block.commands:
        program, *words = with_examples(shlex.split(command, comments=True))
        if program == "anofpdm":
            parse(words)


def test_a_story_can_be_followed(shelf, tmp_path, monkeypatch):  # noqa: ARG001  the shelf makes networks small
    """And leaves the files that it tells its reader to look at."""
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(STORY):
        for command in block.commands:
            check_command(STORY, command)
    spans = inline_code(STORY.read_text())
    named = [span for span in spans if re.fullmatch(r"(cohort|demo|masks|model|scores)(/[\w.]+)*", span)]
    assert len(named) > 3
    for name in (*named, "masks/*/report.html", "masks_of_student/*/report.html"):
        assert list(tmp_path.glob(name)), name


# ---- one command -----------------------------------------------------------------------------------------------------


def check_command(page: Path, command: str) -> None:
    program, *words = with_examples(shlex.split(command, comments=True))
    if program == "python":
        run_python(page, words)
    elif program != "anofpdm":
        check_elsewhere(program, words)
    elif words[0] in ONLY_PARSED:
        parse(words)
    else:
        remove_output(words)
        run(*cheaper(words))


def with_examples(words: list[str]) -> list[str]:
    return [part for word in words for part in PLACEHOLDERS.get(word, [word])]


def remove_output(words: list[str]) -> None:
    """What stands for the output of a command, unless the command adds to it."""
    if {"--resume", "--part"} & set(words):
        return
    plain, name = [word for word in words if not word.startswith("--")], None
    if words[0] in OUTPUTS:
        name = plain[OUTPUTS[words[0]]]
    elif "--out" in words:
        name = words[words.index("--out") + 1]
    if name and Path(name).is_symlink():
        Path(name).unlink()
    elif name:
        shutil.rmtree(name, ignore_errors=True)


def run_python(page: Path, words: list[str]) -> None:
    """Code, whose answer stands on the page; or a benchmark, of which only the help is printed."""
    if words[0] == "-c":
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        assert done.stdout.strip()
        assert all(line in page.read_text() for line in done.stdout.splitlines())
    elif words[:2] == ["-m", "monai.bundle"]:  # needs a bundle, and packages that are not ours
        assert words[2] in ("run", "verify_metadata")
    else:
        assert words[0].startswith("benchmarks/"), words
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
            patch.syspath_prepend(str(ROOT / "benchmarks"))  # Python finds modules next to a script
            patch.setattr(sys, "argv", [words[0], "--help"])
            with pytest.raises(SystemExit, match=r"^0$"):
                runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        assert all(option.partition("=")[0] in printed.getvalue() for option in words if option.startswith("--"))


def subcommands() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return command.commands


def parse(words: list[str], *, whole: bool = True) -> None:
    """By the parser of the command itself. In passing, pages leave out arguments, and values of options."""
    if words[0] == "--install-completion":
        return
    known = subcommands()
    assert words[0] in known, f"unknown command: anofpdm {shlex.join(words)}"
    usage_error: Any = typer.BadParameter.__bases__[0]
    try:
        known[words[0]].make_context(words[0], list(words[1:]))
    except usage_error as problem:
        if whole or type(problem).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise AssertionError(f"anofpdm {shlex.join(words)}: {problem.format_message()}") from None


def check_elsewhere(program: str, words: list[str]) -> None:
    """A command that needs another machine, a network or a container: what it names exists."""
    ours = [number for number, word in enumerate(words, start=1) if word in ("anofpdm", "anofpdm.sif")]
    if program == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(), words
    elif words[0] == "build":
        assert all((ROOT / word).is_file() for word in words if word.startswith("containers/")), words
    elif program in ("torchrun", "srun", "docker", "apptainer"):
        assert ours, words
        parse(words[ours[-1] :])
    else:
        assert program in ELSEWHERE
        assert not ours, words


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
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"pip install .*'(?:anofpdm|\.)\[(.+?)\]", text):
        assert set(names.split(",")) <= set(extras)
    if page in PAGES:
        for span in inline_code(EARLIER.sub("", text)):
            check_named_in_passing(span)


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


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
        check_elsewhere("make", span.split()[1:])
    elif re.fullmatch(r"[\w./]+\.py", span):
        assert (ROOT / span).is_file() or (ROOT / "src" / "anofpdm" / span).is_file(), span


def variants(words: list[str]) -> list[list[str]]:
    """`a|b` is either, `[c d]` may be left out: with all of it, once for each either."""
    choices = [(word.strip("[]") if word not in PLACEHOLDERS else word).split("|") for word in words]
    count = max(map(len, choices))
    return [with_examples([choice[number % len(choice)] for choice in choices]) for number in range(count)]


def test_the_index_names_every_command_and_page():
    index = (ROOT / "docs" / "README.md").read_text()
    table = [line.split()[2].strip("`") for line in index.splitlines() if line.startswith("| `anofpdm ")]
    assert table == list(subcommands())
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    assert all(f"]({name})" in index for name in pages - {"README.md"})
    navigation = re.findall(r"([\w/-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert set(navigation) == pages | {"tutorial.md"}
