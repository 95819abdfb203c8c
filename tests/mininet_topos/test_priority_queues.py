"""Lines for tc that make a link's queues; whether the kernel takes them is for Mininet to say."""

from __future__ import annotations

import re

from mininet_topos.priority_queues import OWN_SHARE, priority_lines
from mininet_topos.shaping import shaping_lines
from protocol.wire import LEVELS, level_of_tos

LINES = priority_lines("s1-eth2", 1e8)


def fields(pattern: str) -> list[tuple[str, ...]]:
    found = (re.search(pattern, line) for line in LINES)
    return [match.groups() for match in found if match]


def test_the_link_is_as_fast_as_without_priorities() -> None:
    [link] = [line for line in shaping_lines("s1-eth2", 1e8) if line.startswith("class")]
    assert link in LINES
    rates = fields(r"parent 1:1 .* rate (\d+)bit ceil (\d+)bit")
    assert rates == [(str(int(1e8 * OWN_SHARE)), "100000000")] * LEVELS
    assert LEVELS * OWN_SHARE < 1


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
