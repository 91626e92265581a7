"""A world without a network for the processes of a test: any attempt to reach it fails, and is written down."""

import contextlib
import os
import subprocess
from functools import cache
from pathlib import Path

HOOK = '''
import os, sys

def _refuse(event, args):
    """Of the socket module itself, so that no library gets around it. Loopback is no network."""
    if event == "socket.connect" or event == "socket.sendto":
        host = args[1][0] if isinstance(args[1], tuple) else "127.0.0.1"
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    host = host.decode("latin-1") if isinstance(host, bytes) else host
    if host in (None, "", "localhost", "::1") or str(host).startswith("127."):
        return
    with open(os.environ["ATTEMPTS"], "a") as file:
        file.write(f"{event} {host}\\n")
    raise OSError("there is no network in this test")

sys.addaudithook(_refuse)
'''
ALONE = (("unshare", "-n"), ("unshare", "-r", "-n"))  # a network of its own, without a way out


class NoNetwork:
    """Empty caches too: what was fetched on another day is not at hand."""

    def __init__(self, folder: Path):
        self.attempts_file = folder / "attempts"
        (folder / "hook").mkdir(parents=True)
        (folder / "home").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        before = os.environ.get("PYTHONPATH")
        self.environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "hook"), before))),
            "ATTEMPTS": str(self.attempts_file),
            **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NILEARN_DATA"), str(folder / "home")),
        }

    @property
    def attempts(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return self.attempts_file.read_text().splitlines()
        return []


@cache
def cut_off() -> tuple[str, ...]:
    """Words before a command that leave it no network at all; none where the system does not allow it."""
    for words in ALONE:
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return ()
