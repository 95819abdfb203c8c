"""Agreement on an operator: a tree of controllers against a central coordinator, in virtual time.

The state machines are real, their messages are modelled: each costs a process 1 us (o) and takes
5 us on the way (L). The model is tests.support.virtual_group's; the formulas are those of
benchmarks.coordination_latency: 2 (n - 1) o + 2 L, and for a full tree 2 d (f o + L).
"""

from __future__ import annotations

from typing import Any

from benchmarks.coordination_latency import (
    Agreement,
    central_time,
    negotiation,
    ring,
    star,
    steady_state,
    tree_time,
)
from hopsum.coordination.tree import CoordinationTree, balanced_tree
from tests.support.virtual_group import Costs

COSTS = Costs(overhead=1_000, latency=5_000)
"""In nanoseconds."""
OPERATORS = 161
"""Number of operators in a vector: as many as ResNet-50 has tensors."""
SIMULATED_STARS = 1024
"""Above this size a central coordinator's figure comes from its formula, which smaller ones match
exactly."""


def tree_of(processes: int, fan_out: int) -> CoordinationTree:
    """Return a balanced tree of processes without places in a network."""
    return balanced_tree([f"p{rank}" for rank in range(processes)], fan_out=fan_out)


def measure_negotiation(processes: int, fan_outs: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the row of one operator in the first iteration, with all processes ready at once."""
    expected = central_time(processes, COSTS)
    if processes <= SIMULATED_STARS:
        found = negotiation(star(processes), COSTS)
    else:
        count = 2 * (processes - 1)
        found = Agreement(expected, count, count, vectors=0, words=0)
    rows = [_row("negotiation", "central", processes, processes - 1, 1, found, expected)]
    for fan_out in fan_outs:
        tree = tree_of(processes, fan_out)
        found = negotiation(tree, COSTS)
        formula = tree_time(processes, fan_out, COSTS)
        rows.append(_row("negotiation", "tree", processes, fan_out, tree.height, found, formula))
    return rows


def measure_vectors(processes: int, fan_out: int) -> list[dict[str, Any]]:
    """Return the row of one cycle of bit vectors over all operators, all ready at once."""
    tree = tree_of(processes, fan_out)
    formula = tree_time(processes, fan_out, COSTS)
    around = 2 * (processes - 1) * (COSTS.overhead + COSTS.latency)
    return [
        _row(
            *("vectors", "tree", processes, fan_out, tree.height),
            steady_state(tree, OPERATORS, COSTS),
            formula,
        ),
        _row(
            *("vectors", "ring", processes, 1, processes - 1),
            steady_state(ring(processes, fan_out), OPERATORS, COSTS),
            around,
        ),
    ]


def _row(
    phase: str,
    scheme: str,
    processes: int,
    fan_out: int,
    height: int,
    found: Agreement,
    formula: float,
) -> dict[str, Any]:
    """Return a row. `busiest_limit`: expected messages at the busiest process."""
    return {
        "phase": phase,
        "scheme": scheme,
        "processes": processes,
        "fan_out": fan_out,
        "height": height,
        "time_us": found.time / 1000,
        "formula_us": formula / 1000,
        "busiest": found.busiest,
        "busiest_limit": 2 * (fan_out + (scheme != "central")),
        "messages": found.messages,
        "words": found.words,
    }


def measure() -> list[dict[str, Any]]:
    """Return all rows."""
    rows = []
    for processes in (64, 256, 1024, 4096, 27_600):
        rows += measure_negotiation(processes, (2, 4, 8))
    for processes in (64, 1024):
        rows += measure_vectors(processes, 4)
    return rows
