"""Progress without a terminal (lines in a log file) and with one (bars)."""

import io

import pytest

from anofpdm.cli.progress import LogProgress, progress_bars


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def job():
    """A logging progress, its clock, and the lines written so far."""
    log, clock = io.StringIO(), Clock()
    return LogProgress(log, clock), clock, lambda: log.getvalue().splitlines()


def test_a_line_per_minute_with_the_time_left(job):
    progress, clock, lines = job
    for second in range(0, 301, 10):
        clock.now = second
        progress("training", second / 600, 1.0, f"step {second}")
    assert lines() == [f"step {60 * k}: {10 * k}%, {10 - k} min left" for k in range(1, 6)]


def test_the_end_is_logged_at_once_and_only_once(job):
    progress, clock, lines = job
    for done in (0, 1, 2, 2, 2):
        progress("scans", done, 2)
        clock.now += 6
    assert lines() == ["scans 2/2: 100%"]


def test_short_tasks_are_not_logged(job):
    progress, clock, lines = job
    for _ in range(20):
        for done in range(10):
            progress("thresholds", done + 1, 10)
            clock.now += 0.5
    assert lines() == []


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


def test_no_time_is_shown_while_the_speed_changes(job):
    """A fast start, then slower work: what an estimate after a minute would miss."""
    progress, clock, lines = job
    for second, done in ((0, 0), (20, 50), (40, 52), (60, 52.2), (80, 52.4), (100, 52.6), (120, 52.8)):
        clock.now = second
        progress("training", float(done), 100.0)
    assert lines() == ["training: 52%", "training: 52%, 79 min left"]


@pytest.mark.parametrize(("done", "line"), [(999, "99%"), (0, "0%")])
def test_almost_done_is_not_100_percent_and_one_step_gives_no_estimate(job, done, line):
    progress, clock, lines = job
    progress("training", 0, 1000)
    clock.now = 100
    progress("training", done, 1000)
    assert lines() == [f"training {done}/1000: {line}"]


def test_a_log_that_cannot_be_written_does_not_stop_the_work():
    class Full(io.StringIO):
        refused = 0

        def write(self, _text):
            self.refused += 1
            raise OSError(28, "No space left on device")

    full, clock = Full(), Clock()
    progress = LogProgress(full, clock)
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


def test_an_unknown_total_is_not_logged(job):
    progress, clock, lines = job
    progress("scans", 0, 0)
    clock.now = 100
    progress("scans", 0, 0)
    assert lines() == []


def test_fractions_are_not_shown_as_counts(job):
    progress, clock, lines = job
    progress("training", 0.0, 1.0)
    clock.now = 60
    progress("training", 0.5, 1.0)
    assert lines() == ["training: 50%"]


def test_control_characters_in_a_note_are_replaced(job):
    progress, clock, lines = job
    progress("scans", 0, 1)
    clock.now = 60
    progress("scans", 0.5, 1, "scan\nof \x1b[31mred")
    assert lines() == ["scan?of ?[31mred: 50%"]


def test_without_a_terminal_lines_go_to_stderr(capsys, monkeypatch):
    monkeypatch.setattr("anofpdm.cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    with progress_bars() as progress:
        progress("phantoms", 0, 4)
        progress("phantoms", 1, 4)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("phantoms 1/4: 25%")


def test_other_processes_print_nothing(capsys):
    with progress_bars(enabled=False) as progress:
        progress("scans", 1, 1)
    assert capsys.readouterr().err == ""


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
