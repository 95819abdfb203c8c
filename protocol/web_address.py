"""Where HTTP is served, and who may read there: everybody on loopback, else who has the token."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from dataclasses import dataclass

from protocol.errors import InputError

WEB_ADDRESS = "127.0.0.1:9680"
"""Where the controller serves if it is not said."""
TOKEN_VARIABLE = "HOPSUM_WEB_TOKEN"
TOKEN_COOKIE = "hopsum-token"
LEAST_TOKEN = 16
"""Characters of a token that somebody chooses."""
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class WebAddress:
    """`port` 0: any that is free. `token` empty: none is asked for."""

    host: str
    port: int
    token: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def url(self, port: int) -> str:
        """Return where a browser finds the page on the port that was bound."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def web_address(option: str, text: str) -> WebAddress:
    """Return the address that an option says, with a token unless it is loopback.

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
