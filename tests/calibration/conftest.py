import pytest
import torch

from anofpdm.cohorts import open_cohort
from anofpdm.network.predictor import load_trained
from tests import toys


@pytest.fixture(scope="package")
def made(tmp_path_factory):
    return toys.untrained(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="package")
def model(made):
    return load_trained(made / "model", torch.device("cpu"))


@pytest.fixture(scope="package")
def cohort(made):
    return open_cohort(made / "cohort")
