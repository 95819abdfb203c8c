"""Temporary veth pairs for measurements."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def veth_pairs(stem: str, count: int) -> Iterator[list[tuple[str, str]]]:
    """Provide pairs (switch side, host side) that are up, without IPv6; remove them afterwards."""
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
        for name in (name for pair in pairs for name in pair):
            # The kernel drops frames until it has noticed the carrier.
            while Path("/sys/class/net", name, "operstate").read_text().strip() != "up":
                threading.Event().wait(0.005)
        yield pairs
    finally:
        for name in made:
            subprocess.run(["ip", "link", "delete", name], check=True)
