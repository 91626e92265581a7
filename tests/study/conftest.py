"""Fixtures of the tests of evaluation."""

import pytest

from anofpdm.scoring.metrics import bootstrap


@pytest.fixture(scope="module")
def few_bins():
    """For tests in which intervals do not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "BINS", 64)
        yield
