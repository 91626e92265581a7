"""What a longer command says of itself where there is no terminal: the log of a job."""

import io

import pytest

from anofpdm.cli.progress import Lines, progress_bar, progress_bars


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def job():
    """Lines, their clock, and the lines written so far."""
    log, clock = io.StringIO(), Clock()
    return Lines(log, clock), clock, lambda: log.getvalue().splitlines()


def test_a_line_a_minute_with_the_time_that_is_left(job):
    show, clock, said = job
    for second in range(0, 301, 10):
        clock.now = second
        show("training", second / 600, 1.0, f"step {second}")
    assert said() == [f"step {60 * k}: {10 * k}%, {10 - k} min left" for k in range(1, 6)]


def test_the_end_is_said_at_once_and_only_once(job):
    show, clock, said = job
    for done in (0, 1, 2, 2, 2):
        show("scans", done, 2)
        clock.now += 6
    assert said() == ["scans: 100%"]


def test_what_takes_no_time_is_not_worth_a_line(job):
    show, clock, said = job
    for _ in range(20):
        for done in range(10):
            show("thresholds", done + 1, 10)
            clock.now += 0.5
    assert said() == []


def test_what_was_done_before_does_not_make_the_rest_look_quick(job):
    show, clock, said = job
    show("at once", 90, 100)
    for done in range(1, 91):
        clock.now += 0.03
        show("one by one", done, 100)
    clock.now = 62
    show("at once", 91, 100)
    show("one by one", 91, 100)
    assert said() == ["at once: 91%, 9 min left", "one by one: 91%, 9 min left"]


@pytest.mark.parametrize(("done", "line"), [(999, "99%, 0 s left"), (0, "0%, unknown time left")])
def test_nearly_done_is_not_done_and_nothing_done_promises_nothing(job, done, line):
    show, clock, said = job
    show("training", 0, 1000)
    clock.now = 100
    show("training", done, 1000)
    assert said() == [f"training: {line}"]


def test_a_log_that_cannot_be_written_does_not_end_the_work():
    class Full(io.StringIO):
        refused = 0

        def write(self, _text):
            self.refused += 1
            raise OSError(28, "No space left on device")

    full, clock = Full(), Clock()
    show = Lines(full, clock)
    for minute in range(3):
        clock.now = 61.0 * minute
        show("training", minute, 3)
    assert full.refused == 2


def test_what_begins_anew_is_timed_anew(job):
    show, clock, said = job
    show("levels", 0, 10)
    clock.now = 30
    show("levels", 10, 10)
    clock.now = 1000
    show("levels", 0, 10)
    clock.now = 1060
    show("levels", 5, 10)
    assert said() == ["levels: 100%", "levels: 50%, 60 s left"]


def test_a_total_that_is_not_known_is_not_divided_by(job):
    show, clock, said = job
    show("scans", 0, 0)
    clock.now = 100
    show("scans", 0, 0)
    assert said() == []


def test_a_name_keeps_to_its_line(job):
    show, clock, said = job
    show("scans", 0, 1)
    clock.now = 60
    show("scans", 0.5, 1, "scan\nof \x1b[31mred")
    assert said() == ["scan?of ?[31mred: 50%, 60 s left"]


def test_without_a_terminal_lines_go_to_stderr(capsys, monkeypatch):
    monkeypatch.setattr("anofpdm.cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    with progress_bar("phantoms") as show:
        show(0, 4)
        show(1, 4)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("phantoms 1/4: 25%")


def test_only_the_first_process_speaks(capsys):
    with progress_bars(leads=False) as show:
        show("scans", 1, 1)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_are_bars(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bars() as show:
        show("scans", 0, 0)
        show("scans", 1, 2, "[a]")
    said = capsys.readouterr().err
    assert "[a]" in said
    assert "50%" in said
