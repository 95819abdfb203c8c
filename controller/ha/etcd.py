"""Client of etcd, over any of its endpoints.

etcd (https://etcd.io) is a replicated key-value store with leases and transactions; this speaks
its JSON gateway (API v3, etcd 3.4 and newer) through etcd3gw.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hopsum.protocol.channel import Tls
from hopsum.protocol.errors import InputError, OperationError
from hopsum.protocol.extras import require

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

SCHEMES = ("etcd", "etcds")
DEFAULT_PORT = 2379
TIMEOUT = 1.0
"""Timeout of one endpoint, in seconds."""
PAGE = 200
"""Maximum number of keys in one answer."""
MOST_CHANGES = 100
"""Maximum operations of one transaction; etcd's default limit is 128."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_R = TypeVar("_R")


class EtcdAddressError(InputError):
    """An invalid etcd address."""


class EtcdError(OperationError):
    """No etcd endpoint answers, or etcd rejects a request."""


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Location of a cluster's state. `name` distinguishes the clusters of one etcd."""

    endpoints: tuple[tuple[str, int], ...]
    name: str
    tls: Tls | None = None

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.endpoints)
        return f"{SCHEMES[self.tls is not None]}://{hosts}/{self.name}"

    def key(self, *parts: str) -> str:
        """Return a key of this cluster."""
        return "/".join(("/hopsum", self.name, *parts))


def is_etcd(text: str) -> bool:
    """Whether a text is an address of etcd, and not a file."""
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def etcd_address(text: str) -> EtcdAddress:
    """Parse the address `etcd://HOST:PORT,HOST:PORT/NAME`.

    `etcds://` speaks TLS, with the files that HOPSUM_ETCD_AUTHORITY, HOPSUM_ETCD_CERTIFICATE and
    HOPSUM_ETCD_KEY name. Raises EtcdAddressError.
    """
    expected = f"{text!r}: expected etcd://HOST:PORT[,HOST:PORT...]/NAME (etcds:// for TLS)"
    if not is_etcd(text):
        raise EtcdAddressError(expected)
    scheme, _, rest = text.partition("://")
    hosts, _, name = rest.partition("/")
    if not _NAME.fullmatch(name):
        raise EtcdAddressError(
            f"{expected}; the name (letters, digits, '.', '_', '-') identifies one of the "
            "clusters that share an etcd"
        )
    endpoints = []
    for host in hosts.split(","):
        try:
            parts = urlsplit(f"//{host}")
            port = parts.port
        except ValueError:
            raise EtcdAddressError(f"{expected}; {host!r} is not HOST:PORT") from None
        if not parts.hostname or parts.netloc != host or "@" in host:
            raise EtcdAddressError(f"{expected}; {host!r} is not HOST:PORT")
        endpoints.append((parts.hostname, port or DEFAULT_PORT))
    return EtcdAddress(tuple(endpoints), name, _tls() if scheme == "etcds" else None)


def _tls() -> Tls:
    names = (os.environ.get(f"HOPSUM_ETCD_{part}") for part in ("AUTHORITY", "CERTIFICATE", "KEY"))
    return Tls(*(Path(name) if name else None for name in names))


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value. `created`: etcd's revision at the key's creation; `lease`: 0 if none."""

    value: bytes
    created: int
    lease: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Precondition of a change: `key` exists since revision `created`."""

    key: str
    created: int


