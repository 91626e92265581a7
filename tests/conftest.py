import os
import signal

# Tensors in tests are small: more threads would only get in each other's way, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background of a script: tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)  # the same examples every time; elsewhere, new ones are tried
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
