"""Access to the P4Runtime server: users at a Unix socket, clients with certificates."""

from __future__ import annotations

import contextlib
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from p4switch.cli.client import ClientError, GrpcClient
from p4switch.device.loading import Loader
from p4switch.p4runtime import server as server_module
from p4switch.p4runtime.server import AddressError, P4RuntimeServer
from p4switch.p4runtime.service import P4RuntimeService
from p4switch.p4runtime.tls import Tls, TlsError, channel_credentials
from p4switch.targets.v1model.engine import ControlError, EngineOptions
from tests.support.p4runtime_world import DEVICE, MemoryPlane

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH")


@contextlib.contextmanager
def serving(address: str, tls: Tls | None = None) -> Iterator[str]:
    """Serve a switch without a program; gives its address."""
    service = P4RuntimeService(DEVICE, Loader("interpreter", EngineOptions()), MemoryPlane())
    server = P4RuntimeServer(service, address, tls)
    try:
        yield address.replace(":0", f":{server.port}")
    finally:
        server.close()


def certify(folder: Path, name: str, authority: str | None = None) -> None:
    """Make NAME.pem and NAME.key, an authority's or certified by one, for localhost."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    asked = ("req", *key, "-keyout", f"{name}.key", "-subj", f"/CN={name}")
    if authority is None:
        openssl(*asked, "-x509", "-out", f"{name}.pem", "-days", "2")
        return
    openssl(*asked, "-out", f"{name}.csr")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    signed = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
    openssl(
        *("x509", "-req", "-in", f"{name}.csr", *signed),
        *("-out", f"{name}.pem", "-days", "2", "-extfile", "names"),
    )


def test_a_unix_socket_is_of_its_user_alone(tmp_path: Path) -> None:
    with serving(f"unix:{tmp_path}/s1"):
        assert stat.S_IMODE((tmp_path / "s1").stat().st_mode) == 0o600


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s1"
    with (
        serving(address),
        pytest.raises(AddressError, match="another process listens there"),
        serving(address),
    ):
        pass


def test_clients_need_a_certificate_of_the_authority(tmp_path: Path) -> None:
    certify(tmp_path, "ours")
    certify(tmp_path, "theirs")
    for name in ("switch", "controller"):
        certify(tmp_path, name, "ours")
    certify(tmp_path, "stranger", "theirs")
    ours = tmp_path / "ours.pem"

    def pair(name: str) -> tuple[Path, Path]:
        return tmp_path / f"{name}.pem", tmp_path / f"{name}.key"

    def connect(address: str, *files: Path | None) -> None:
        """Ask for something that is not served here: so a client that gets in is answered."""
        tls = channel_credentials(ours, *files) if files else None
        GrpcClient(address, tls).close()

    mutual = Tls(*pair("switch"), ours, client_auth=True)
    with serving("localhost:0", mutual) as address:
        with pytest.raises(ClientError, match="is no p4switch"):
            connect(address, *pair("controller"))
        for files in (pair("stranger"), (None, None), ()):
            with pytest.raises(ClientError, match="no switch answers"):
                connect(address, *files)
    with (
        serving("localhost:0", Tls(*pair("switch"))) as address,
        pytest.raises(ClientError, match="is no p4switch"),
    ):
        connect(address, None, None)


def test_invalid_tls_files_are_refused(tmp_path: Path) -> None:
    certify(tmp_path, "ours")
    certify(tmp_path, "theirs")
    pem, key, other = tmp_path / "ours.pem", tmp_path / "ours.key", tmp_path / "theirs.key"
    for tls, words in (
        (Tls(pem, tmp_path / "none"), "none cannot be read: No such file"),
        (Tls(pem, other), "expected a certificate and its key without a password"),
        (Tls(pem, key, key), "certificates of authorities, as PEM"),
        (Tls(pem, key, client_auth=True), "needs --grpc-server-cacert"),
    ):
        with pytest.raises(TlsError, match=words):
            tls.credentials()
    with pytest.raises(TlsError, match="none cannot be read"):
        channel_credentials(tmp_path / "none", None, None)


def test_so_many_clients_have_streams_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4switch.p4runtime.service.MAX_STREAMS", 2)
    service = P4RuntimeService(DEVICE, Loader("interpreter", EngineOptions()), MemoryPlane())
    for _ in range(2):
        service.join()
    with pytest.raises(ControlError, match="2 clients are connected already"):
        service.join()


def test_a_call_that_does_not_end_cannot_keep_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen once: a pending call outlived its cancellation."""
    stopped: list[float] = []

    class Stuck:
        """A server of gRPC whose calls do not end."""

        def __init__(self, *_: object, **__: object) -> None:
            self.server = make(*_, **__)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.server, name)

        def stop(self, grace: float) -> threading.Event:
            stopped.append(grace)
            self.server.stop(None)
            return threading.Event()

    make = grpc.server
    monkeypatch.setattr(grpc, "server", Stuck)
    monkeypatch.setattr(server_module, "STOP_SECONDS", 0.001)
    service = P4RuntimeService(DEVICE, Loader("interpreter", EngineOptions()), MemoryPlane())
    server = P4RuntimeServer(service, f"unix:{tmp_path}/s1")
    server.close()
    assert stopped == [0.2] + [0] * server_module.STOP_ATTEMPTS
    assert "do not end" in caplog.text
