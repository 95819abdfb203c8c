"""Detection of programs with cycles: in a parser, in a loop, or by recirculated packets."""

from __future__ import annotations

from p4switch import ir
from p4switch.midend.architecture import PSA, architecture_of
from p4switch.midend.call_graph import bodies, reachable
from p4switch.midend.visit import statements

AGAIN = ("resubmit", "recirculate")
"""Name prefixes of externs that recirculate packets."""
COPIES = ("clone", *AGAIN)
"""The same for copies: a clone goes through egress, so clones in egress can repeat."""


def multiplies(program: ir.Program) -> bool:
    """Return whether a packet's cost is not bounded by the program: it loops or recirculates.

    Other programs process a packet once in each block, and its copies in egress.
    """
    if architecture_of(program.package) is PSA:
        return True  # Metadata and ports decide, which the control plane may set.
    blocks = program.package.blocks
    before = [block for name, block in blocks.items() if name != "eg"]
    egress = [block for name, block in blocks.items() if name == "eg"]
    return _goes_round(before, AGAIN) or _goes_round(egress, COPIES)


def _goes_round(blocks: list[ir.Block], externs: tuple[str, ...]) -> bool:
    return any(
        isinstance(statement, ir.Loop)
        or (
            isinstance(statement, ir.CallExtern)
            and statement.instance is None
            and statement.method.startswith(externs)
        )
        for function in reachable(blocks)
        for body in bodies(function)
        for statement in statements(body)
    )


def has_cycle(block: ir.Block) -> bool:
    """Return whether a parser's state graph has a cycle."""
    done: set[str] = set()
    active: set[str] = set()

    def visit_state(name: str) -> bool:
        if name in done or name not in block.states:
            return False
        if name in active:
            return True
        active.add(name)
        transition = block.states[name].transition
        targets = (
            [transition.state]
            if isinstance(transition, ir.Goto)
            else [state for _, state in transition.cases]
        )
        found = any(visit_state(target) for target in targets)
        active.remove(name)
        done.add(name)
        return found

    return visit_state("start")
