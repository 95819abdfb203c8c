"""Lines for tc that make a link's queues; whether the kernel takes them is for Mininet to say."""

from __future__ import annotations

import re

from hopsum.mininet_topos.link_queues import OWN_SHARE, URGENT_SHARE, shaping_lines
from hopsum.protocol.tos import LEVELS, UDP_PORT, URGENT, level_of_tos

LINES = shaping_lines("s1-eth2", 1e8)


def fields(pattern: str) -> list[tuple[str, ...]]:
    found = (re.search(pattern, line) for line in LINES)
    return [match.groups() for match in found if match]


def test_the_link_has_its_rate_and_each_queue_may_use_all_of_it() -> None:
    assert fields(r"parent 1: .* rate (\d+)bit ceil (\d+)bit") == [("100000000", "100000000")]
    rates = fields(r"parent 1:1 .* rate (\d+)bit ceil (\d+)bit")
    shares = [URGENT_SHARE] + [OWN_SHARE] * LEVELS
    assert rates == [(str(int(1e8 * share)), "100000000") for share in shares]
    assert sum(shares) < 1


def test_urgent_packets_have_their_own_class_at_any_level() -> None:
    [(mask, number)] = fields(
        rf"prio 1 u32 match ip dsfield {URGENT:#04x} (0x\w\w) match ip protocol 17 0xff "
        rf"match ip dport {UDP_PORT} 0xffff flowid 1:(\w+)"
    )
    assert int(mask, 16) == URGENT
    [(rate,)] = fields(rf"classid 1:{number} htb rate (\d+)bit .* prio 0")
    assert int(rate) == 1e8 * URGENT_SHARE
    assert (number,) in fields(r"qdisc .* parent 1:(\w+) .* pfifo")


def test_each_level_has_a_class_a_queue_and_its_packets() -> None:
    classes = dict(fields(r"classid 1:(1\d) .* prio (\d)"))
    assert sorted(classes.values()) == [str(level) for level in range(LEVELS)]
    assert [name for (name,) in fields(r"qdisc .* parent 1:(1\d) .* pfifo")] == list(classes)
    marks = fields(r"dsfield (0x\w\w) 0xe0 flowid 1:(1\d)")
    assert len(marks) == LEVELS - 1
    for tos, name in marks:
        assert classes[name] == str(level_of_tos(int(tos, 16)))
    [(default,)] = fields(r"htb default (\w+)")
    assert classes[default] == str(LEVELS - 1)


def test_all_lines_are_of_one_interface() -> None:
    assert all(" dev s1-eth2 " in line for line in LINES)
