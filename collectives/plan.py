"""A plan: which switch sums what on the way up, and how results come down (001 S1).

A planner makes it, the controller installs the switches' part, the agents execute the hosts' part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from protocol.wire import Hop, Reduction

WINDOW_EMBEDDED = 256
WINDOW_BMV2 = 32


class PlanError(ValueError):
    """No plan meets the request; the message says what stands in the way."""


class DataType(StrEnum):
    """What the tensors hold."""

    FLOAT32 = "float32"
    INT32 = "int32"


class Results(StrEnum):
    """How results reach the workers."""

    REPLICATED = "replicated"
    """One packet a link: switches copy it (multicast groups)."""
    UNICAST = "unicast"
    """One packet a worker, with its own stack (001 S4)."""


@dataclass(frozen=True, slots=True)
class SwitchPart:
    """What one switch does for one tree.

    `children` maps a child index to the ingress port it comes in on; empty where the switch only
    forwards. `ports_up`: ingress ports from which contributions of this tree may come (also where
    the switch does not aggregate). `port_server`: the port towards the server: results come in
    there. `ports_down`: ports that a replicated result is copied to. `slot_base`..+window are its
    slots; `group`: the multicast group for this epoch.
    """

    switch: str
    aggregate: bool
    children: Mapping[int, int]
    ports_up: tuple[int, ...]
    port_server: int
    ports_down: tuple[int, ...]
    slot_base: int
    group: int

    @property
    def fan_in(self) -> int:
        """Number of children."""
        return len(self.children)


@dataclass(frozen=True, slots=True)
class TreePlan:
    """One aggregation tree: the server at its root, the workers at its leaves.

    `parents`: every node but the server -> next node towards it. `up[w]`, `down[w]`: the stacks of
    worker number w, from the worker's side and from the server's; `up[w]` ends with the server's
    entry, `down[w]` has one entry a switch. `server_children[c]`: the workers whose contributions
    an unflagged packet of child c of the server sums. `share`: its part of the tensor, 0..1.
    """

    tree: int
    server: str
    parents: Mapping[str, str]
    parts: Mapping[str, SwitchPart]
    up: tuple[tuple[Hop, ...], ...]
    down: tuple[tuple[Hop, ...], ...]
    server_children: tuple[tuple[int, ...], ...]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The whole plan of a job in one epoch. Worker number w is host `workers[w]`.

    Job and epoch start at 1; a pair of them is never used twice. `window` (fragments in flight on a
    tree, a power of two) is fixed for the job's life.
    """

    job: int
    epoch: int
    workers: tuple[str, ...]
    trees: tuple[TreePlan, ...]
    lanes: int
    window: int
    results: Results = Results.REPLICATED
    reduction: Reduction = Reduction.SUM
