"""Shaped links: a queue for each IP class selector, and one for repairs, below the link's rate.

On a shaped link packets wait in the kernel, not in the switch, so that is where priorities count.
The queues are leaf classes of HTB with priorities of their own, not a `prio` discipline, which not
every kernel has: what a class sends beyond its own small rate it borrows from the link, and who may
borrow is decided strictly by priority. The small rate keeps every level alive. What is `URGENT`
goes first by a large rate of its own: HTB serves who stays within its rate before all who borrow,
and it has no ninth priority.
"""

from __future__ import annotations

from pathlib import Path

from hopsum.protocol.tos import LEVELS, UDP_PORT, URGENT, tos_of_level

QUEUE_FRAMES = 1000
BURST_SECONDS = 0.002
HYSTERESIS = Path("/sys/module/sch_htb/parameters/htb_hysteresis")
"""The kernel's HTB setting for whole bursts per class, shared by all interfaces.

Without it every frame on a busy link waits for a timer of its own; on two cores those timers cost
more than the switches and agents do. Burst by burst, the rate is the same.
"""
FRAME_BYTES = 1514
OWN_SHARE = 0.01
"""Fraction of the link's rate guaranteed to each level."""
URGENT_SHARE = 0.5
"""Fraction of the link's rate for repairs and requests: more than any loss causes."""
SEND_BUFFER = 8 << 20
"""Bytes of frames, as the kernel counts them, that a switch may have in the queues of a link: some
thousand. With room for few, those of low levels would keep the others out of their queues."""
_CLASS_SELECTOR = 0xE0
_URGENT_CLASS = 0x9
_FIRST_CLASS = 0x10


def shaping_lines(interface: str, rate: float) -> list[str]:
    """Return lines for `tc -batch` that shape an interface to `rate` bits per second (HTB).

    Level 0 goes first after what is urgent; what is not IPv4 waits with the last level.
    """
    burst = max(2 * FRAME_BYTES, int(rate * BURST_SECONDS / 8))
    bits = int(rate)
    own = max(1, int(rate * OWN_SHARE))

    def queue(number: int, assured: int, priority: int) -> list[str]:
        return [
            f"class add dev {interface} parent 1:1 classid 1:{number:x} htb rate {assured}bit "
            f"ceil {bits}bit burst {2 * FRAME_BYTES} cburst {burst} prio {priority} "
            f"quantum {FRAME_BYTES}",
            f"qdisc add dev {interface} parent 1:{number:x} handle {number:x}: "
            f"pfifo limit {QUEUE_FRAMES}",
        ]

    def choose(number: int, order: int, tos: int, mask: int, rest: str = "") -> str:
        return (
            f"filter add dev {interface} parent 1: protocol ip prio {order} u32 "
            f"match ip dsfield {tos:#04x} {mask:#04x} {rest}flowid 1:{number:x}"
        )

    ours = f"match ip protocol 17 0xff match ip dport {UDP_PORT} 0xffff "

    lines = [
        f"qdisc add dev {interface} root handle 1: htb default {_FIRST_CLASS + LEVELS - 1:x}",
        f"class add dev {interface} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit "
        f"burst {burst} cburst {burst}",
        *queue(_URGENT_CLASS, max(1, int(rate * URGENT_SHARE)), 0),
        choose(_URGENT_CLASS, 1, URGENT, URGENT, ours),
    ]
    for level in range(LEVELS):
        number = _FIRST_CLASS + level
        lines += queue(number, own, level)
        if tos_of_level(level):
            lines.append(choose(number, 2, tos_of_level(level), _CLASS_SELECTOR))
    return lines
