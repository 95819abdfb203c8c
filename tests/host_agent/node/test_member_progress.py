"""How often a member tells the controller how many tensors it has summed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from host_agent.node.member import PROGRESS_SECONDS, Member


def test_many_tensors_are_told_of_together() -> None:
    told: list[int] = []
    stream: Any = SimpleNamespace(job=1, host="h1", progress=told.append)
    unused: Any = None
    member = Member(stream, unused, unused, unused)
    member.tick(7.0)
    assert (told, member.deadline) == ([], None)
    member.round = 1
    assert member.deadline is not None
    member.tick(7.0)
    assert (told, member.deadline) == ([1], None)
    for number in range(2, 9):
        member.round = number
        member.tick(7.001)
    assert (told, member.deadline) == ([1], 7.0 + PROGRESS_SECONDS)
    member.tick(7.0 + PROGRESS_SECONDS)
    assert (told, member.deadline) == ([1, 8], None)
