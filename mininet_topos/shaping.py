"""Interfaces made fit for packet work, and links made slow: ethtool and tc, in batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

OFFLOADS = ("tso", "gso", "gro", "lro", "ufo", "tx", "rx", "sg")
QUEUE_FRAMES = 1000
BURST_SECONDS = 0.002
HYSTERESIS = Path("/sys/module/sch_htb/parameters/htb_hysteresis")
"""Whether a class of HTB may send a whole burst at a time. The kernel has one for all interfaces.

Without it every frame on a busy link waits for a timer of its own; on two cores those timers cost
more than the switches and agents do. Burst by burst, the rate is the same.
"""
FRAME_BYTES = 1514


def offload_command(interface: str) -> list[str]:
    """ethtool's arguments that switch off whatever merges, splits or leaves out checksums.

    With segmentation offload on, BMv2 captures 32 packets a burst; with checksum offload on, frames
    reach a user-space switch without checksums.
    """
    command = ["ethtool", "-K", interface]
    for feature in OFFLOADS:
        command += [feature, "off"]
    return command


def shaping_lines(interface: str, rate: float) -> list[str]:
    """Lines for `tc -batch` that hold what leaves an interface at `rate` bits per second (HTB)."""
    burst = max(2 * FRAME_BYTES, int(rate * BURST_SECONDS / 8))
    bits = int(rate)
    return [
        f"qdisc add dev {interface} root handle 1: htb default 1",
        f"class add dev {interface} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit "
        f"burst {burst} cburst {burst}",
        f"qdisc add dev {interface} parent 1:1 handle 10: pfifo limit {QUEUE_FRAMES}",
    ]


def neighbour_lines(interface: str, others: Iterable[tuple[str, str]]) -> list[str]:
    """Lines for `ip -batch` that make the (IPv4, MAC) of the others permanent neighbours."""
    return [
        f"neighbour replace {ip} lladdr {mac} dev {interface} nud permanent" for ip, mac in others
    ]


def route_lines(own: str, routes: Iterable[tuple[str, str, str]]) -> list[str]:
    """Lines for `ip -batch`: routes as (address, gateway, interface), sent from address `own`."""
    return [
        f"route replace {target} "
        + (f"via {gateway} " if gateway != target else "")
        + f"dev {interface} src {own}"
        + (" onlink" if gateway != target else "")
        for target, gateway, interface in routes
    ]
