"""Configuration of interfaces, in batches: ethtool, neighbours and routes."""

from __future__ import annotations

from collections.abc import Iterable

ORDER_FRAMES = (
    'for queue in /sys/class/net/"$0"/queues/rx-*/rps_cpus; '
    'do test ! -e "$queue" || echo "$1" > "$queue" || exit; done'
)
"""Writes the mask `$1` of processors to all receive queues of the interface `$0`."""
OFFLOADS = ("tso", "gso", "gro", "lro", "ufo", "tx", "rx", "sg")


def offload_command(interface: str) -> list[str]:
    """Return ethtool's arguments that switch off merging, splitting and checksum offloads.

    With segmentation offload on, BMv2 captures 32 packets a burst; with checksum offload on, frames
    reach a user-space switch without checksums.
    """
    command = ["ethtool", "-K", interface]
    for feature in OFFLOADS:
        command += [feature, "off"]
    return command


def ordered_command(interface: str, processor: int) -> list[str]:
    """Return the command that has one processor receive all frames of an interface.

    A veth's frames are received on the processor that sent them: on a shaped link either the
    sender's or that of HTB's timer. Frames reorder, as on no cable, and the neighbour requests what
    is not lost. Receive packet steering keeps their order (the kernel's networking/scaling.rst); a
    kernel without it (CONFIG_RPS) changes nothing, and only costs needless repairs.
    """
    # A mask is hexadecimal, in groups of 32 processors.
    mask = f"{1 << processor % 32:x}" + ",00000000" * (processor // 32)
    return ["sh", "-c", ORDER_FRAMES, interface, mask]


def neighbour_lines(interface: str, others: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines for `ip -batch` that make the (IPv4, MAC) of the others permanent neighbours."""
    return [
        f"neighbour replace {ip} lladdr {mac} dev {interface} nud permanent" for ip, mac in others
    ]


def route_lines(own: str, routes: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return lines for `ip -batch`: routes as (address, gateway, interface), from address `own`."""
    return [
        f"route replace {target} "
        + (f"via {gateway} " if gateway != target else "")
        + f"dev {interface} src {own}"
        + (" onlink" if gateway != target else "")
        for target, gateway, interface in routes
    ]
