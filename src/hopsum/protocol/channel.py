"""Addresses, gRPC options and TLS files of the controller's channel, for both of its ends."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.errors import OperationError
from hopsum.protocol.liveness import CONNECT_TIMEOUT, PING_SECONDS, PING_TIMEOUT

MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Neither a machine without power nor a process that hangs closes its connections.
    ("grpc.keepalive_time_ms", round(1000 * PING_SECONDS)),
    ("grpc.http2.ping_timeout_ms", round(1000 * PING_TIMEOUT)),
    ("grpc.min_reconnect_backoff_ms", round(1000 * CONNECT_TIMEOUT)),
)
"""gRPC options of the channels of agents and commands."""
SERVER_OPTIONS = (
    *CHANNEL_OPTIONS[:2],
    ("grpc.so_reuseport", 0),
    # Otherwise gRPC disconnects clients that ping more often than every five minutes.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
)


_R = TypeVar("_R")

TLS_HINTS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "; the controller's certificate is not one of the authority given (tls-authority), or does "
        "not name the address used",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "; the controller does not use TLS: omit the TLS files here, or give it its own",
    ),
    (
        "Socket closed",
        "; if the controller uses TLS, it requires a certificate of its authority: "
        "--tls-authority, --tls-certificate and --tls-key of hopsum-agent, HOPSUM_TLS_AUTHORITY, "
        "_CERTIFICATE and _KEY for commands",
    ),
)
"""gRPC's messages when the two ends disagree about TLS, and their explanation.

(With TLS 1.3 a server checks the client's certificate after the handshake: the client only sees
that the connection is closed.)
"""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of one end of a channel.

    `authority`: whose certificates it accepts; `certificate` and `key`: its own. An agent may do
    without its own where the controller has no authority; the controller always has its own.
    """

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def tls_of_environment() -> Tls | None:
    """Return the files that HOPSUM_TLS_AUTHORITY, _CERTIFICATE and _KEY name.

    None if none is set.
    """
    names = (os.environ.get(f"HOPSUM_TLS_{part}") for part in ("AUTHORITY", "CERTIFICATE", "KEY"))
    files = [Path(name) if name else None for name in names]
    return Tls(*files) if any(files) else None


def addresses_in(text: str) -> tuple[str, ...]:
    """Return the addresses of possible controllers, from one or several separated by commas.

    Raises ControllerError where there is none.
    """
    addresses = tuple(filter(None, (part.strip() for part in text.split(","))))
    if not addresses:
        raise ControllerError(
            f"controller {text!r}: expected host:port or unix:PATH, or several with commas between"
        )
    return addresses


def open_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """Return a channel to the controller; ControllerError as `check_tls`."""
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, client_credentials(tls), options=CHANNEL_OPTIONS)


def client_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Return a client's credentials; ControllerError as in `check_tls`."""
    check_tls(tls)
    return grpc.ssl_channel_credentials(
        _read(tls.authority), _read(tls.key), _read(tls.certificate)
    )


def ask_controller(addresses: str, tls: Tls | None, question: Callable[[Any], _R]) -> _R:
    """Call the first controller that answers (`addresses_in`).

    One that cannot be reached is passed over; one that refuses has answered. Raises
    ControllerError.
    """
    silent: list[str] = []
    for address in addresses_in(addresses):
        with open_channel(address, tls) as channel:
            try:
                return question(pb_grpc.ControllerStub(channel))
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                if code in REFUSALS:
                    raise ControllerError(in_words(error)) from None
                words = f"controller at {address}: {in_words(error)}"
                if code is not grpc.StatusCode.UNAVAILABLE:
                    raise ControllerError(words) from None
                silent.append(words)
    raise ControllerError("\n".join(silent))


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return the server's credentials.

    With an authority, only agents that it certified may connect. Raises ControllerError for a file
    that is missing, and as `check_tls`.
    """
    check_tls(tls)
    key, certificate = _read(tls.key), _read(tls.certificate)
    if key is None or certificate is None:
        raise ControllerError(
            "TLS: the controller needs a certificate and its key: --tls-certificate and --tls-key"
        )
    authority = _read(tls.authority)
    return grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=authority is not None
    )


def check_tls(tls: Tls) -> None:
    """Raise ControllerError for an unreadable or invalid file.

    gRPC finds out at the first handshake, or never (a key alone ends the process).
    """
    for path in (tls.authority, tls.certificate, tls.key):
        _read(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.authority is not None:
        try:
            context.load_verify_locations(tls.authority)
        except ssl.SSLError:
            raise ControllerError(
                f"TLS: {tls.authority}: expected certificates of authorities (PEM), found none"
            ) from None
    if tls.certificate is None and tls.key is None:
        return
    if tls.certificate is None or tls.key is None:
        given, missing = (
            ("key", "certificate") if tls.certificate is None else ("certificate", "key")
        )
        raise ControllerError(
            f"TLS: a {given} without its {missing}; give both, tls-{given} and tls-{missing}"
        )
    try:
        # Without a password, which it would ask for at the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except ssl.SSLError as error:
        raise ControllerError(
            f"TLS: {tls.certificate} and {tls.key}: expected a certificate (PEM) and its key, "
            f"without a password ({error.reason or error})"
        ) from None


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise ControllerError(f"TLS: {path} cannot be read: {error.strerror}") from None


REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.ABORTED,
    }
)
"""Codes of what the controller answers; calls that fail on their way have others, of gRPC."""


class ControllerError(OperationError):
    """The controller refused a request, or is unreachable."""


def in_words(error: grpc.RpcError) -> str:
    """Return the message of a failed call: the controller's sentence, if it has refused it.

    Otherwise the code and message of gRPC, with a hint if TLS seems to be the reason.
    """
    if not isinstance(error, grpc.Call):
        return str(error)
    if error.code() in REFUSALS:
        return error.details() or error.code().name
    words = f"{error.code().name}: {error.details()}"
    return words + next((hint for sign, hint in TLS_HINTS if sign in words), "")
