"""TLS of P4Runtime: one's own certificate, and whose the other end must have."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc


class TlsError(ValueError):
    """Files that cannot be used for TLS; the message says which, and what is expected."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files, as of simple_switch_grpc's --grpc-server-ssl.

    `certificate`, `key`: the server's own. `authority`: whose certificates of clients it accepts.
    `client_auth`: whether a client must have one (mutual TLS).
    """

    certificate: Path
    key: Path
    authority: Path | None = None
    client_auth: bool = False

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a gRPC server takes. Raises TlsError for files that are no good."""
        if self.client_auth and self.authority is None:
            raise TlsError(
                "--grpc-server-with-client-auth needs --grpc-server-cacert: whose certificates "
                "clients must have"
            )
        _check(ssl.PROTOCOL_TLS_SERVER, self.certificate, self.key, self.authority)
        authority = None if self.authority is None else self.authority.read_bytes()
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            authority,
            require_client_auth=self.client_auth,
        )


def channel_credentials(
    authority: Path, certificate: Path | None, key: Path | None
) -> grpc.ChannelCredentials:
    """Return what a client's channel takes. Raises TlsError for files that are no good."""
    _check(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority)
    return grpc.ssl_channel_credentials(
        authority.read_bytes(),
        None if key is None else key.read_bytes(),
        None if certificate is None else certificate.read_bytes(),
    )


def _check(
    purpose: ssl._SSLMethod, certificate: Path | None, key: Path | None, authority: Path | None
) -> None:
    """Raise TlsError for what gRPC would find out at the first handshake, or end for."""
    files = [file for file in (certificate, key, authority) if file is not None]
    for file in files:
        try:
            file.read_bytes()
        except OSError as error:
            raise TlsError(f"TLS: {file} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(purpose)
    try:
        if certificate is not None:
            # Without a password, which it would ask for at the terminal.
            context.load_cert_chain(certificate, key, password="")
        if authority is not None:
            context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise TlsError(
            f"TLS: {', '.join(map(str, files))}: expected a certificate and its key without a "
            f"password, and certificates of authorities, as PEM ({error.reason or error})"
        ) from None
