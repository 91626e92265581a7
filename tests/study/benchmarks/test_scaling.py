"""Tables of benchmarks/scaling.py, from made-up times with a known answer."""

import pytest

from tests import toys


@pytest.fixture
def report():
    return toys.benchmark("scaling")


def test_a_line_is_found_again(report):
    slices = [10, 20, 40, 80]
    line = report.fit_line(slices, [3 + 0.5 * count for count in slices])
    assert (line.fixed, line.per_slice) == pytest.approx((3, 0.5))
    assert line.deviation == pytest.approx(0, abs=1e-9)
    assert report.fit_line(slices, [count**2 for count in slices]).deviation > 0.2
