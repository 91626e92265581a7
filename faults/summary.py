"""What a run of the suite counted, as Markdown: one table of its parts, and one for each section of docs/robustness.md.

Tests attach rows to their reports as user properties, so that they also arrive from the processes of pytest-xdist. A
part is a file: `test_full_disk.py` is the part "full disk".
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REQUIREMENT = "needs "  # how the reason of a skip begins where this machine cannot run a whole part
KILLS, FAULTS, BAD_FILES = "Kills", "Disks, signals, locks, workers", "Bad files"
MUTATIONS, FUZZING, LOAD = "Mutated files", "Coverage-guided fuzzing", "Load"
SCALE, SUPPLY_CHAIN = "Scale", "Supply chain"
COLUMNS = {
    KILLS: ("command", "kills", "during a write", "resumed", "seconds", "compared"),
    FAULTS: ("fault", "commands", "times each", "result"),
    BAD_FILES: ("kind", "runs", "slowest, s", "peak memory, MiB"),
    MUTATIONS: ("reader", "inputs"),
    FUZZING: ("reader", "inputs", "seconds", "inputs that reached new lines"),
    LOAD: ("measure", "count", "note"),
    SCALE: ("measure", "small cohort", "large cohort"),
    SUPPLY_CHAIN: ("check", "count", "result"),
}

Cell = str | int | float
Row = tuple[Cell, ...]


def skip_without(requirement: str) -> None:
    """Skip a test that this machine cannot run. Only such skips may leave a part without a single case."""
    pytest.skip(f"{REQUIREMENT}{requirement}")


class Summary:
    """A plugin of pytest that collects, by part, how its cases ended, and the rows of all reports."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.outcomes: dict[str, Counter[str]] = {name: Counter() for name in _expected_parts(config)}
        self.seconds: Counter[str] = Counter()
        self.reasons: dict[str, set[str]] = defaultdict(set)  # of skips
        self.rows: dict[str, list[Row]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = _part_name(report.fspath)
        outcomes = self.outcomes.setdefault(part, Counter())
        self.seconds[part] += report.duration
        if report.when == "call" or report.outcome != "passed":
            outcomes[report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[part].add(str(report.longrepr[2]).removeprefix("Skipped: "))
        if report.when == "teardown":  # user properties are repeated in the report of each phase
            for table, row in report.user_properties:
                self.rows[table].append(tuple(row))

    def ran(self, part: str) -> bool:
        """Whether a case was run, or this machine cannot run any."""
        outcomes, reasons = self.outcomes[part], self.reasons[part]
        unable = reasons and all(reason.startswith(REQUIREMENT) for reason in reasons)
        return bool(outcomes["passed"] + outcomes["failed"] or unable)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.config.option.collectonly and not all(map(self.ran, self.outcomes)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = [line for title, rows in self.tables() for line in (f"## {title}", "", *rows, "")]
        terminalreporter.section("fault suite")
        for line in lines:
            terminalreporter.write_line(line)
        if path := self.config.getoption("--report"):
            path.write_text("\n".join(lines))

    def tables(self) -> Iterator[tuple[str, list[str]]]:
        counts = ("passed", "failed", "skipped")
        parts = []
        for name, outcomes in self.outcomes.items():
            skips = "; ".join(f"skipped: {reason}" for reason in sorted(self.reasons[name]))
            note = skips if self.ran(name) else "FAILED: no case was run"
            parts.append((name, *(outcomes[count] for count in counts), round(self.seconds[name]), note))
        yield "Parts", _markdown(("part", *counts, "seconds", "note"), parts)
        for table, columns in COLUMNS.items():
            if rows := self.rows.get(table):
                yield table, _markdown(columns, MERGE[table](rows) if table in MERGE else rows)


def _part_name(path: str) -> str:
    return Path(path).stem.removeprefix("test_").replace("_", " ")


def _expected_parts(config: pytest.Config) -> list[str]:
    """Parts that are run completely; with -k or :: only some of their cases are."""
    if config.option.keyword:
        return []
    paths = [(config.invocation_params.dir / arg).resolve() for arg in config.args if "::" not in arg]
    files = sorted(FOLDER.glob("test_*.py"))
    return [_part_name(file.name) for file in files if any(path in (file, *file.parents) for path in paths)]


# ---- rows ------------------------------------------------------------------------------------------------------------


def _merge_commands(rows: list[Row]) -> list[Row]:
    """(fault, command, times, result): one row for all commands that had the same."""
    merged: dict[Row, list[str]] = defaultdict(list)
    for fault, command, times, result in rows:
        merged[fault, times, result].append(str(command))
    return [(fault, ", ".join(commands), times, result) for (fault, times, result), commands in merged.items()]


def _merge_runs(rows: list[Row]) -> list[Row]:
    """(kind, seconds, bytes): one row for each kind, with the maxima."""
    runs: dict[Cell, list[tuple[float, float]]] = defaultdict(list)
    for kind, seconds, peak in rows:
        runs[kind].append((float(seconds), float(peak)))
    maxima = {kind: [max(column) for column in zip(*some, strict=True)] for kind, some in runs.items()}
    return [(kind, len(runs[kind]), f"{seconds:.1f}", int(peak) >> 20) for kind, (seconds, peak) in maxima.items()]


MERGE = {FAULTS: _merge_commands, BAD_FILES: _merge_runs}


def _markdown(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{len(columns) * '---|'}"]
    return lines + [
        f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in row)} |" for row in rows
    ]
