"""Middleware that checks every request first: host name, origin and token.

Any web site open in the same browser can send requests to a server on loopback. A foreign name that resolves to
127.0.0.1 (DNS rebinding) is recognised by the Host header; a form or script of another site, by the Origin header.
"""

import logging
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anofpdm.report.render import render
from anofpdm.viewer.access import Access
from anofpdm.viewer.worker import locate_error

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


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets here
            return
        started = False

        async def respond(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (self._refuse(scope) or self._app)(scope, receive, respond)
        except Exception as error:  # its text can quote the request: only its location is logged
            LOG.error("%s", locate_error(error))
            if not started:
                await _error(500, "Internal error; the log of the server shows where.")(scope, receive, respond)

    def _refuse(self, scope: Scope) -> Response | None:
        """Response to a request that must not reach the application."""
        access, is_safe = self._access, scope["method"] in SAFE_METHODS
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not access.accepts_host(headers.get("host", "")):
            return _error(421, "Unknown host name; use the address that the server printed.")
        if not is_safe and not _is_same_origin(headers):
            return _error(403, "The request comes from a page of another site and was refused.")
        if scope["path"] == "/" and token:
            if access.token is None or access.is_token(token):
                return self._log_in()
        elif scope["path"].startswith(PUBLIC_PREFIX) or access.is_authorized(headers):
            return None
        if scope["path"].startswith("/api") or not is_safe:
            return _error(
                401, "A token is required: open the address that the server printed, or send it as a Bearer token."
            )
        return HTMLResponse(render("viewer_login.html"), 401)

    def _log_in(self) -> Response:
        """Store the login in a cookie and redirect, which removes the token from the address bar."""
        response = RedirectResponse("/", 303)
        if self._access.token is not None:
            name, value = self._access.cookie_name, self._access.cookie_value
            response.set_cookie(name, value, max_age=86400, httponly=True, samesite="strict")
        return response


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message, "field": None}, status)


def _is_same_origin(headers: dict[str, str]) -> bool:
    """Programs send no Origin; browsers always do."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
