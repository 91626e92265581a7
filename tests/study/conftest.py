"""Fixtures of the tests of the study."""

import pytest

from anofpdm.cohorts import open_cohort
from anofpdm.study.comparison import rankings
from tests.study.comparison_toys import fill


@pytest.fixture(scope="module")
def few_bins():
    """For tests in which intervals do not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rankings, "BINS", 64)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A cohort, and an untrained network for every role in a comparison. Not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    fill(folder)
    return folder


@pytest.fixture
def cohort(made):
    return open_cohort(made / "cohort")
