"""HTTP addresses and access: open on loopback, elsewhere only with the token."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import socket
from dataclasses import dataclass

from hopsum.protocol.errors import InputError

WEB_ADDRESS = "127.0.0.1:9680"
"""Default address of the controller's page."""
TOKEN_VARIABLE = "HOPSUM_WEB_TOKEN"
TOKEN_COOKIE = "hopsum-token"
LEAST_TOKEN = 16
"""Minimum length of a configured token."""
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(?P<port>[0-9]{1,5})")

_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class WebAddress:
    """`port` 0: any free port. `token` empty: no token needed."""

    host: str
    port: int
    token: str = ""

    def admits(self, token: str) -> bool:
        """Return whether a request's token is valid."""
        # Headers may have bytes that are no UTF-8.
        given = token.encode(errors="surrogateescape")
        return hmac.compare_digest(given, self.token.encode())

    def url(self, port: int) -> str:
        """Return the page's URL on the bound port."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_host(header: str) -> bool:
    """Return whether a request's Host header has a name or an address, perhaps with a port."""
    return _host_of(header) is not None


def refusal_of_host(header: str) -> tuple[int, str] | None:
    """Return status and reason if a server on loopback must refuse a request's Host header.

    A page of another site may resolve its own name to 127.0.0.1 (DNS rebinding) and read what is
    served there.
    """
    host = _host_of(header)
    if host is None:
        return 400, "Host: expected NAME or NAME:PORT"
    if not is_loopback(host):
        return 403, f"this server answers at localhost only, not at {header!r:.80}"
    return None


def _host_of(header: str) -> str | None:
    found = _HOST.fullmatch(header)
    if found is None or int(found["port"] or 0) > 0xFFFF:
        return None
    return found["host"].strip("[]").lower()


def why_not_bound(error: OSError) -> str:
    """Return why an address cannot be bound; errors of name lookup have negative numbers."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def web_address(option: str, text: str) -> WebAddress:
    """Parse the address of an option; any address but loopback gets a token.

    The token is HOPSUM_WEB_TOKEN, else a new one. Raises InputError.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 0xFFFF:
        raise InputError(
            f"{option} {text!r:.60}: expected HOST:PORT, such as {WEB_ADDRESS}, with a port from "
            "0 (any) to 65535"
        )
    host = found["host"].strip("[]")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and (len(token) < LEAST_TOKEN or not re.fullmatch("[A-Za-z0-9_-]+", token)):
        raise InputError(
            f"{TOKEN_VARIABLE} has {len(token)} characters: expected at least {LEAST_TOKEN}, all "
            "letters, digits, - and _; unset it, and a token is made up"
        )
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(LEAST_TOKEN)
    return WebAddress(host, int(found["port"]), token)
