"""Trees of traces: all that can become of a packet, with a branch for each alternative and copy.

A branch ends where the packet is sent or dropped, or divides: into copies (clones, replicas of a
multicast group), another pass (resubmit, recirculate), or one branch for each member that a
selector can choose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from p4switch.backends.reference.trace import (
    Branch,
    BranchPath,
    PacketTrace,
    event_lines,
    frame_text,
)

MOST_RUNS = 1024
"""Maximum alternatives; a program that resubmits can have any number."""

_CONTINUATIONS = ("unicast", "replica")
"""Branches that need no name when they are the only one."""

Choices = Mapping[BranchPath, int]
"""The member that a selector chooses at a place in the tree, where not as its hash says."""


class TooManyBranchesError(ValueError):
    """A packet has more alternatives than `MOST_RUNS`."""


def explore(run: Callable[[Choices], PacketTrace]) -> PacketTrace:
    """Return the trace of a packet with the tree of all its outcomes.

    `run` traces the packet from the same state each time, with a Tracer that has these choices.
    It is called once for each alternative, not for combinations of those in different copies.
    Raises TooManyBranchesError.
    """
    found = run({})
    runs = 1

    def expand(branch: Branch, choices: Choices) -> None:
        nonlocal runs
        for member in branch.members[1:]:  # The first is the one that was chosen.
            runs += 1
            if runs > MOST_RUNS:
                raise TooManyBranchesError(f"more than {MOST_RUNS} outcomes")
            instead = {**choices, branch.path: member}
            [other] = run(instead).tree.at(branch.path).branches
            expand(other, instead)
            branch.branches.append(other)
        # Further choices of the first, whose path has the choices of this run.
        for child in branch.branches[:1] if branch.members else branch.branches:
            expand(child, choices)

    expand(found.tree, {})
    _fold(found.tree)
    return found


def _fold(branch: Branch) -> None:
    """Make a branch's only continuation a part of it."""
    while len(branch.branches) == 1 and branch.branches[0].reason in _CONTINUATIONS:
        [only] = branch.branches
        branch.events += only.events
        branch.out += only.out
        branch.branches = only.branches
    for child in branch.branches:
        _fold(child)


def tree_text(trace: PacketTrace) -> str:
    """Return the tree as lines of text."""
    lines = [f"packet {trace.number}: port {trace.port}, {frame_text(trace.frame)}"]
    lines += [f"  {line}" for line in _lines(trace.tree)]
    return "\n".join(lines)


def _lines(branch: Branch) -> Iterator[str]:
    for event in branch.events:
        yield from event_lines(event)
    for port, frame in branch.out:
        yield f"sent: port {port}, {frame_text(frame)}"
    if branch.ends_unsent:
        yield "nothing sent"
    for child in branch.branches:
        yield f"{child.title}:"
        yield from (f"  {line}" for line in _lines(child))


def tree_json(trace: PacketTrace) -> str:
    """Return the tree as one line of JSON."""
    head = {
        "packet": trace.number,
        "port": trace.port,
        "time_us": trace.now_us,
        "frame": trace.frame.hex(),
    }
    return json.dumps({**head, **_values(trace.tree)})


def _values(branch: Branch) -> dict[str, Any]:
    return {
        "events": [event.as_json() for event in branch.events],
        "out": [{"port": port, "frame": frame.hex()} for port, frame in branch.out],
        "branches": [
            {"reason": child.reason, **child.details, **_values(child)} for child in branch.branches
        ],
    }
