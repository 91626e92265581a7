"""anofpdm view: look at results in a browser."""

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on; anything but loopback demands a token.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any that is free.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="ANOFPDM_TOKEN", help="What browsers must show. Made up and printed where one is needed."),
]
Name = Annotated[list[str] | None, typer.Option(help="Another name that browsers may use, e.g. a proxy's.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser of this machine.")]
SetUp = Annotated[bool, typer.Option("--set-up", help="Fetch the volume viewer (niivue) with npm, then stop.")]


def view(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="The --out folder of anofpdm segment.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8642,
    token: Token = None,
    name: Name = None,
    open_it: Open = False,
    set_up: SetUp = False,
) -> None:
    """A page on loopback with the results in a folder: a list, a volume viewer and the report of each. It only reads.

    Ctrl-C ends it, with exit code 130.
    """
    if set_up:
        set_up_niivue()
        return
    from anofpdm.errors import ConfigError
    from anofpdm.viewer.run import Where
    from anofpdm.viewer.run import view as run

    if folder is None:
        raise ConfigError("which results? Give the --out folder of 'anofpdm segment'")
    log_to_terminal()
    run(folder, Where(host, port, token, tuple(name or ())), lambda address: announce(address, open_it))


def set_up_niivue() -> None:
    from anofpdm.viewer.niivue import set_up

    print(f"the volume viewer is set up: {set_up()}")


def announce(address: str, open_it: bool, folder: Path | None = None) -> None:
    """Flushed: whoever started this may wait for the line."""
    if folder is not None:
        print(f"scans and results are kept in {folder}")
    print(f"open {address}", flush=True)
    print("Ctrl-C ends the server", flush=True)
    if open_it:
        import threading
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def log_to_terminal() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
