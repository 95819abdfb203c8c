"""Pairs of virtual Ethernet interfaces, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.machine import interface_names, wait_until_up


def possible() -> bool:
    """Whether veth pairs can be made here."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def skip_without_veths() -> None:
    """Skip the test where no veth pairs can be made."""
    if not possible():
        pytest.skip("needs root and iproute2 for veth pairs")


def keep_order(interface: str) -> None:
    """Let one processor receive all frames, where the kernel can (RPS).

    Otherwise whichever processor sends them on a veth receives them, too: frames of a shaped queue,
    which any of them may send, arrive out of order if one of them is held up.
    """
    for mask in Path("/sys/class/net", interface, "queues").glob("rx-*/rps_cpus"):
        mask.write_text("1")


@contextmanager
def veth_pairs(count: int, mtu: int = 1500) -> Iterator[list[tuple[str, str]]]:
    """Make pairs that are up, with IPv6 off; gone afterwards."""
    pairs: list[tuple[str, str]] = []
    try:
        for _ in range(count):
            a, b = interface_names("a", "b")
            subprocess.run(["ip", "link", "add", a, "type", "veth", "peer", "name", b], check=True)
            pairs.append((a, b))
            for name in (a, b):
                setting = f"net.ipv6.conf.{name}.disable_ipv6=1"
                subprocess.run(["sysctl", "-qw", setting], check=True)
                subprocess.run(["ip", "link", "set", name, "mtu", str(mtu), "up"], check=True)
                keep_order(name)
        wait_until_up(*(name for pair in pairs for name in pair))
        yield pairs
    finally:
        for a, _ in pairs:
            if Path("/sys/class/net", a).exists():
                subprocess.run(["ip", "link", "delete", a], check=True)
