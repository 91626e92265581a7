import pytest

from anofpdm.choices import Preset
from anofpdm.method import mask
from anofpdm.network import config


@pytest.fixture(scope="module", autouse=True)
def small_networks():
    """A network that trains in seconds, although a step is taken to last an hour."""
    with pytest.MonkeyPatch.context() as patch:
        narrow = {"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (2,)}
        patch.setitem(config.PRESETS, Preset.TINY, narrow)
        patch.setattr("anofpdm.fit.run_fit.measure_step", lambda *_: 3600.0)
        patch.setattr(mask, "MEDIAN", 1)  # slices are so small that a median would leave nothing of a lesion
        yield
