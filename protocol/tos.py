"""How links tell our packets: by port and IP ToS byte. Imports nothing but errors.

`mn --custom` loads it with the system's Python, which may have no numpy.
"""

from __future__ import annotations

from protocol.errors import InputError

UDP_PORT = 0x4853
"""Destination (and source) port of every hopsum packet: ASCII 'HS'."""
LEVELS = 8
"""Levels of priority, 0 first; the last is that of packets that ask for none."""
URGENT = 0x10
"""Ahead of every level. Of requests, and of what answers them; it says nothing of other packets."""


class LevelError(InputError):
    """A level that there is not; the message says which are."""


def tos_of_level(level: int) -> int:
    """Return the IP ToS byte of a level.

    The class selector 7 - level (RFC 2474), 0xE0 first, 0 last. Raises LevelError.
    """
    if not 0 <= level < LEVELS:
        raise LevelError(f"level {level}: expected 0 (first) to {LEVELS - 1} (no priority)")
    return (LEVELS - 1 - level) << 5


def level_of_tos(tos: int) -> int:
    """Return the level that an IP ToS byte stands for; its lower five bits say nothing of it."""
    return LEVELS - 1 - (tos >> 5)


def queue_of_tos(tos: int) -> int:
    """Return which queue a packet waits in: 0 for what is urgent, else 1 more than its level."""
    return 0 if tos & URGENT else level_of_tos(tos) + 1
