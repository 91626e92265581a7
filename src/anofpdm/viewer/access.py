"""Who may use a server: accepted host names and the token."""

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import cookie_parser

from anofpdm.errors import ConfigError

MIN_TOKEN = 12  # characters


@dataclass(frozen=True)
class Access:
    host: str = "127.0.0.1"
    port: int = 8642
    token: str | None = None
    names: tuple[str, ...] = ()  # additional host names, e.g. of a proxy

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise ConfigError(f"--token: use at least {MIN_TOKEN} characters, or omit it to have one generated")

    def accepts_host(self, host: str) -> bool:
        """Any address of this machine, since addresses cannot be rebound; of names, only the configured ones."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").lower(), parts.port or 80
        except ValueError:
            return False
        if name in map(str.lower, self.names):
            return True
        own_names = () if is_loopback(self.host) else (self.host.lower(), socket.gethostname().lower())
        is_own = is_loopback(name) or name in own_names or (bool(own_names) and _address(name) is not None)
        return is_own and port == self.port

    @property
    def address(self) -> str:
        """Of the start page, with the token."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def cookie_name(self) -> str:
        return f"anofpdm-{self.port}"  # browsers share cookies between ports

    @property
    def cookie_value(self) -> str:
        """Derived from the token, which the cookie does not contain."""
        return hashlib.sha256(f"anofpdm cookie {self.token}".encode()).hexdigest()

    def is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def is_authorized(self, headers: Mapping[str, str]) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if self.token is None or (scheme.lower() == "bearer" and self.is_token(credentials.strip())):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(self.cookie_name, "")
        return hmac.compare_digest(cookie.encode(), self.cookie_value.encode())


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
