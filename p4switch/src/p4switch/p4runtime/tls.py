"""TLS of P4Runtime: own certificate, and the authority of the peer's."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc


class TlsError(ValueError):
    """Files cannot be used for TLS; the message names them and what was expected."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files, as of simple_switch_grpc's --grpc-server-ssl.

    `certificate`, `key`: of the server. `authority`: issuer of accepted clients' certificates.
    `client_auth`: whether clients must have one (mutual TLS).
    """

    certificate: Path
    key: Path
    authority: Path | None = None
    client_auth: bool = False

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a gRPC server. Raises TlsError for unusable files."""
        if self.client_auth and self.authority is None:
            raise TlsError(
                "--grpc-server-with-client-auth needs --grpc-server-cacert, the authority "
                "that issues clients' certificates"
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
    """Return credentials for a client's channel. Raises TlsError for unusable files."""
    _check(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority)
    return grpc.ssl_channel_credentials(
        authority.read_bytes(),
        None if key is None else key.read_bytes(),
        None if certificate is None else certificate.read_bytes(),
    )


def _check(
    purpose: ssl._SSLMethod, certificate: Path | None, key: Path | None, authority: Path | None
) -> None:
    """Raise TlsError for errors that gRPC would find only at the first handshake, or abort for."""
    files = [file for file in (certificate, key, authority) if file is not None]
    for file in files:
        try:
            file.read_bytes()
        except OSError as error:
            raise TlsError(f"TLS: {file} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(purpose)
    try:
        if certificate is not None:
            # An empty password: otherwise it would prompt at the terminal.
            context.load_cert_chain(certificate, key, password="")
        if authority is not None:
            context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise TlsError(
            f"TLS: {', '.join(map(str, files))}: expected a certificate and its key without a "
            f"password, and certificates of authorities, as PEM ({error.reason or error})"
        ) from None
