"""Diagnosis of stuck fragments: the child missing at each switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hopsum.collectives.flows import tree_flows
from hopsum.collectives.plan import JobPlan, TreePlan
from hopsum.controller.dataplane.slots import SlotState
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb

Slots = Mapping[str, Sequence[SlotState]]
"""Slots read at each switch."""


@dataclass(frozen=True, slots=True)
class MissingChild:
    """A child that an incomplete slot waits for.

    `neighbour`: the node at the port where it should arrive; `workers`: of its contributions;
    `why`: how far these have come.
    """

    tree: int
    fragment: int
    switch: str
    child: int
    neighbour: str
    workers: tuple[str, ...]
    why: str

    def sentence(self) -> str:
        """Return it in words."""
        return (
            f"fragment {self.fragment} of tree {self.tree} waits at {self.switch} for child "
            f"{self.child} ({', '.join(self.workers)}): {self.why}"
        )


def missing_message(missing: MissingChild) -> pb.MissingChild:
    """Return the message of a missing child."""
    return pb.MissingChild(**asdict(missing))


def missing_from(message: pb.MissingChild) -> MissingChild:
    """Return the missing child of a message."""
    return MissingChild(
        tree=message.tree,
        fragment=message.fragment,
        switch=message.switch,
        child=message.child,
        neighbour=message.neighbour,
        workers=tuple(message.workers),
        why=message.why,
    )


def job_slots(plan: JobPlan) -> dict[str, list[range]]:
    """Return the slots of a job at each of its aggregating switches."""
    slots: dict[str, list[range]] = {}
    for tree in plan.trees:
        for name, part in tree.parts.items():
            if part.aggregate:
                slots.setdefault(name, []).append(
                    range(part.slot_base, part.slot_base + plan.window)
                )
    return slots


async def read_slots(
    plan: JobPlan, read: Callable[[str, int], Awaitable[SlotState]]
) -> dict[str, list[SlotState]]:
    """Read all slots of a job by `read`; raises its errors."""
    return {
        switch: [await read(switch, slot) for part in ranges for slot in part]
        for switch, ranges in job_slots(plan).items()
    }


def find_missing(network: Network, plan: JobPlan, slots: Slots) -> list[MissingChild]:
    """Return the missing children of incomplete slots, unless those are incomplete slots too."""
    found = []
    for tree in plan.trees:
        held = {
            name: {state.fragment: state for state in slots.get(name, ()) if _is(state, plan, tree)}
            for name, part in tree.parts.items()
            if part.aggregate
        }
        inputs = tree_flows(network, plan, tree).inputs
        for name, states in held.items():
            for state in states.values():
                if state.cleared or state.complete:
                    continue
                for child in state.missing():
                    flow = inputs[name][child]
                    below = held.get(flow.u, {}).get(state.fragment)
                    if below is not None and not below.cleared and not below.complete:
                        continue
                    found.append(
                        MissingChild(
                            tree=tree.tree,
                            fragment=state.fragment,
                            switch=name,
                            child=child,
                            neighbour=flow.u,
                            workers=tuple(plan.workers[w] for w in flow.workers),
                            why=_why(network, flow.u, below, flow.u in held),
                        )
                    )
    return sorted(found, key=lambda m: (m.tree, m.fragment, m.switch, m.child))


def _is(state: SlotState, plan: JobPlan, tree: TreePlan) -> bool:
    owner = (state.job, state.tree, state.epoch)
    return state.valid and owner == (plan.job, tree.tree, plan.epoch)


def _why(network: Network, neighbour: str, below: SlotState | None, sums: bool) -> str:
    if neighbour in network.hosts:
        return f"nothing from {neighbour} for this fragment: not sent yet, or lost in transit"
    if below is not None:
        return (
            f"{neighbour} has the sum: it was lost in transit, and is sent again on a "
            "retransmission"
        )
    if sums:
        return f"no packet of this fragment has reached {neighbour}"
    return f"it passes {neighbour} unsummed: not sent yet, or lost in transit"
