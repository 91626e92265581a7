"""anofpdm serve: segment what is uploaded, in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from anofpdm.cli.options import Batch, Device
from anofpdm.cli.view import Host, Name, Open, Port, SetUp, Token, announce, log_to_terminal, set_up_niivue


def serve(
    model: Annotated[Path | None, typer.Argument(help="A trained and calibrated model.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for scans and results. Default: one of the user's.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8642,
    token: Token = None,
    name: Name = None,
    open_it: Open = False,
    engine: Annotated[
        str, typer.Option(help="diffusion, student, or auto: the student where the model has one.")
    ] = "auto",
    upload_mb: Annotated[int, typer.Option(min=1, help="The largest upload, all files of a scan together.")] = 1024,
    queue: Annotated[int, typer.Option(min=1, help="Scans that may wait; more are turned away.")] = 20,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the noise. Default: as calibrated.")] = None,
    batch: Batch = None,
    device: Device = "auto",
    set_up: SetUp = False,
) -> None:
    """A page on loopback: upload a scan, see how far it is, look at what was found. Scans are done one after another.

    Stopped or killed, the same command goes on: results are kept, and what was waiting still is. Ctrl-C: exit code 130.
    """
    if set_up:
        set_up_niivue()
        return
    from anofpdm.errors import ConfigError
    from anofpdm.viewer.limits import MIB, Limits
    from anofpdm.viewer.run import Where, default_folder
    from anofpdm.viewer.run import serve as run
    from anofpdm.viewer.worker import Orders

    if model is None:
        raise ConfigError("which model? Give the folder of a trained and calibrated model")
    log_to_terminal()
    folder = out or default_folder(model)
    limits = Limits(upload_bytes=upload_mb * MIB, waiting=queue)
    where = Where(host, port, token, tuple(name or ()))
    orders = Orders(model.resolve(), device, engine, seed, batch)
    run(orders, folder, where, limits, lambda address: announce(address, open_it, folder))
