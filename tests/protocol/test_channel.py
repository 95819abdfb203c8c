"""A client's error when the two ends of a channel do not agree on TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.channel import ControllerError, Tls, in_words, open_channel, server_credentials
from tests.support.machine import PATIENCE


def certify(folder: Path, name: str) -> Tls:
    """A certificate that is its own authority, for localhost."""
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    pem = folder / f"{name}.pem"
    return Tls(pem, pem, folder / f"{name}.key")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Tls, Tls]]:
    """The address of a server that wants certificates, its files, and those of a stranger."""
    ours, theirs = certify(tmp_path, "ours"), certify(tmp_path, "theirs")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("localhost:0", server_credentials(ours))
    server.start()
    yield f"localhost:{port}", ours, theirs
    server.stop(None).wait()


def complaint(address: str, tls: Tls | None) -> str:
    """The error of a call without an answer."""
    with open_channel(address, tls) as channel, pytest.raises(grpc.RpcError) as caught:
        pb_grpc.ControllerStub(channel).Status(pb.StatusRequest(), timeout=PATIENCE)
    return in_words(caught.value)


def test_a_tls_mismatch_names_what_to_check(
    secure: tuple[str, Tls, Tls],
) -> None:
    address, ours, theirs = secure
    assert complaint(address, ours).startswith("UNIMPLEMENTED")
    wanted = "it requires a certificate of its authority: --tls-authority"
    assert wanted in complaint(address, None)
    assert wanted in complaint(address, Tls(ours.authority, theirs.certificate, theirs.key))
    assert "is not one of the authority given" in complaint(address, Tls(theirs.authority))


def test_tls_to_a_server_without(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("localhost:0")
    server.start()
    received = complaint(f"localhost:{port}", certify(tmp_path, "ours"))
    server.stop(None).wait()
    assert "the controller does not use TLS" in received


def test_invalid_tls_files_are_refused(tmp_path: Path) -> None:
    """Each is reported at once, at both ends: gRPC notices late, or aborts the process."""
    ours, theirs = certify(tmp_path, "ours"), certify(tmp_path, "theirs")
    (tmp_path / "junk").write_bytes(b"\xff\x00-----BEGIN CERTIFICATE-----")
    (tmp_path / "empty").touch()
    secret = tmp_path / "secret.key"
    subprocess.run(
        ["openssl", "ec", "-in", "ours.key", "-aes128", "-passout", "pass:four", "-out", secret],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    pem, key = ours.certificate, ours.key
    for authority, certificate, key_given, words in (
        (tmp_path / "none", pem, key, "none cannot be read: No such file"),
        (tmp_path, pem, key, "cannot be read: Is a directory"),
        (tmp_path / "junk", pem, key, "junk: expected certificates of authorities"),
        (tmp_path / "empty", pem, key, "empty: expected certificates of authorities"),
        (key, pem, key, "ours.key: expected certificates of authorities"),
        (pem, pem, tmp_path / "none", "none cannot be read: No such file"),
        (pem, tmp_path / "junk", key, "junk and .*ours.key: expected a certificate"),
        (pem, pem, tmp_path / "empty", "empty: expected a certificate .* and its key"),
        (pem, pem, theirs.key, "and its key, without a password"),
        (pem, pem, secret, "and its key, without a password"),
        (pem, None, key, "a key without its certificate; give both"),
        (pem, pem, None, "a certificate without its key; give both"),
    ):
        files = Tls(authority, certificate, key_given)
        with pytest.raises(ControllerError, match=f"TLS: .*{words}|TLS: {words}"):
            open_channel("localhost:1", files)
        with pytest.raises(ControllerError, match=f"TLS: .*{words}|TLS: {words}"):
            server_credentials(files)
    with pytest.raises(ControllerError, match="the controller needs a certificate and its key"):
        server_credentials(Tls(pem))