class Etcd:
    """A client of etcd, of one thread. Every method blocks, and raises EtcdError.

    An endpoint that does not answer within TIMEOUT seconds is passed over, so a change may have
    happened although another endpoint was asked for it too: all changes here may happen twice.
    """

    def __init__(self, address: EtcdAddress) -> None:
        require("etcd3gw", "jobs in etcd")
        self.address = address
        self._clients = [_client(host, port, address.tls) for host, port in address.endpoints]

    def get(self, key: str) -> Entry | None:
        """Return the value of a key, None if it does not exist."""
        found = self._ask(lambda client: client.get(key, metadata=True))
        if not found:
            return None
        value, about = found[0]
        return Entry(value, int(about["create_revision"]), int(about.get("lease", 0)))

    def below(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with a prefix, in order, and their values."""
        found: dict[str, bytes] = {}
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        start = prefix
        while True:
            page = self._ask(
                lambda client, start=start: client.get(  # type: ignore[misc]
                    start, True, "ascend", "key", range_end=end, limit=PAGE
                )
            )
            found |= {about["key"].decode(): value for value, about in page}
            if len(page) < PAGE:
                return found
            start = page[-1][1]["key"].decode() + "\0"

    def create(self, key: str, value: str, lease: int) -> bool:
        """Create a key bound to a lease; return whether it did not exist."""
        from etcd3gw.lease import Lease

        return bool(self._ask(lambda client: client.create(key, value, Lease(lease, client))))

    def change(
        self, puts: Mapping[str, bytes], deletes: Collection[str] = (), fence: Fence | None = None
    ) -> bool:
        """Set and delete keys in one transaction if the fence holds; return whether it did."""
        changes: list[dict[str, Any]] = [
            {"request_put": {"key": _base64(key.encode()), "value": _base64(value)}}
            for key, value in puts.items()
        ]
        changes += [{"request_delete_range": {"key": _base64(key.encode())}} for key in deletes]
        compare = []
        if fence is not None:
            compare.append(
                {
                    "key": _base64(fence.key.encode()),
                    "target": "CREATE",
                    "result": "EQUAL",
                    "create_revision": fence.created,
                }
            )
        transaction = {"compare": compare, "success": changes, "failure": []}
        reply = self._ask(lambda client: client.transaction(transaction))
        return bool(reply.get("succeeded", False))

    def grant(self, seconds: int) -> int:
        """Grant a lease that expires after `seconds` unless refreshed; return its id."""
        return int(self._ask(lambda client: client.lease(seconds).id))

    def refresh(self, lease: int) -> bool:
        """Refresh a lease; return whether it still exists."""
        from etcd3gw.lease import Lease

        return self._ask(lambda client: Lease(lease, client).refresh()) > 0

    def revoke(self, lease: int) -> None:
        """Revoke a lease, and with it the keys bound to it."""
        from etcd3gw.lease import Lease

        self._ask(lambda client: Lease(lease, client).revoke())

    def _ask(self, question: Callable[[Etcd3Client], _R]) -> _R:
        """Try the endpoints, first the one that answered last, until one answers."""
        from etcd3gw.exceptions import Etcd3Exception
        from requests.exceptions import RequestException

        silent = []
        for client in list(self._clients):
            try:
                answer = question(client)
            except (Etcd3Exception, RequestException) as error:
                silent.append(f"{client.host}:{client.port}: {_in_short(error)}")
                self._clients.append(self._clients.pop(0))
            else:
                return answer
        raise EtcdError(f"etcd: {'; '.join(silent)}")


def _client(host: str, port: int, tls: Tls | None) -> Etcd3Client:
    import requests
    from etcd3gw.client import Etcd3Client

    session = requests.Session()
    session.trust_env = False  # no proxies between a controller and its etcd
    if tls is not None and tls.authority is not None:
        session.verify = str(tls.authority)
    if tls is not None and tls.certificate is not None and tls.key is not None:
        session.cert = (str(tls.certificate), str(tls.key))
    protocol = "http" if tls is None else "https"
    return Etcd3Client(host, port, protocol, timeout=TIMEOUT, api_path="/v3/", session=session)


def _in_short(error: Exception) -> str:
    """Return the message of a failed request, in one line."""
    detail = getattr(error, "detail_text", None) or str(error) or type(error).__name__
    if "timed out" in detail:
        return f"no answer within {TIMEOUT:g} s"
    if "refused" in detail:
        return "connection refused"
    return " ".join(detail.split())[:200]


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
