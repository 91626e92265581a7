"""`anofpdm` with a worker that holds every scan in the middle as long as a file exists.

Interruptible on any machine, without waiting for anything. With HELD_RESULT, a folder, the worker copies that result
instead of loading the model: a new worker then starts in a fraction of a second, because it does not import torch.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

from anofpdm.options import Raw
from anofpdm.scans.modalities import InputModalities

HOLD, RESULT = Path(os.environ["HOLD_SCANS"]), os.environ.get("HELD_RESULT")


def hold_in_the_middle_of_a_scan() -> None:
    from anofpdm.network.predictor import NoisePredictor

    predict = NoisePredictor.predict_pair

    def hold_and_predict(self, x, t, labels):
        while t > 0 and HOLD.exists():
            time.sleep(0.01)
        time.sleep(0.02)  # so that progress is reported
        return predict(self, x, t, labels)

    NoisePredictor.predict_pair = hold_and_predict  # type: ignore[method-assign]


class StoredModel:
    """Stands for a loaded model: its result for every scan is the stored one."""

    def __init__(self, folder: Path, _device: str):
        self.folder = folder

    def request(self, **_choices):
        return SimpleNamespace(inputs=InputModalities(("flair", "t2")), raw=Raw.NEVER)

    def segment(self, _files, *, progress, **_choices):
        while HOLD.exists():
            progress("segment", 1, 2)
            time.sleep(0.01)
        return self

    def save(self, out: Path, **_title) -> None:
        shutil.copytree(RESULT, out)


if __name__ == "__mp_main__":  # a worker: multiprocessing imports this file in it
    if RESULT is None:
        hold_in_the_middle_of_a_scan()
    else:
        replacement = ModuleType("anofpdm.segment.model")
        replacement.load = StoredModel  # type: ignore[attr-defined]
        sys.modules[replacement.__name__] = replacement

if __name__ == "__main__":
    from anofpdm.cli.main import main

    main()
