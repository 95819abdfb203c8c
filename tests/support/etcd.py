"""A real etcd, of a test's own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hopsum.controller.ha.etcd import Etcd, EtcdAddress, EtcdError
from hopsum.protocol.channel import Tls
from tests.support.certificates import certify
from tests.support.machine import loopback, until

needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="etcd is not installed (`make test-tools` installs it)"
)


@dataclass
class EtcdServer:
    """A member of its own cluster. `address`: with a name that no other test has."""

    process: subprocess.Popen[bytes]
    address: EtcdAddress

    def pause(self) -> None:
        """Let it answer nothing, as if it were cut off."""
        self.process.send_signal(signal.SIGSTOP)
        # A thread on another processor runs on until it takes the signal.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """End a pause."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def etcd_server(folder: Path, *, tls: bool = False) -> Iterator[EtcdServer]:
    """Run an etcd, whose files are in a folder.

    `tls`: its clients need certificates; a folder has those of an authority `ca` and a `client`.
    """
    [host] = loopback(1)
    clients, peers = f"http{'s' * tls}://{host}:2379", f"http://{host}:2380"
    secure: list[str] = []
    ours = None
    if tls:
        certify(folder, "ca")
        certify(folder, "server", "ca", names=f"IP:{host}")
        certify(folder, "client", "ca")
        secure = [
            "--client-cert-auth", f"--trusted-ca-file={folder / 'ca.pem'}",
            f"--cert-file={folder / 'server.pem'}", f"--key-file={folder / 'server.key'}",
        ]  # fmt: skip
        ours = Tls(*(folder / file for file in ("ca.pem", "client.pem", "client.key")))
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            ["etcd", "--data-dir", str(folder / "etcd"),
             "--listen-client-urls", clients, "--advertise-client-urls", clients,
             "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
             "--initial-cluster", f"default={peers}", *secure],
            stdout=log, stderr=log,
        )  # fmt: skip
    server = EtcdServer(process, EtcdAddress(((host, 2379),), f"test-{secrets.token_hex(4)}", ours))
    etcd = Etcd(server.address)

    def answers() -> bool:
        assert process.poll() is None, (folder / "etcd.log").read_text()
        try:
            etcd.get("ready")
        except EtcdError:
            return False
        return True

    try:
        until(answers, "an answer of etcd")
        yield server
    finally:
        process.kill()
        process.wait()
