"""anofpdm view: show results in a browser."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

Host = Annotated[str, Option(help="Address to listen on. Any address other than loopback requires a token.")]
Port = Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")]
Token = Annotated[
    str | None,
    Option(
        envvar="ANOFPDM_TOKEN",
        help="Access token, at least 12 characters. Default: none on loopback, elsewhere generated and printed.",
    ),
]
Name = Annotated[
    list[str] | None, Option(help="Additional host name that browsers may use, e.g. of a proxy. Repeatable.")
]
Open = Annotated[bool, Option("--open/--no-open", help="Open the page in the default browser.")]
SetUp = Annotated[bool, Option("--set-up", help="Install the volume viewer (niivue) with npm, then exit.")]


def view(
    folder: Annotated[Path | None, Argument(metavar="DIR", help="The --out folder of anofpdm segment.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8642,
    token: Token = None,
    name: Name = None,
    open_browser: Open = False,
    set_up: SetUp = False,
) -> None:
    """Show segmented scans in a browser: a list, a volume viewer and the report of each scan. Read-only.

    Stop the server with Ctrl-C (exit code 130).
    """
    if set_up:
        install_niivue()
        return
    from anofpdm.errors import ConfigError

    with require_server_packages():
        from anofpdm.viewer.access import Access
        from anofpdm.viewer.server import run_view

    if folder is None:
        raise ConfigError("no results given; give the --out folder of 'anofpdm segment'")
    access = Access(host, port, token, tuple(name or ()))
    run_view(folder, access, lambda address: announce(address, open_browser))


def install_niivue() -> None:
    from anofpdm.viewer.niivue import install_niivue

    print(f"the volume viewer is installed: {install_niivue()}")


@contextlib.contextmanager
def require_server_packages() -> Iterator[None]:
    from anofpdm.errors import AnoFPDMError

    try:
        yield
    except ImportError as error:
        raise AnoFPDMError(f"the server needs more packages ({error.name}): pip install 'anofpdm[serve]'") from None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


def announce(address: str, open_browser: bool, folder: Path | None = None) -> None:
    """Flushed, because scripts wait for the address."""
    if folder is not None:
        print(f"scans and results are stored in {folder}")
    print(f"open {address}", flush=True)
    print("Ctrl-C stops the server", flush=True)
    if open_browser:
        import threading
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
