"""Resources of jobs at the switches: ranges of slots and multicast group numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.network.model import Network
from hopsum.protocol.wire import serial_newer

FLOOD_GROUP = 1
"""The multicast group of every switch that floods plain broadcasts."""
FIRST_GROUP = 2
LAST_GROUP = 4095
"""BMv2's table of multicast groups has 4096 rows (simple_pre.h)."""


@dataclass(frozen=True, slots=True)
class TreeNeeds:
    """Request of one tree: `slots_at` (switches that aggregate), `groups_at` (that copy)."""

    slots_at: Collection[str]
    groups_at: Collection[str]


@dataclass(frozen=True, slots=True)
class Grant:
    """Allocation of one tree: the first slot, and the group number, at each switch."""

    slot_base: Mapping[str, int]
    group: Mapping[str, int]


@dataclass
class Allocator:
    """Allocates the slot ranges and groups of all jobs on a network.

    A (job, tree) has one range of `window` slots at a switch in all epochs, so that a new plan of a
    job continues in its old range; a group belongs to one (job, tree, epoch).
    """

    network: Network
    _ranges: dict[str, dict[tuple[int, int], tuple[int, int]]] = field(default_factory=dict)
    _groups: dict[str, dict[tuple[int, int, int], int]] = field(default_factory=dict)

    def reserve(
        self, job: int, epoch: int, window: int, needs: Mapping[int, TreeNeeds]
    ) -> dict[int, Grant]:
        """Reserve the needs of all trees; if impossible, reserve nothing and raise PlanError."""
        slots: dict[tuple[str, int], int] = {}
        groups: dict[tuple[str, int], int] = {}
        for tree, need in needs.items():
            for switch in need.slots_at:
                slots[switch, tree] = self._find_range(switch, job, tree, window, slots)
            for switch in need.groups_at:
                groups[switch, tree] = self._find_group(switch, job, tree, epoch, groups)
        for (switch, tree), base in slots.items():
            self._ranges.setdefault(switch, {})[job, tree] = (base, window)
        for (switch, tree), group in groups.items():
            self._groups.setdefault(switch, {})[job, tree, epoch] = group
        return {
            tree: Grant(
                {switch: slots[switch, tree] for switch in need.slots_at},
                {switch: groups[switch, tree] for switch in need.groups_at},
            )
            for tree, need in needs.items()
        }

    def _find_range(
        self, switch: str, job: int, tree: int, window: int, new: Mapping[tuple[str, int], int]
    ) -> int:
        held = self._ranges.get(switch, {})
        if (job, tree) in held:
            base, size = held[job, tree]
            if size != window:
                raise PlanError(
                    f"job {job}, tree {tree}: the window is {size} and cannot become {window}; "
                    "it is fixed for the job's life"
                )
            return base
        taken = sorted(
            [*held.values()] + [(base, window) for (at, _), base in new.items() if at == switch]
        )
        size = self.network.switches[switch].slots
        start = 0
        for base, length in taken:
            if base - start >= window:
                break
            start = base + length
        if start + window > size:
            used = sum(length for _, length in taken)
            raise PlanError(
                f"switch {switch} has no range of {window} slots for job {job}, tree {tree}: "
                f"{used} of {size} are in use by {len(taken)} trees; "
                "use a smaller window, more slots, or wait for a job to end"
            )
        return start

    def room(self, switch: str, job: int, window: int) -> int:
        """Return how many trees of a job fit into a switch, in its own ranges and free ones."""
        held = self._ranges.get(switch, {})
        start, trees = 0, 0
        for (owner, _), (base, length) in sorted(held.items(), key=lambda item: item[1]):
            trees += (base - start) // window + (owner == job)
            start = base + length
        return trees + (self.network.switches[switch].slots - start) // window

    def _find_group(
        self,
        switch: str,
        job: int,
        tree: int,
        epoch: int,
        new: Mapping[tuple[str, int], int],
    ) -> int:
        held = self._groups.get(switch, {})
        if (job, tree, epoch) in held:
            return held[job, tree, epoch]
        taken = set(held.values()) | {group for (at, _), group in new.items() if at == switch}
        for group in range(FIRST_GROUP, LAST_GROUP + 1):
            if group not in taken:
                return group
        raise PlanError(f"switch {switch}: all {LAST_GROUP - 1} multicast groups are in use")

    def release_epochs(self, job: int, before: int) -> None:
        """Release the groups of a job's epochs before this one, as serial numbers."""
        for groups in self._groups.values():
            for key in [k for k in groups if k[0] == job and serial_newer(before, k[2], 16)]:
                del groups[key]

    def release(self, job: int) -> None:
        """Release everything of a job."""
        for ranges in self._ranges.values():
            for key in [key for key in ranges if key[0] == job]:
                del ranges[key]
        for groups in self._groups.values():
            for group_key in [key for key in groups if key[0] == job]:
                del groups[group_key]

    def release_at(self, job: int, switches: Collection[str]) -> None:
        """Release the slots of a job at some switches, where its current plan does not use them.

        Its groups stay: the switches still copy its results.
        """
        for switch in switches:
            ranges = self._ranges.get(switch, {})
            for key in [key for key in ranges if key[0] == job]:
                del ranges[key]

    def take(self, plan: JobPlan) -> None:
        """Reserve what a plan that was made on a copy of this allocator uses."""
        for tree in plan.trees:
            for switch, part in tree.parts.items():
                if part.aggregate:
                    held = self._ranges.setdefault(switch, {})
                    held[plan.job, tree.tree] = (part.slot_base, plan.window)
                if part.group:
                    groups = self._groups.setdefault(switch, {})
                    groups[plan.job, tree.tree, plan.epoch] = part.group

    def release_unused(self, plan: JobPlan) -> None:
        """Release the slots of a job that its current plan does not use."""
        used = {
            (switch, tree.tree)
            for tree in plan.trees
            for switch, part in tree.parts.items()
            if part.aggregate
        }
        for switch, ranges in self._ranges.items():
            for job, tree_number in [key for key in ranges if key[0] == plan.job]:
                if (switch, tree_number) not in used:
                    del ranges[job, tree_number]

    def copy(self) -> Allocator:
        """Return a copy on which to try a plan."""
        return Allocator(
            self.network,
            {switch: dict(ranges) for switch, ranges in self._ranges.items()},
            {switch: dict(groups) for switch, groups in self._groups.items()},
        )

    def in_use(self, switch: str) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the ranges at a switch: (job, tree) -> (first slot, number of slots)."""
        return dict(self._ranges.get(switch, {}))
