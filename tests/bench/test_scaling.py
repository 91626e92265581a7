"""Tables and figure of benchmarks/scaling.py, from made-up times with a known answer."""

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import toys


@pytest.fixture(autouse=True)
def find_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture
def report():
    return toys.benchmark("scaling_report")


def test_a_line_is_found_again(report):
    slices = [10, 20, 40, 80]
    line = report.fit_line(slices, [3 + 0.5 * count for count in slices])
    assert (line.fixed, line.per_slice) == pytest.approx((3, 0.5))
    assert line.deviation == pytest.approx(0, abs=1e-9)
    assert report.fit_line(slices, [count**2 for count in slices]).deviation > 0.2


def test_projection(report):
    """Slices and batches are divided among GPUs. Fixed times, preparing and the student's training are not."""
    lines = {name: report.Line(10.0, 0.01, 0.0) for name in ("prepare", "calibrate", "distill")}
    steps = report.StepCosts(train=0.1, batch=50, student=0.02, student_steps=100)
    times = {
        (name, gpus): report.project(name, lines, steps, 100_000, gpus)
        for name in ("prepare", "calibrate", "distill", "train, one epoch", "student, 3000 steps")
        for gpus in (1, 8)
    }
    assert times["prepare", 1] == times["prepare", 8] == pytest.approx(1010)
    assert times["calibrate", 1] == pytest.approx(1010)
    assert times["calibrate", 8] == pytest.approx(135)
    assert times["distill", 8] == pytest.approx(133)  # 2 s of its 10 were the student's
    assert times["train, one epoch", 8] == pytest.approx(25)
    assert times["student, 3000 steps", 1] == times["student, 3000 steps", 8] == pytest.approx(60)


def test_a_slope_within_the_scatter_is_not_projected(report, capsys):
    steady = report.fit_line([10, 20, 40, 80], [10.0, 10.9, 9.1, 10.2])
    growing = report.fit_line([10, 20, 40, 80], [10.0, 11.9, 14.1, 22.2])
    lines = {"prepare": growing, "calibrate": steady, "distill": growing}
    report.print_projection(lines, report.StepCosts(0.1, 50, 0.02, 1), [1000])
    printed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "start-up hides" in printed["calibrate"]
    assert "start-up hides" not in printed["distill"]


def test_tables_name_every_command(report, capsys):
    measured = [
        report.Measured(name, 10 * times, float(times), 2.0 * times, 100.0)
        for name in ("prepare", "train, a step", "calibrate", "distill", "evaluate")
        for times in (1, 2)
    ]
    report.print_table(measured)
    lines = report.print_lines(measured)
    report.print_projection(lines, report.StepCosts(0.1, 50, 0.02, 1), [1000])
    printed = capsys.readouterr().out
    assert "computed, not measured" in printed.lower()
    assert all(printed.count(name) >= 3 for name in ("prepare", "calibrate", "distill", "evaluate"))


def test_powers_are_straight_lines(tmp_path):
    chart = toys.benchmark("line_chart")
    points = [(x, 3 * x**1.5) for x in (2, 4, 8, 16)]
    chart.draw_panels([chart.Panel("time", "slices", [chart.Series("a", points)])], ["a"], tmp_path / "f.svg")
    line = next(ElementTree.parse(tmp_path / "f.svg").iter("{http://www.w3.org/2000/svg}polyline"))
    drawn = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
    steps = [(x1 - x0, y1 - y0) for (x0, y0), (x1, y1) in itertools.pairwise(drawn)]
    assert all(step == pytest.approx(steps[0], abs=0.21) for step in steps)  # coordinates have one decimal
