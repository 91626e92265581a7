"""Commands in this process: starting a new one takes seconds."""

import contextlib
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from anofpdm.choices import Preset
from anofpdm.cli.main import app
from anofpdm.network.config import PRESETS

FAST = ("--device", "cpu", "--no-report", "--no-pictures", "--raw", "never")  # options of `segment`


def run(*words: object, code: int = 0) -> Result:
    """`main` only adds a signal handler to `app`."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done


@contextlib.contextmanager
def smaller_preset() -> Iterator[None]:
    """`--preset tiny` with fewer weights, for speed; `bench` uses the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, Preset.TINY, {"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (2,)})
        yield
