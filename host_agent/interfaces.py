"""The network interfaces of an agent, by the number of the host's port that each belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ONLY_PORT = -1
"""Stands for the port of an interface that is named without one: it is the host's only link."""


def interfaces_by_port(texts: Sequence[str]) -> dict[int, str]:
    """Return interfaces by port, from PORT@INTERFACE each, or one INTERFACE. Raises ValueError."""
    if len(texts) == 1 and "@" not in texts[0]:
        return {ONLY_PORT: texts[0]}
    found: dict[int, str] = {}
    for text in texts:
        port, _, name = text.partition("@")
        if not (port.isascii() and port.isdigit() and name) or int(port) in found:
            raise ValueError(f"{text!r}: expected PORT@INTERFACE such as 0@eth1, each port once")
        found[int(port)] = name
    return found


def options_for(ports: Iterable[int]) -> str:
    """Return the options that name an interface for each of these ports, for messages."""
    return " ".join(f"--interface {port}@NAME" for port in ports)
