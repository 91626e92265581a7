"""anofpdm serve: segment uploaded scans, in a browser."""

from pathlib import Path
from typing import Annotated

from typer import Option

from anofpdm.choices import Engine, Raw
from anofpdm.cli import options
from anofpdm.cli.view import Host, Name, Open, Port, SetUp, Token, announce, install_niivue, require_server_packages


def serve(
    model: options.OptionalModel = None,
    out: Annotated[
        Path | None, Option(help="Folder for scans and results. Default: one per model, under ~/.local/state.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8642,
    token: Token = None,
    name: Name = None,
    open_browser: Open = False,
    engine: options.EngineOption = Engine.AUTO,
    upload_mb: Annotated[int, Option(min=1, help="Maximum upload (MiB), all files of a scan together.")] = 1024,
    queue: Annotated[int, Option(min=1, help="Maximum number of queued scans; further uploads are refused.")] = 20,
    device: options.Device = "auto",
    set_up: SetUp = False,
    raw: options.RawOption = Raw.AUTO,
    seed: Annotated[int | None, Option(min=0, help="Noise seed.", rich_help_panel=options.DIFFUSION)] = None,
    batch: options.DiffusionBatch = None,
) -> None:
    """Segment scans that are uploaded in a browser, one after another, and show the results.

    Stop the server with Ctrl-C (exit code 130). Re-run the same command to resume: results and queue are kept.
    """
    if set_up:
        install_niivue()
        return
    from anofpdm.errors import ConfigError

    with require_server_packages():
        from anofpdm.viewer.access import Access
        from anofpdm.viewer.limits import MIB, Limits
        from anofpdm.viewer.server import default_folder, run_serve
        from anofpdm.viewer.worker import WorkerConfig

    if model is None:
        raise ConfigError("no model given; give the folder of a trained and calibrated model")
    access = Access(host, port, token, tuple(name or ()))
    folder = out or default_folder(model)
    limits = Limits(upload_bytes=upload_mb * MIB, waiting=queue)
    worker = WorkerConfig(model.resolve(), device, engine, seed, batch, raw)
    run_serve(worker, folder, access, limits, lambda address: announce(address, open_browser, folder))
