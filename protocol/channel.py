"""What both ends of the controller's gRPC channel share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc

MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)


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
    """The files that HOPSUM_TLS_AUTHORITY, _CERTIFICATE and _KEY name; None if none is set."""
    names = (os.environ.get(f"HOPSUM_TLS_{part}") for part in ("AUTHORITY", "CERTIFICATE", "KEY"))
    files = [Path(name) if name else None for name in names]
    return Tls(*files) if any(files) else None


def open_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """A channel to the controller; ControllerError for a file that cannot be read."""
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        _read(tls.authority), _read(tls.key), _read(tls.certificate)
    )
    return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """The controller's end: with an authority, only agents that it has certified get in.

    Raises ControllerError for a file that is missing or cannot be read.
    """
    key, certificate = _read(tls.key), _read(tls.certificate)
    if key is None or certificate is None:
        raise ControllerError("TLS: the controller needs a certificate and its key")
    authority = _read(tls.authority)
    return grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=authority is not None
    )


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise ControllerError(f"TLS: {path} cannot be read: {error.strerror}") from None


class ControllerError(RuntimeError):
    """The controller refused, or cannot be reached; the message says what and where."""


def in_words(error: grpc.RpcError) -> str:
    """What a failed call says."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
