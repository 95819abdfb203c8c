"""Use of a host's links, from its interfaces' counters, and their link state."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hopsum.protocol.errors import OperationError

COUNTERS = Path("/proc/net/dev")
"""Of the network namespace this process is in (proc(5))."""

SIOCGIFFLAGS = 0x8913
IFF_UP = 0x1
IFF_RUNNING = 0x40


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Bytes since an interface came up, when they were read (s), and whether it has a link."""

    sent: int
    received: int
    at: float
    carrier: bool = True


@dataclass(frozen=True, slots=True)
class InterfaceRates:
    """Rates in bit/s. `free_*` None: the link's rate is not known."""

    sent: float
    received: float
    free_sent: float | None
    free_received: float | None


class BandwidthError(OperationError):
    """An interface without counters; the message lists those that have some."""


def read_counters(interface: str, now: float, file: Path = COUNTERS) -> InterfaceCounters:
    """Return an interface's counters; BandwidthError if there is no such interface."""
    # Names are bytes: the kernel refuses `/`, `:` and its own spaces only.
    lines: Mapping[str, list[bytes]] = {
        os.fsdecode(name.strip(b" ")): numbers.split()
        for name, colon, numbers in (
            line.partition(b":") for line in file.read_bytes().split(b"\n")
        )
        if colon
    }
    if interface not in lines:
        names = ", ".join(map(printable, lines)) or "none"
        raise BandwidthError(f"{file} has no interface {interface!r}; interfaces: {names}")
    numbers = lines[interface]
    return InterfaceCounters(sent=int(numbers[8]), received=int(numbers[0]), at=now)


def has_carrier(interface: str) -> bool:
    """Return whether an interface is up and has a link (netdevice(7)); False if there is none."""
    request = struct.pack("16sH14x", os.fsencode(interface), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked, SIOCGIFFLAGS, request)
        except OSError:
            return False
    flags: int = struct.unpack_from("16xH", answer)[0]
    return flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING


def printable(name: str) -> str:
    """Return a name whose bytes need not be UTF-8 as text that can be encoded."""
    return os.fsencode(name).decode(errors="backslashreplace")


def rates_between(
    before: InterfaceCounters, after: InterfaceCounters, rate: float | None
) -> InterfaceRates:
    """Return the rates between two readings, and what they leave of the link's `rate` (bit/s).

    Counters that decreased (the interface was created again) count as no traffic. ValueError unless
    time has passed.
    """
    seconds = after.at - before.at
    if seconds <= 0:
        raise ValueError(f"readings {seconds} s apart: expected the second to be later")
    sent = max(0, after.sent - before.sent) * 8 / seconds
    received = max(0, after.received - before.received) * 8 / seconds
    if not rate:
        return InterfaceRates(sent, received, None, None)
    # A burst of the shaper may pass more than the rate for a moment.
    return InterfaceRates(sent, received, max(0.0, rate - sent), max(0.0, rate - received))
