import pytest

from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from tests import toys


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    """Eight small heads, FLAIR and T2, half of them with a lesion; slices of 16 x 16."""
    folder = tmp_path_factory.mktemp("cohort")
    prepare(plan_cohort("brats21", toys.brats_cohort(folder / "scans", 8), size=16), folder / "cohort")
    return open_cohort(folder / "cohort")
