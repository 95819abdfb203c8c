"""The work of `hopsum.timing.estimate`: a plan's tensors, or schedules among hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hopsum.collectives.choices import Collective
from hopsum.collectives.plan import DataType, JobPlan
from hopsum.collectives.schedule import Schedule

DirectedLink = tuple[str, str]
Tensor = tuple[int, DataType]
"""Number and type of elements."""


@dataclass(frozen=True, slots=True)
class PlanWork:
    """A collective by a job's plan: trees in switches, a parameter server, or an embedding.

    `tensors`: of each round. The trees' tensors are submitted together; if hosts sum parts in
    addition to the trees, tensors follow each other, with all parts of one at once. A round starts
    when the previous one is over. `wire_bits`: of a value in packets, 0: as the type has it.
    """

    plan: JobPlan
    tensors: Sequence[Tensor]
    rounds: int = 1
    collective: Collective = Collective.ALL_REDUCE
    wire_bits: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleWork:
    """Schedules over TCP among the hosts that they name, one after the other in each round.

    Rings, trees of hosts, and servers without slots are schedules. `block`: elements that a node
    passes on at once, 0: whole transfers, None: as agents do. `overhead`: s, of every transfer.
    """

    schedules: Sequence[Schedule]
    rounds: int = 1
    block: int | None = None
    overhead: float = 0.0


Work = PlanWork | ScheduleWork


@dataclass(frozen=True, slots=True)
class Background:
    """Other traffic from `source` to `target`: `size` bytes from `start` on, or without end.

    `rate`: maximum bit/s, None: as fast as sharing allows.
    """

    source: str
    target: str
    rate: float | None = None
    size: float = inf
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class SwitchLoad:
    """Packets of a plan that enter a switch, sums that it sends, and slots that it holds."""

    packets: int = 0
    sums: int = 0
    slots: int = 0
