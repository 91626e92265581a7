"""Progress without a terminal (lines in a log file) and with one (bars)."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from anofpdm.cli.progress import SPEED_SECONDS, TaskProgress, progress_bars


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logging(file, clock):
    console = Console(file=file)
    bars = Progress(console=console, disable=True, get_time=clock, speed_estimate_period=SPEED_SECONDS)
    return TaskProgress(bars)


@pytest.fixture
def job():
    """A logging progress, its clock, and the lines written so far."""
    log, clock = io.StringIO(), Clock()
    return logging(log, clock), clock, lambda: log.getvalue().splitlines()


def test_a_line_per_minute_with_the_time_left(job):
    progress, clock, lines = job
    for second in range(0, 301, 10):
        clock.now = second
        progress("training", second / 600, 1.0, f"step {second}")
    assert lines() == [f"step {60 * k}: {10 * k}%, {10 - k} min left" for k in range(1, 6)]


def test_only_the_end_of_a_long_task_is_logged_and_only_once(job):
    progress, clock, lines = job
    for done in (0, 1, 2, 2, 2):
        progress("scans", done, 2)
        clock.now += 6
    progress("thresholds", 0, 1)
    clock.now += 6
    progress("thresholds", 1, 1)
    assert lines() == ["scans 2/2: 100%"]


def test_resumed_work_does_not_shorten_the_estimate(job):
    progress, clock, lines = job
    progress("at once", 90, 100)
    for done in range(1, 91):
        clock.now += 0.03
        progress("one by one", done, 100)
    for minute in range(1, 5):
        clock.now = 60 * minute + 1
        progress("at once", 90 + minute, 100)
        progress("one by one", 90 + minute, 100)
    assert lines()[-2:] == ["at once 94/100: 94%, 6 min left", "one by one 94/100: 94%, 6 min left"]


@pytest.mark.parametrize(
    ("updates", "line"),
    [
        ([(999, 1000)], "scans 999/1000: 99%"),  # almost done is not 100%, and one step gives no estimate
        ([(0, 1000)], "scans 0/1000: 0%"),
        ([(0, 0)], None),  # an unknown total is not logged
        ([(0.5, 1.0)], "scans: 50%"),  # a fraction is not shown as a count
        ([(0.5, 1, "scan\nof \x1b[31mred")], "scan?of ?[31mred: 50%"),
    ],
)
def test_one_line(job, updates, line):
    progress, clock, lines = job
    progress("scans", 0, updates[0][1])
    clock.now = 60
    for update in updates:
        progress("scans", *update)
    assert lines() == ([line] if line else [])


def test_a_log_that_cannot_be_written_does_not_stop_the_work():
    class Full(io.StringIO):
        refused = 0

        def write(self, _text):
            self.refused += 1
            raise OSError(28, "No space left on device")

    full, clock = Full(), Clock()
    progress = logging(full, clock)
    for minute in range(3):
        clock.now = 61.0 * minute
        progress("training", minute, 3)
    assert full.refused == 2


def test_a_task_that_restarts_is_timed_again(job):
    progress, clock, lines = job
    progress("levels", 0, 10)
    clock.now = 30
    progress("levels", 10, 10)
    clock.now = 1000
    progress("levels", 0, 10)
    for tenth in range(1, 6):
        clock.now = 1000 + 12 * tenth
        progress("levels", tenth, 10)
    assert lines() == ["levels 10/10: 100%", "levels 5/10: 50%, 60 s left"]


def test_without_a_terminal_lines_go_to_stderr_of_the_first_process(capsys, monkeypatch):
    monkeypatch.setattr("anofpdm.cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    for enabled in (True, False):
        with progress_bars(enabled) as progress:
            progress("phantoms", 0, 4)
            progress("phantoms", 1, 4)
        output = capsys.readouterr()
        assert output.out == ""
        assert ("phantoms 1/4: 25%" in output.err) == enabled


def test_a_terminal_shows_bars(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bars() as progress:
        progress("scans", 0, 0)
        progress("scans", 1, 2, "[a]")
        progress("slices", 1, 4)
    printed = capsys.readouterr().err
    assert "[a]" in printed
    assert "50%" in printed
    assert "slices 1/4" in printed
