"""What every request passes before anything else sees it: whose page sent it, to which name, and with which token.

A page on loopback can be reached by any web site that the same browser shows. A name that leads to 127.0.0.1 (DNS
rebinding) is known by its Host header; a form or script of another site by its Origin.
"""

import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
import traceback
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("anofpdm.viewer")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
READING = ("GET", "HEAD", "OPTIONS")
OPEN_TO_ALL = "/static/"  # the looks of the page that asks for the token


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """Who may come in, and under which names the server is known."""

    host: str
    port: int
    token: str | None = None
    names: tuple[str, ...] = field(default=())  # further names, e.g. of a proxy

    def knows(self, host: str) -> bool:
        """An address cannot be rebound, a name can: so any address of this machine, and only names that were given."""
        name, port = _split(host)
        if name in {one.lower() for one in self.names}:
            return True
        if port != self.port:
            return False
        if is_loopback(self.host):
            return is_loopback(name)
        return is_loopback(name) or _is_address(name) or name in (self.host.lower(), socket.gethostname().lower())

    @property
    def cookie(self) -> str:
        return f"anofpdm-{self.port}"  # browsers share cookies between ports

    @property
    def pass_word(self) -> str:
        """What the cookie holds: proof of the token, not the token."""
        return hashlib.sha256(f"anofpdm cookie {self.token}".encode()).hexdigest()

    def is_token(self, said: str) -> bool:
        return self.token is not None and hmac.compare_digest(said.encode(), self.token.encode())

    def lets_in(self, headers: dict[str, str]) -> bool:
        if self.token is None:
            return True
        kind, _, said = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(said.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except Exception:  # a cookie of another server, written in its own way
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.pass_word.encode())


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access, login: Path):
        self._app, self._access, self._login = app, access, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks over web sockets
            return
        began, status = time.monotonic(), [0]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message = {**message, "headers": _with_ours(message.get("headers", []))}
            await send(message)

        try:
            if not await self._refused(scope, answer):
                await self._app(scope, receive, answer)
        except Exception as problem:  # its words may hold what a client sent: only where it happened is told
            lines = traceback.extract_tb(problem.__traceback__)[-4:]
            where = " ".join(f"{Path(one.filename).name}:{one.lineno}" for one in lines)
            LOG.error("%s at %s", type(problem).__name__, where)
            if not status[0]:
                await _say(answer, 500, "Something went wrong that should not have; the server's log says where.")
        LOG.debug("%s %s %d %.0f ms", scope["method"], _route(scope), status[0], 1000 * (time.monotonic() - began))

    async def _refused(self, scope: Scope, send: Send) -> bool:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._access.knows(host):
            await _say(send, 421, "The server is not known under this name; use the address that it printed.")
        elif scope["method"] not in READING and not _from_our_page(headers, host):
            await _say(send, 403, "This was asked by a page of another site; only the server's own page may.")
        elif scope["path"] == "/" and (said := _token_in(scope)):
            await self._log_in(said, scope, send)
        elif not scope["path"].startswith(OPEN_TO_ALL) and not self._access.lets_in(headers):
            await self._ask_for_token(scope, send)
        else:
            return False
        return True

    async def _log_in(self, said: str, scope: Scope, send: Send) -> None:
        """The printed address holds the token; the address bar shall not keep it."""
        if self._access.token is not None and not self._access.is_token(said):
            await self._ask_for_token(scope, send)
            return
        access = self._access
        cookie = f"{access.cookie}={access.pass_word}; Path=/; HttpOnly; SameSite=Strict; Max-Age=86400"
        headers = [(b"location", b"/"), (b"content-length", b"0")]
        if access.token is not None:
            headers.append((b"set-cookie", cookie.encode()))
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _ask_for_token(self, scope: Scope, send: Send) -> None:
        if scope["path"].startswith("/api") or scope["method"] not in READING:
            await _say(send, 401, "A token is needed: open the address that the server printed, or send it as Bearer.")
            return
        await _reply(send, 401, "text/html; charset=utf-8", self._login.read_bytes())


def _with_ours(headers: Any) -> list[tuple[bytes, bytes]]:
    """Our headers, save where the answer has its own."""
    there = {key.lower() for key, _ in headers}
    ours = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
    return [*headers, *((key, value) for key, value in ours if key not in there)]


def _from_our_page(headers: dict[str, str], host: str) -> bool:
    """Programs send no Origin; browsers do, and cannot be made to lie."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


def _token_in(scope: Scope) -> str:
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]


def _split(host: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").lower(), parts.port or 80
    except ValueError:
        return "", 0


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _route(scope: Scope) -> str:
    """As it is written in the program: a path of a client's may hold anything, an id among it."""
    return getattr(scope.get("route"), "path", "-")


async def _say(send: Send, status: int, sentence: str) -> None:
    await _reply(send, status, "application/json", json.dumps({"error": sentence, "field": None}).encode())


async def _reply(send: Send, status: int, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
