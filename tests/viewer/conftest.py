"""An untrained model, a server in its own process, and a client for it."""

import signal
import warnings
from pathlib import Path

import pytest

from anofpdm.errors import ScanWarning
from tests import optional_toys, toys
from tests.viewer.servers import Server

SHAPE = (32, 36, 14)

# ---- models and scans ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A student alone, which calls every slice unhealthy, needs FLAIR and T2, and takes T1 where it is given."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    return optional_toys.save_model(folder, channels=("flair", "t2", "t1"), optional=("t1",), bias=-1.0)


@pytest.fixture(scope="session")
def make_scan(tmp_path_factory):
    """Makes files of a small synthetic head, different for each seed."""

    def make(seed, shape=SHAPE):
        folder, affine = tmp_path_factory.mktemp("scan"), toys.affine_of("LPS", (4, 4, 4), shape=shape)
        heads = {name: toys.head(shape, 10 * seed + number, affine) for number, name in enumerate(("flair", "t2"))}
        return {name: toys.save(folder / f"{name}.nii.gz", head, affine) for name, head in heads.items()}

    return make


@pytest.fixture(scope="session")
def scan(make_scan):
    return make_scan(0)


# ---- servers ---------------------------------------------------------------------------------------------------------


class Hold:
    """Lets a server hold every scan in the middle (held_server.py); its result is then the stored one."""

    def __init__(self, file: Path, result: Path):
        self._file = file
        self.env = {"HOLD_SCANS": str(file), "HELD_RESULT": str(result)}
        self.close()

    def close(self) -> None:
        self._file.touch()

    def release(self) -> None:
        self._file.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts servers, which are stopped after the tests."""
    servers = []

    def start(*arguments, **options):
        servers.append(Server(*arguments, log=tmp_path_factory.mktemp("log") / "log", **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def make_hold(results_folder, tmp_path_factory):
    """Closed at first."""
    return lambda: Hold(tmp_path_factory.mktemp("hold") / "hold", results_folder / "p1")


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def server(start, model, store_folder):
    return start("serve", model, "--out", store_folder, "--device", "cpu", "--upload-mb", 8)


@pytest.fixture(scope="session")
def done_job(server, scan):
    """A finished job that no test deletes."""
    return server.finish(scan)[0]


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def results_folder(model, make_scan, tmp_path_factory):
    """Results of two scans: one in its own folder, one with BIDS names."""
    import anofpdm

    folder, name = tmp_path_factory.mktemp("results"), "sub-07_ses-1"
    loaded = anofpdm.load(model, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)  # lesions are large, to be seen on pages
        first, second = (loaded.segment(make_scan(seed)) for seed in (1, 2))
    first.save(folder / "p1")
    in_bids = folder / "sub-07" / "ses-1" / "anat"
    second.save(in_bids, name, title=name)
    return folder


@pytest.fixture(scope="session")
def view_server(start, results_folder):
    return start("view", results_folder)
