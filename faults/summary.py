"""What a run of the suite counted: how the cases of each part ended, and what they measured, as Markdown.

A part is a file: `test_lost_workers.py` is the part "lost workers". Measured values are user properties of reports, so
that they also arrive from the processes of pytest-xdist.
"""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REQUIREMENT = "needs "  # how the reason of a skip begins where this machine cannot run a whole part
OUTCOMES = ("passed", "failed", "skipped")


def skip_without(requirement: str) -> None:
    """Skip a test that this machine cannot run. Only such skips may leave a part without a single case."""
    pytest.skip(f"{REQUIREMENT}{requirement}")


class Summary:
    """A plugin of pytest."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.outcomes: dict[str, Counter[str]] = {name: Counter() for name in _expected_parts(config)}
        self.seconds: Counter[str] = Counter()
        self.reasons: dict[str, set[str]] = defaultdict(set)  # of skips
        self.measured: dict[tuple[str, str], list[float]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = _part_name(report.fspath)
        outcomes = self.outcomes.setdefault(part, Counter())
        self.seconds[part] += report.duration
        if report.when == "call" or report.outcome != "passed":
            outcomes[report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[part].add(str(report.longrepr[2]).removeprefix("Skipped: "))
        if report.when == "teardown":  # user properties are repeated in the report of each phase
            for name, value in report.user_properties:
                self.measured[part, name].append(float(str(value)))

    def ran(self, part: str) -> bool:
        """Whether a case was run, or this machine cannot run any."""
        outcomes, reasons = self.outcomes[part], self.reasons[part]
        unable = reasons and all(reason.startswith(REQUIREMENT) for reason in reasons)
        return bool(outcomes["passed"] + outcomes["failed"] or unable)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.config.option.collectonly and not all(map(self.ran, self.outcomes)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = ["", f"| part | {' | '.join(OUTCOMES)} | seconds | note |", f"|{6 * '---|'}"]
        for part, outcomes in self.outcomes.items():
            note = "; ".join(sorted(self.reasons[part])) if self.ran(part) else "FAILED: no case was run"
            counts = " | ".join(str(outcomes[name]) for name in OUTCOMES)
            lines.append(f"| {part} | {counts} | {self.seconds[part]:.0f} | {note} |")
        lines += ["", "| part | measured | cases | sum | largest |", f"|{5 * '---|'}"]
        for (part, name), values in self.measured.items():
            lines.append(f"| {part} | {name} | {len(values)} | {sum(values):.6g} | {max(values):.6g} |")
        terminalreporter.section("fault suite")
        for line in lines:
            terminalreporter.write_line(line)
        if path := self.config.getoption("--report"):
            path.write_text("\n".join(lines))


def _part_name(path: str) -> str:
    return Path(path).stem.removeprefix("test_").replace("_", " ")


def _expected_parts(config: pytest.Config) -> list[str]:
    """Parts that are run completely; with -k or :: only some of their cases are."""
    if config.option.keyword:
        return []
    paths = [(config.invocation_params.dir / arg).resolve() for arg in config.args if "::" not in arg]
    files = sorted(FOLDER.glob("test_*.py"))
    return [_part_name(file.name) for file in files if any(path in (file, *file.parents) for path in paths)]
