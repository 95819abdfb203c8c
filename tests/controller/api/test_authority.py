"""An authority and its certificates: what they name, how long they hold; TLS takes them."""

from __future__ import annotations

import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socketpair

import pytest
from cryptography import x509

from hopsum.controller.api.authority import (
    AuthorityError,
    CertificateNameError,
    CertificateSubject,
    certify,
    days_left,
    open_authority,
)
from hopsum.protocol.channel import Tls, check_tls
from hopsum.protocol.roles import Role


def names(path: Path) -> tuple[str, list[str]]:
    """Common name and subjectAltNames of a certificate."""
    read = x509.load_pem_x509_certificate(path.read_bytes())
    extension = read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    [common] = read.subject
    return str(common.value), [str(name.value) for name in extension.value]


def test_certificates_name_hosts_addresses_and_roles(tmp_path: Path) -> None:
    authority = open_authority(tmp_path, 10)
    for whom in (
        CertificateSubject("controller", ["192.0.2.1", "::1", "ctl.example"]),
        CertificateSubject("h1"),
        CertificateSubject("alice", role=Role.OPERATOR),
    ):
        assert certify(tmp_path, authority, whom, 10)
        check_tls(
            Tls(
                tmp_path / "authority.pem", *(tmp_path / f"{whom.name}.{x}" for x in ("pem", "key"))
            )
        )
    assert names(tmp_path / "controller.pem") == (
        "controller",
        ["192.0.2.1", "::1", "ctl.example"],
    )
    assert names(tmp_path / "h1.pem") == ("h1", ["h1"])
    assert names(tmp_path / "alice.pem") == ("alice", ["urn:hopsum:role:operator"])


def test_existing_certificates_are_kept(tmp_path: Path) -> None:
    first = open_authority(tmp_path, 10)
    assert certify(tmp_path, first, CertificateSubject("h1"), 10)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = open_authority(tmp_path, 10)
    assert again.certificate == first.certificate
    assert not certify(tmp_path, again, CertificateSubject("h1"), 10)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    certify(tmp_path / "new", open_authority(tmp_path / "new", 1), CertificateSubject("h1"), 1)
    for name in ("authority.key", "h1.key"):
        assert (tmp_path / "new" / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("server_of", "client_of", "name", "agree"),
    [
        ("ours", "ours", "localhost", True),
        ("theirs", "ours", "localhost", False),
        ("ours", "theirs", "localhost", False),
        ("ours", "ours", "other.example", False),
    ],
)
def test_tls_takes_what_its_authority_has_certified(
    tmp_path: Path, server_of: str, client_of: str, name: str, agree: bool
) -> None:
    for folder in ("ours", "theirs"):
        authority = open_authority(tmp_path / folder, 2)
        certify(tmp_path / folder, authority, CertificateSubject("controller", ["localhost"]), 2)
        certify(tmp_path / folder, authority, CertificateSubject("h1"), 2)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # With 1.3 a client learns only later that its certificate is refused.
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(tmp_path / "ours" / "authority.pem")
    server.load_cert_chain(
        tmp_path / server_of / "controller.pem", tmp_path / server_of / "controller.key"
    )
    client = ssl.create_default_context(cafile=str(tmp_path / "ours" / "authority.pem"))
    client.load_cert_chain(tmp_path / client_of / "h1.pem", tmp_path / client_of / "h1.key")
    ours, theirs = socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        if agree:
            client.wrap_socket(ours, server_hostname=name).close()
        else:
            with pytest.raises((ssl.SSLError, OSError)):
                client.wrap_socket(ours, server_hostname=name)
    finally:
        ours.close()
        thread.join()


def test_days_left_are_counted(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    certify(tmp_path, open_authority(tmp_path, 30, now), CertificateSubject("h1"), 20, now)
    assert days_left(tmp_path / "h1.pem", now + timedelta(days=5)) == 15
    assert days_left(tmp_path / "authority.pem", now + timedelta(days=31)) == -1


@pytest.mark.parametrize("name", ["", "a/b", ".a", "x" * 65, "\N{SNOWMAN}", "a\n"])
def test_names_unfit_for_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateNameError, match="expected 1 to 64 letters"):
        certify(tmp_path, open_authority(tmp_path, 1), CertificateSubject(name), 1)


@pytest.mark.parametrize("address", ["", "ä.example", "a..b", "a b", "x" * 300])
def test_an_invalid_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(CertificateNameError, match="expected an IP address or a DNS name"):
        certify(tmp_path, open_authority(tmp_path, 1), CertificateSubject("c", [address]), 1)


def test_an_invalid_authority_is_reported(tmp_path: Path) -> None:
    open_authority(tmp_path / "a", 1)
    open_authority(tmp_path / "b", 1)
    (tmp_path / "a" / "authority.key").write_bytes((tmp_path / "b" / "authority.key").read_bytes())
    with pytest.raises(AuthorityError, match="is not the key of"):
        open_authority(tmp_path / "a", 1)
    (tmp_path / "b" / "authority.pem").write_text("nothing")
    with pytest.raises(AuthorityError, match="expected a certificate and its key"):
        open_authority(tmp_path / "b", 1)
    with pytest.raises(AuthorityError, match="expected a certificate"):
        days_left(tmp_path / "b" / "authority.pem")
    (tmp_path / "file").touch()
    with pytest.raises(AuthorityError, match="file"):
        open_authority(tmp_path / "file" / "below", 1)
