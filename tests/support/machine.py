"""Resources of a machine that several tests, and runs of tests, share.

Addresses, ports and names come from here, so that nothing is used twice at the same moment: not by
the workers of pytest-xdist, and not by a second `make test` in parallel. A name in the abstract
namespace of Unix sockets reserves each: the kernel frees it with the process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hopsum.network.model import Network

PATIENCE = 300.0
"""Seconds until a wait is given up. Only a hung process takes as long, however busy the machine."""

_reserved: list[socket.socket] = []
_free_addresses: list[str] = []


def until(true: Callable[[], bool], what: str) -> None:
    """Return when something is true, which is asked again and again."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s for {what}"
        threading.Event().wait(0.02)


def wait_until_up(*interfaces: str) -> None:
    """Return when interfaces have a carrier and a queue: until then the kernel drops frames.

    Asked over netlink: an interface is up in sysfs a moment before its queue takes frames.
    """
    for interface in interfaces:
        until(lambda name=interface: _takes_frames(name), f"{interface} to come up")  # type: ignore[misc]


def _takes_frames(interface: str) -> bool:
    command = ["ip", "-json", "link", "show", "dev", interface]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [state] = json.loads(shown)
    return bool(state["operstate"] == "UP" and state["qdisc"] != "noop")


def unique(stem: str) -> str:
    """Return a unique name."""
    return f"{stem}-{secrets.token_hex(6)}"


def interface_names(*stems: str) -> list[str]:
    """Return unique names of interfaces; a stem has at most five characters."""
    token = secrets.token_hex(5)
    return [f"{token}{stem}" for stem in stems]


def loopback(count: int) -> list[str]:
    """Return IPv4 addresses of this machine that nobody else uses: every port there is free."""
    while len(_free_addresses) < count:
        # 127.0.0.0/16 is what programs that are no tests choose.
        net = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}"
        if _reserve(net):
            _free_addresses.extend(f"{net}.{host}" for host in range(1, 255))
    taken = _free_addresses[:count]
    del _free_addresses[:count]
    return taken


def on_loopback(network: Network) -> Network:
    """The network with addresses of this machine that nobody else uses."""
    addresses = loopback(len(network.hosts))
    hosts = {
        name: replace(host, ip=address)
        for (name, host), address in zip(network.hosts.items(), addresses, strict=True)
    }
    return replace(network, hosts=hosts)


def own_port() -> int:
    """Return a TCP port that nobody else uses, at any address: for programs that choose that.

    It is below those that Linux gives to connections and to who binds port 0.
    """
    while True:
        port = 10_000 + secrets.randbelow(9_000)
        if _reserve(f"port {port}"):
            with socket.socket() as probe:
                try:
                    probe.bind(("0.0.0.0", port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                else:
                    return port


def _reserve(what: str) -> bool:
    """Whether something was free and is this process's now, until it ends."""
    guard = socket.socket(socket.AF_UNIX)
    try:
        guard.bind(f"\0hopsum-tests/{what}")
    except OSError as error:
        guard.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    _reserved.append(guard)
    return True


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file for the block, after those who had it before."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
