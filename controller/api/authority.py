"""A private authority for a cluster's TLS, and the certificates that it issues (X.509, PEM).

Keys are of P-256, as TLS stacks all know it. A host's certificate names the host, a person's their
role, a server's the addresses at which it is reached.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hopsum.protocol.errors import InputError, OperationError
from hopsum.protocol.roles import ROLE_URI, Role

AUTHORITY = "authority"
MOST_NAME = 64
"""Characters of a common name (RFC 5280, ub-common-name)."""
_NAME = rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MOST_NAME - 1}}}"
_DNS_NAME = r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*"
EARLIER = timedelta(hours=1)
"""How far certificates are backdated, to tolerate clock skew."""


class AuthorityError(OperationError):
    """A certificate cannot be made; the message names the file and says why."""


class CertificateNameError(InputError):
    """A name or address that a certificate cannot have."""


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """Subject of a certificate: a name, addresses of a server, the role of a person."""

    name: str
    addresses: Sequence[str] = ()
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that verifies others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def open_authority(folder: Path, days: int, now: datetime | None = None) -> Authority:
    """Return the authority of a folder, created if missing. Raises AuthorityError."""
    paths = _paths(folder, AUTHORITY)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if all(path.exists() for path in paths):
            return _read_authority(*paths)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name_of("hopsum authority")
        made = (
            _builder(name, name, key.public_key(), days, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        _write(paths, made, key)
    except OSError as error:
        raise AuthorityError(f"{error.filename or folder}: {error.strerror}") from None
    return Authority(made, key)


def certify(
    folder: Path,
    authority: Authority,
    subject: CertificateSubject,
    days: int,
    now: datetime | None = None,
) -> bool:
    """Write NAME.pem and NAME.key unless they exist; return whether they were written.

    Raises AuthorityError, CertificateNameError.
    """
    paths = _paths(folder, subject.name)
    if all(path.exists() for path in paths):
        return False
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(address) for address in subject.addresses]
    if subject.role is not None:
        names.append(x509.UniformResourceIdentifier(ROLE_URI + subject.role))
    if not names:
        names.append(x509.DNSName(subject.name))
    issuer = authority.certificate.subject
    builder = (
        _builder(_name_of(subject.name), issuer, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            # The controller is a client of the switches, and a server for all others.
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    try:
        _write(paths, builder.sign(authority.key, hashes.SHA256()), key)
    except OSError as error:
        raise AuthorityError(f"{error.filename or folder}: {error.strerror}") from None
    return True


def days_left(certificate: Path, now: datetime | None = None) -> float:
    """Return the remaining validity of a certificate in days. Raises AuthorityError."""
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
    except OSError as error:
        raise AuthorityError(f"{certificate}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise AuthorityError(f"{certificate}: expected a certificate (PEM)") from None
    return (read.not_valid_after_utc - (now or datetime.now(UTC))) / timedelta(days=1)


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    if not re.fullmatch(_NAME, name):
        raise CertificateNameError(
            f"name {name!r:.80}: expected 1 to {MOST_NAME} letters, digits, `.`, `_`, `@` or `-`, "
            "the first of them a letter or digit"
        )
    return folder / f"{name}.pem", folder / f"{name}.key"


def _name_of(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    if not re.fullmatch(_DNS_NAME, address):
        raise CertificateNameError(f"address {address!r:.80}: expected an IP address or a DNS name")
    return x509.DNSName(address)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    days: int,
    now: datetime | None,
) -> x509.CertificateBuilder:
    now = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _read_authority(certificate: Path, key: Path) -> Authority:
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError):
        raise AuthorityError(
            f"{certificate} and {key}: expected a certificate and its key (PEM), without a password"
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise AuthorityError(f"{key}: expected an elliptic-curve key")
    if private.public_key() != read.public_key():
        raise AuthorityError(f"{key} is not the key of {certificate}")
    return Authority(read, private)


def _write(
    paths: tuple[Path, Path], certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Write the key, readable by its owner only, then the certificate."""
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    paths[1].unlink(missing_ok=True)
    descriptor = os.open(paths[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private)
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
