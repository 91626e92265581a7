"""Middleware that checks every request first: host name, origin and token.

Any web site open in the same browser can send requests to a server on loopback. A foreign name that resolves to
127.0.0.1 (DNS rebinding) is recognised by the Host header; a form or script of another site, by the Origin header.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anofpdm.report.render import render
from anofpdm.viewer.access import Access
from anofpdm.viewer.limits import error_response

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
        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refuse(scope) or self._app)(scope, receive, respond)

    def _refuse(self, scope: Scope) -> Response | None:
        """Response to a request that must not reach the application."""
        access, is_safe = self._access, scope["method"] in SAFE_METHODS
        headers, token = Headers(scope=scope), QueryParams(scope["query_string"]).get("token", "")
        if not access.accepts_host(headers.get("host", "")):
            return error_response(421, "Unknown host name; use the address that the server printed.")
        if not is_safe and not _is_same_origin(headers):
            return error_response(403, "The request comes from a page of another site and was refused.")
        if scope["path"] == "/" and access.is_token(token):
            return self._log_in()
        if scope["path"].startswith(PUBLIC_PREFIX) or access.is_authorized(headers):
            return None
        if scope["path"].startswith("/api") or not is_safe:
            return error_response(
                401, "A token is required: open the address that the server printed, or send it as a Bearer token."
            )
        return HTMLResponse(render("viewer_login.html"), 401)

    def _log_in(self) -> Response:
        """Store the login in a cookie and redirect, which removes the token from the address bar."""
        response = RedirectResponse("/", 303)
        name, value = self._access.cookie_name, self._access.cookie_value
        response.set_cookie(name, value, max_age=86400, httponly=True, samesite="strict")
        return response


def _is_same_origin(headers: Mapping[str, str]) -> bool:
    """Programs send no Origin; browsers always do."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
