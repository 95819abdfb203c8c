"""Network namespaces in the place of machines, with cables between them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.machine import PATIENCE

MANAGEMENT = "eth0"


@dataclass
class Machines:
    """Namespaces by a machine's name; each has a folder for its files, and what runs there."""

    folder: Path
    namespaces: Mapping[str, str]
    bridge: str
    """The namespace of the management network."""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def home(self, name: str) -> Path:
        """Where a machine has its files."""
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    def run(
        self, name: str, command: Sequence[str], **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The result of a command on a machine, in its folder."""
        return subprocess.run(
            ["ip", "netns", "exec", self.namespaces[name], *command],
            cwd=self.home(name),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def start(self, name: str, command: Sequence[str]) -> Path:
        """Start a command on a machine, which runs until the end; return its log."""
        log = self.home(name) / f"log-{len(self.running)}"
        with log.open("wb") as out:
            self.running.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.namespaces[name], *command],
                    cwd=self.home(name),
                    stdout=out,
                    stderr=out,
                )
            )
        return log

    @contextlib.contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """Cut a machine off from the management network while the block runs."""
        inside(self.bridge, "ip", "link", "set", name, "down")
        try:
            yield
        finally:
            inside(self.bridge, "ip", "link", "set", name, "up")

    def cable(self, a: tuple[str, str], b: tuple[str, str]) -> None:
        """Join two interfaces, (machine, name) each, which are made and are up then."""
        ends = [(self.namespaces[name], interface) for name, interface in (a, b)]
        (first, left), (second, right) = ends
        ip(
            "link",
            "add",
            left,
            "netns",
            first,
            "type",
            "veth",
            "peer",
            "name",
            right,
            "netns",
            second,
        )
        for namespace, interface in ends:
            inside(namespace, "sysctl", "-qw", f"net.ipv6.conf.{interface}.disable_ipv6=1")
            for offload in ("tso", "gso", "gro"):
                inside(namespace, "ethtool", "-K", interface, offload, "off")
            inside(namespace, "ip", "link", "set", interface, "up")


@contextlib.contextmanager
def machines(folder: Path, addresses: Mapping[str, str]) -> Iterator[Machines]:
    """Make machines that reach each other at addresses (with prefix length) of a management net."""
    token = secrets.token_hex(4)
    bridge = f"hopsum-{token}"
    made = Machines(folder, {name: f"hopsum-{token}-{name}" for name in addresses}, bridge)
    try:
        ip("netns", "add", bridge)
        inside(bridge, "ip", "link", "add", "br0", "type", "bridge")
        inside(bridge, "ip", "link", "set", "br0", "up")
        for name, address in addresses.items():
            namespace = made.namespaces[name]
            ip("netns", "add", namespace)
            inside(namespace, "ip", "link", "set", "lo", "up")
            pair = ("link", "add", MANAGEMENT, "netns", namespace, "type", "veth")
            ip(*pair, "peer", "name", name, "netns", bridge)
            inside(bridge, "ip", "link", "set", name, "master", "br0", "up")
            inside(namespace, "ip", "address", "add", address, "dev", MANAGEMENT)
            inside(namespace, "ip", "link", "set", MANAGEMENT, "up")
        yield made
    finally:
        for process in reversed(made.running):
            process.send_signal(signal.SIGTERM)
        for process in made.running:
            process.wait(PATIENCE)
        present = subprocess.run(
            ["ip", "netns", "list"], capture_output=True, text=True, check=True
        )
        names = {line.split()[0] for line in present.stdout.splitlines() if line}
        for namespace in (*made.namespaces.values(), bridge):
            if namespace in names:
                ip("netns", "delete", namespace)


def ip(*arguments: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def inside(namespace: str, *command: str) -> None:
    """Run a command in a namespace."""
    ip("netns", "exec", namespace, *command)
