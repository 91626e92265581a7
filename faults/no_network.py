"""An environment in which any attempt to reach the network fails and is recorded."""

import contextlib
import os
from pathlib import Path

HOOK = '''
import os, sys

def _refuse(event, args):
    """An audit hook of the socket module, which no library can avoid. Loopback is allowed."""
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


class NoNetwork:
    """Environment variables for a process; its caches are empty, so that nothing downloaded earlier is used."""

    def __init__(self, folder: Path):
        self.attempts_file = folder / "attempts"
        (folder / "hook").mkdir(parents=True)
        (folder / "home").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        python_path = os.environ.get("PYTHONPATH")
        self.environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "hook"), python_path))),
            "ATTEMPTS": str(self.attempts_file),
            **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NILEARN_DATA"), str(folder / "home")),
        }

    @property
    def attempts(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return self.attempts_file.read_text().splitlines()
        return []
