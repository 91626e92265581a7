"""Starts and runs the servers of `anofpdm view` and `anofpdm serve`."""

import contextlib
import hashlib
import logging
import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from anofpdm.errors import ConfigError, ScanWarning
from anofpdm.util.files import folder_lock
from anofpdm.viewer.access import Access, is_loopback
from anofpdm.viewer.connections import limited_protocol
from anofpdm.viewer.guard import Guard
from anofpdm.viewer.jobs import JobStore
from anofpdm.viewer.limits import Limits
from anofpdm.viewer.niivue import find_niivue
from anofpdm.viewer.runner import Runner
from anofpdm.viewer.serve_app import create_serve_app
from anofpdm.viewer.view_app import create_view_app
from anofpdm.viewer.worker import WorkerConfig

SHUTDOWN_SECONDS = 3  # for responses in progress
KEEP_ALIVE_SECONDS = 15
OnReady = Callable[[str], None]  # called with the address, which includes the token


def run_view(folder: Path, access: Access, on_ready: OnReady) -> None:
    """Runs until it is stopped."""
    app = create_view_app(folder, find_niivue())
    with _listen(access) as listener:
        _run(app, access, listener, on_ready, Limits())


def run_serve(worker: WorkerConfig, folder: Path, access: Access, limits: Limits, on_ready: OnReady) -> None:
    """Runs until it is stopped. The next start continues with the queue."""
    warnings.simplefilter("ignore", ScanWarning)  # they are in the summary of each result
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _listen(access) as listener, folder_lock(folder):
        runner = Runner(JobStore(folder), worker)
        try:
            runner.start()
            _run(create_serve_app(runner, find_niivue(), limits), access, listener, on_ready, limits)
        finally:
            runner.stop()


def default_folder(model: Path) -> Path:
    """Folder of the user for scans and results, one per model."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    suffix = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:8]
    return Path(state) / "anofpdm" / f"{model.resolve().name}-{suffix}"


def _run(app: FastAPI, access: Access, listener: socket.socket, on_ready: OnReady, limits: Limits) -> None:
    access = replace(access, port=int(listener.getsockname()[1]))
    if access.token is None and not is_loopback(access.host):
        access = replace(access, token=secrets.token_urlsafe(24))
    for name in ("uvicorn.error", "uvicorn", "python_multipart"):  # their messages can quote a request
        logging.getLogger(name).setLevel(logging.CRITICAL)
    on_ready(access.address)
    uvicorn.Server(create_config(Guard(app, access), limits)).run(sockets=[listener])


def create_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=limited_protocol(limits),
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


@contextlib.contextmanager
def _listen(access: Access) -> Iterator[socket.socket]:
    """Bind the port before anything slow starts."""
    try:
        family, _, _, _, address = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=256)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{access.host}, port {access.port}: {reason}; choose another --port or --host") from None
    with listener:
        yield listener
