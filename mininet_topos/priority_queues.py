"""Priorities on shaped links: a queue for each class selector of IP below the link's rate.

On a shaped link packets wait in the kernel, not in the switch, so that is where priorities count.
The queues are leaf classes of HTB with priorities of their own, not a `prio` discipline, which not
every kernel has: what a class sends beyond its own small rate it borrows from the link, and who may
borrow is decided strictly by priority. The small rate keeps every level alive.
"""

from __future__ import annotations

from mininet_topos.shaping import BURST_SECONDS, FRAME_BYTES, QUEUE_FRAMES
from protocol.wire import LEVELS, tos_of_level

OWN_SHARE = 0.01
"""Of the link's rate, for each level, whatever the others send."""
SEND_BUFFER = 8 << 20
"""Bytes of frames, as the kernel counts them, that a switch may have in the queues of a link: some
thousand. With room for few, those of low levels would keep the others out of their queues."""
_CLASS_SELECTOR = 0xE0
_FIRST_CLASS = 0x10


def priority_lines(interface: str, rate: float) -> list[str]:
    """Lines for `tc -batch`, instead of `shaping_lines`: `rate` bits per second, by priority.

    Level 0 goes first; what is not IPv4 waits with the last level.
    """
    burst = max(2 * FRAME_BYTES, int(rate * BURST_SECONDS / 8))
    bits = int(rate)
    own = max(1, int(rate * OWN_SHARE))
    lines = [
        f"qdisc add dev {interface} root handle 1: htb default {_FIRST_CLASS + LEVELS - 1:x}",
        f"class add dev {interface} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit "
        f"burst {burst} cburst {burst}",
    ]
    for level in range(LEVELS):
        number = _FIRST_CLASS + level
        lines += [
            f"class add dev {interface} parent 1:1 classid 1:{number:x} htb rate {own}bit "
            f"ceil {bits}bit burst {2 * FRAME_BYTES} cburst {burst} prio {level} "
            f"quantum {FRAME_BYTES}",
            f"qdisc add dev {interface} parent 1:{number:x} handle {number:x}: "
            f"pfifo limit {QUEUE_FRAMES}",
        ]
        if tos_of_level(level):
            lines.append(
                f"filter add dev {interface} parent 1: protocol ip prio 1 u32 "
                f"match ip dsfield {tos_of_level(level):#04x} {_CLASS_SELECTOR:#04x} "
                f"flowid 1:{number:x}"
            )
    return lines
