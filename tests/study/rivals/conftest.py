import pytest

from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from tests import toys


@pytest.fixture(scope="package")
def cohort(tmp_path_factory):
    """Eight small heads in slices of 16 x 16, of which two are for validation."""
    folder = tmp_path_factory.mktemp("cohort")
    split = "".join(f"p{number},{'val' if number < 2 else 'train'}\n" for number in range(8))
    (folder / "split.csv").write_text(f"patient,split\n{split}")
    scans = toys.brats_cohort(folder / "scans", 8)
    prepare(plan_cohort("brats21", scans, size=16, split=folder / "split.csv"), folder / "cohort")
    return open_cohort(folder / "cohort")
