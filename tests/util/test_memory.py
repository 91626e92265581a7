"""Freed memory stays with the process."""

import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from anofpdm.util.memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for turn in range(12):
    if turn == 2:
        start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [np.ones(16 << 20, np.uint8) for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="only for the C library of Linux"
)
def test_memory_is_faulted_in_once():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True).stdout)
        for how in ("keep", "return")
    )
    assert kept < 100 < returned
