"""Veth pairs for the time of a measurement."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def veth_pairs(stem: str, count: int) -> Iterator[list[tuple[str, str]]]:
    """Pairs (switch side, host side), up, IPv6 off, gone afterwards."""
    pairs = [(f"{stem}s{i}", f"{stem}h{i}") for i in range(1, count + 1)]
    made = []
    try:
        for pair in pairs:
            subprocess.run(
                ["ip", "link", "add", pair[0], "type", "veth", "peer", "name", pair[1]], check=True
            )
            made.append(pair[0])
            for name in pair:
                subprocess.run(
                    ["sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1"], check=True
                )
                subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield pairs
    finally:
        for name in made:
            subprocess.run(["ip", "link", "delete", name], check=True)
