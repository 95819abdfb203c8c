"""UDP port and IP ToS byte, by which links recognize our packets. Imports only errors.

`mn --custom` loads it with the system's Python, which may have no numpy.
"""

from __future__ import annotations

from hopsum.protocol.errors import InputError

UDP_PORT = 0x4853
"""Destination (and source) port of every hopsum packet: ASCII 'HS'."""
LEVELS = 8
"""Levels of priority, 0 is served first; the last is for packets without a priority."""
URGENT = 0x10
"""Served before every level: requests and repairs. Has no meaning in other packets."""


class LevelError(InputError):
    """An invalid priority level."""


def tos_of_level(level: int) -> int:
    """Return the IP ToS byte of a level.

    The class selector 7 - level (RFC 2474), 0xE0 first, 0 last. Raises LevelError.
    """
    if not 0 <= level < LEVELS:
        raise LevelError(f"level {level}: expected 0 (first) to {LEVELS - 1} (no priority)")
    return (LEVELS - 1 - level) << 5


def level_of_tos(tos: int) -> int:
    """Return the level in an IP ToS byte, whose lower five bits are ignored."""
    return LEVELS - 1 - (tos >> 5)


def queue_of_tos(tos: int) -> int:
    """Return the queue of a packet: 0 if urgent, else its level plus 1."""
    return 0 if tos & URGENT else level_of_tos(tos) + 1
