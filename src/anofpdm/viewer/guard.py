"""Middleware that checks every request first: host name, origin and token.

Any web site open in the same browser can send requests to a server on loopback. A foreign name that resolves to
127.0.0.1 (DNS rebinding) is recognised by the Host header; a form or script of another site, by the Origin header.
"""

import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
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
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PUBLIC_PREFIX = "/static/"  # the login page needs its style sheet


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """Accepted host names and the token."""

    host: str
    port: int
    token: str | None = None
    names: tuple[str, ...] = ()  # additional host names, e.g. of a proxy

    def accepts_host(self, host: str) -> bool:
        """Any address of this machine, since addresses cannot be rebound; of names, only the configured ones."""
        name, port = _split_host(host)
        if name in {given.lower() for given in self.names}:
            return True
        if port != self.port:
            return False
        if is_loopback(self.host):
            return is_loopback(name)
        return is_loopback(name) or _is_address(name) or name in (self.host.lower(), socket.gethostname().lower())

    @property
    def cookie_name(self) -> str:
        return f"anofpdm-{self.port}"  # browsers share cookies between ports

    @property
    def cookie_value(self) -> str:
        """Derived from the token, which the cookie does not contain."""
        return hashlib.sha256(f"anofpdm cookie {self.token}".encode()).hexdigest()

    def is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def is_authorized(self, headers: dict[str, str]) -> bool:
        if self.token is None:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(credentials.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except Exception:  # a cookie of another server on this host, in an unknown format
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.cookie_value.encode())


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access, login: Path):
        self._app, self._access, self._login = app, access, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            return
        start, status = time.monotonic(), [0]

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message = {**message, "headers": _add_headers(message.get("headers", []))}
            await send(message)

        try:
            if not await self._reject(scope, respond):
                await self._app(scope, receive, respond)
        except Exception as error:  # its text can quote the request: only its location is logged
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            location = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
            LOG.error("%s at %s", type(error).__name__, location)
            if not status[0]:
                await _send_error(respond, 500, "Internal error; the log of the server shows where.")
        LOG.debug("%s %s %d %.0f ms", scope["method"], _route(scope), status[0], 1000 * (time.monotonic() - start))

    async def _reject(self, scope: Scope, send: Send) -> bool:
        """Respond to a request that must not reach the application; returns whether it was one."""
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._access.accepts_host(host):
            await _send_error(send, 421, "Unknown host name; use the address that the server printed.")
        elif scope["method"] not in SAFE_METHODS and not _is_same_origin(headers, host):
            await _send_error(send, 403, "The request comes from a page of another site and was refused.")
        elif scope["path"] == "/" and (token := _query_token(scope)):
            await self._log_in(token, scope, send)
        elif not scope["path"].startswith(PUBLIC_PREFIX) and not self._access.is_authorized(headers):
            await self._require_token(scope, send)
        else:
            return False
        return True

    async def _log_in(self, token: str, scope: Scope, send: Send) -> None:
        """Store the login in a cookie and redirect, which removes the token from the address bar."""
        access = self._access
        if access.token is not None and not access.is_token(token):
            await self._require_token(scope, send)
            return
        cookie = f"{access.cookie_name}={access.cookie_value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=86400"
        headers = [(b"location", b"/"), (b"content-length", b"0")]
        if access.token is not None:
            headers.append((b"set-cookie", cookie.encode()))
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _require_token(self, scope: Scope, send: Send) -> None:
        if scope["path"].startswith("/api") or scope["method"] not in SAFE_METHODS:
            message = "A token is required: open the address that the server printed, or send it as a Bearer token."
            await _send_error(send, 401, message)
            return
        await _send_body(send, 401, "text/html; charset=utf-8", self._login.read_bytes())


def _add_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the security headers that the response does not set itself."""
    headers = list(headers)
    present = {key.lower() for key, _ in headers}
    ours = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
    return [*headers, *((key, value) for key, value in ours if key not in present)]


def _is_same_origin(headers: dict[str, str], host: str) -> bool:
    """Programs send no Origin; browsers always do."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


def _query_token(scope: Scope) -> str:
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]


def _split_host(host: str) -> tuple[str, int]:
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
    """The route's pattern: the requested path itself can contain an id."""
    return getattr(scope.get("route"), "path", "-")


async def _send_error(send: Send, status: int, message: str) -> None:
    await _send_body(send, status, "application/json", json.dumps({"error": message, "field": None}).encode())


async def _send_body(send: Send, status: int, media_type: str, body: bytes) -> None:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
