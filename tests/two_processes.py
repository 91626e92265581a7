"""Runs a command in two processes, with the environment that torchrun gives them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

COMMAND = """
import anofpdm.study.comparison.protocol
from anofpdm.cli.main import main
"""
# Forked after the imports, which take most of the time.
FORKED = """
import os, sys

children = []
for rank in range(2):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    children += [os.fork()]
    if not children[-1]:
        main()
        sys.exit(0)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def run_in_two_processes(*words: object, before: str = "", code: str = COMMAND) -> str:
    """The output of `anofpdm WORDS`, or of another main() that `code` defines. `before` is run first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    done = subprocess.run(
        [sys.executable, "-c", before + code + FORKED, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=Path(__file__).parents[1],
        env={**os.environ, **address},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
