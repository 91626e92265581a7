"""From a command to a server that listens, and back."""

import contextlib
import logging
import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.errors import AnoFPDMError, ConfigError, ScanWarning
from anofpdm.util.files import folder_lock
from anofpdm.viewer.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from anofpdm.viewer.worker import Orders

GOODBYE_SECONDS = 3  # for answers under way when the server ends
KEEP_ALIVE_SECONDS = 15
Ready = Callable[[str], None]  # hears the address, with its token


@dataclass(frozen=True)
class Where:
    """What the command line says of the server's place."""

    host: str = "127.0.0.1"
    port: int = 8642
    token: str | None = None
    names: tuple[str, ...] = ()  # further names that browsers may use, e.g. of a proxy


def view(folder: Path, where: Where, on_ready: Ready) -> None:
    """Until it is stopped."""
    with _needing_the_extra():
        from anofpdm.viewer.niivue import niivue
        from anofpdm.viewer.view_app import view_app
    app = view_app(folder, niivue())
    with _listening(where) as listener:
        _run(app, where, listener, on_ready, Limits())


def serve(orders: "Orders", folder: Path, where: Where, limits: Limits, on_ready: Ready) -> None:
    """Until it is stopped. What is in the queue then is taken up by the next start."""
    with _needing_the_extra():
        from anofpdm.viewer.jobs import JobStore
        from anofpdm.viewer.niivue import niivue
        from anofpdm.viewer.runner import Runner
        from anofpdm.viewer.serve_app import serve_app
    warnings.simplefilter("ignore", ScanWarning)  # they are in the summary of each result
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _listening(where) as listener, folder_lock(folder):
        runner = Runner(JobStore(folder, limits.attempts), orders)
        try:
            runner.start()
            _run(serve_app(runner.store, runner, niivue(), limits), where, listener, on_ready, limits)
        finally:
            runner.stop()


def default_folder(model: Path) -> Path:
    """Where scans and results are kept: the user's own, one folder a model."""
    import hashlib

    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    told_apart = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:8]
    return Path(state) / "anofpdm" / f"{model.resolve().name}-{told_apart}"


def _run(app: "FastAPI", where: Where, listener: socket.socket, on_ready: Ready, limits: Limits) -> None:
    import uvicorn

    from anofpdm.viewer.guard import Access, Guard, is_loopback
    from anofpdm.viewer.pages import static

    token = where.token
    if token is None and not is_loopback(where.host):
        token = secrets.token_urlsafe(24)
    port = int(listener.getsockname()[1])
    access = Access(where.host, port, token, where.names)
    config = uvicorn.Config(
        Guard(app, access, static("login.html")),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="h11",
        lifespan="on",
        limit_concurrency=limits.connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    for name in ("uvicorn.error", "uvicorn", "python_multipart"):  # what they say may quote a request
        logging.getLogger(name).setLevel(logging.CRITICAL)
    on_ready(_address(where.host, port, token))
    uvicorn.Server(config).run(sockets=[listener])


def _address(host: str, port: int, token: str | None) -> str:
    host = socket.gethostname() if host in ("0.0.0.0", "::") else host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "")


@contextlib.contextmanager
def _listening(where: Where) -> Iterator[socket.socket]:
    """The port, before anything slow is done."""
    if where.token is not None and len(where.token) < 12:
        raise ConfigError("--token: a token of fewer than 12 letters is soon guessed; leave it out to have one made")
    try:
        family, _, _, _, place = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(place[:2], family=family, backlog=256)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ConfigError(f"{where.host}, port {where.port}: {reason}; choose another with --port or --host") from None
    with listener:
        yield listener


@contextlib.contextmanager
def _needing_the_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as problem:
        raise AnoFPDMError(f"the pages need more packages ({problem.name}): pip install 'anofpdm[serve]'") from None
