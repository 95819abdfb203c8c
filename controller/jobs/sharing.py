"""Sharing of switches' slots among jobs: a quota for each, and preemption by bypass ([002][]).

A job that aggregates in all switches of a busy cluster would leave no slots for others, so no job
gets more than its quota of a switch. Where slots run out nevertheless, a job of higher priority
takes those of lower ones: these continue, and that switch only forwards their packets.

This never causes a wrong sum. The preempted job gets a new epoch in which its stacks do not say
'aggregate' at that switch; only when its rules are removed from the switch, its slots are given to
another job. Its late packets of the old epoch are not admitted, and partial sums left in the slots
belong to another job than the next packet, which overwrites them (docs/protocol.md, A switch).
Fragments in flight are sent again under the new epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.network.model import Network, shorten
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.job_plans import MAX_TREES
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.model.window import QUOTA
from hopsum.planning.registry import plan_job

Range = tuple[int, int]
"""The first slot and the number of slots."""


@dataclass(frozen=True, slots=True)
class SharingPolicy:
    """Limits of one job, and of one user."""

    quota: Fraction = QUOTA
    """Maximum fraction of a switch's slots for all trees of a job."""
    user_quota: Fraction = Fraction(3, 4)
    """The same for all jobs of one user who is no operator, at least `quota`."""

    def __post_init__(self) -> None:
        if not 0 < self.quota <= 1:
            raise ValueError(f"quota {self.quota}: expected above 0, at most 1")
        if not 0 < self.user_quota <= 1:
            raise ValueError(f"user quota {self.user_quota}: expected above 0, at most 1")

    def slots(self, network: Network, switch: str) -> int:
        """Return the most slots that one job may hold at a switch."""
        return int(self.quota * network.switches[switch].slots)

    def _window(self, network: Network, trees: int, wanted: int) -> int:
        """Return the largest window within the quota: a power of two, at most `wanted`.

        It fits if all trees of the job pass the smallest switch that sums. PlanError if none does.
        """
        rooms = [self.slots(network, s.name) for s in network.switches.values() if s.aggregates]
        most = min([wanted, *(room // trees for room in rooms)])
        if most < 1:
            raise PlanError(
                f"{trees} trees of a job do not fit into its quota of {min(rooms)} slots at the "
                f"smallest switch ({self.quota} of them); use fewer trees, or a larger quota"
            )
        return 1 << most.bit_length() - 1

    def trees(self, network: Network, window: int) -> int:
        """Return how many trees of a job fit into the smallest aggregating switch; 0 or more."""
        rooms = [self.slots(network, s.name) for s in network.switches.values() if s.aggregates]
        return min((room // window for room in rooms), default=MAX_TREES)

    def check(self, network: Network, request: PlanRequest) -> None:
        """Raise PlanError for a job that could hold more than its quota at some switch."""
        requested = len(request.servers) * request.window
        for name, switch in network.switches.items():
            if switch.aggregates and requested > self.slots(network, name):
                raise PlanError(
                    f"job {request.job} asks for {len(request.servers)} trees with a window of "
                    f"{request.window}, {requested} slots: its quota at switch {name} is "
                    f"{self.slots(network, name)} of {switch.slots}; use a window of "
                    f"{self._window(network, len(request.servers), request.window)}, or fewer trees"
                )

    def check_user(
        self, network: Network, owner: str, plan: JobPlan, held: Mapping[str, int]
    ) -> None:
        """Raise PlanError for a plan by which its owner's jobs would hold more than their quota.

        `held`: by switch, the slots that the other jobs of the owner hold.
        """
        wanted = Counter[str]()
        for name, (_, size) in _granted(plan):
            wanted[name] += size
        for name, slots in wanted.items():
            most = int(max(self.quota, self.user_quota) * network.switches[name].slots)
            if held.get(name, 0) + slots > most:
                raise PlanError(
                    f"switch {name}: jobs of {owner} hold {held.get(name, 0)} slots and this one "
                    f"needs {slots}; the quota of a user is {most}: end another of these jobs, or "
                    "use a smaller window"
                )


def bypassing(network: Network, switches: Iterable[str]) -> Network:
    """Return the network for a job that was preempted at some switches."""
    names = set(switches)
    return replace(
        network,
        switches={
            name: replace(switch, aggregates=switch.aggregates and name not in names)
            for name, switch in network.switches.items()
        },
    )


@dataclass(frozen=True, slots=True)
class Preemption:
    """A new job's plan, and the jobs that it preempts at switches."""

    plan: JobPlan
    victims: Mapping[int, frozenset[str]]


def preempt(
    network: Network,
    request: PlanRequest,
    allocator: Allocator,
    levels: Mapping[int, int],
    planner: str = "multi-hop",
) -> Preemption:
    """Plan a new job where there is room, or where it can preempt jobs of lower priority.

    `levels`: the priority of every job, including the new one's, 0 first; only jobs of a lower
    priority (a greater level) than the new one's are preempted: as few as possible, the lowest
    first. Has no side effects: re-plan each of them on `bypassing` (a new epoch), call
    `Allocator.release_at` when its rules are installed, and then `Allocator.take` for the new plan.
    Raises PlanError if there is no plan at all: jobs of its own or a higher priority hold what it
    needs.
    """
    trees = len(request.servers)
    trial = allocator.copy()
    for name, switch in network.switches.items():
        if switch.aggregates:
            for job in _in_the_way(trial, name, switch.slots, request, trees, levels):
                trial.release_at(job, [name])
    plan = plan_job(network, request, trial, planner)
    victims: dict[int, set[str]] = {}
    for switch_name, granted in _granted(plan):
        for (job, _), held in allocator.in_use(switch_name).items():
            if job != request.job and _overlap(granted, held):
                victims.setdefault(job, set()).add(switch_name)
    return Preemption(plan, {job: frozenset(switches) for job, switches in victims.items()})


NextPlan = Callable[[int, frozenset[str], Allocator], JobPlan]
"""Makes the next plan of a job that is preempted at some switches; the allocator is a copy."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Admission of a new job: `plan` is its own, `preempted` the next plans of the others.

    `given_up`: where each of these no longer sums. All of it holds together, slots and groups too.
    """

    plan: JobPlan
    preempted: Mapping[int, JobPlan]
    given_up: Mapping[int, frozenset[str]]


def settle(
    network: Network,
    request: PlanRequest,
    allocator: Allocator,
    levels: Mapping[int, int],
    planner: str,
    next_plan: NextPlan,
) -> Settlement:
    """Plan a new job and those that it preempts (see `preempt`), without side effects.

    A job that cannot do without its switches (more flows would reach its server than can) counts as
    one of the highest priority. Raises PlanError as `preempt`.
    """
    levels = dict(levels)
    while True:
        found = preempt(network, request, allocator, levels, planner)
        trial = allocator.copy()
        for job, switches in found.victims.items():
            trial.release_at(job, switches)
        trial.take(found.plan)
        preempted: dict[int, JobPlan] = {}
        stuck = None
        for job, switches in found.victims.items():
            try:
                preempted[job] = next_plan(job, switches, trial)
            except PlanError:
                stuck = job
                break
        if stuck is None:
            return Settlement(found.plan, preempted, found.victims)
        levels[stuck] = levels[request.job]


def _in_the_way(
    allocator: Allocator,
    switch: str,
    slots: int,
    request: PlanRequest,
    trees: int,
    levels: Mapping[int, int],
) -> list[int]:
    """Return jobs to preempt at a switch so that `trees` windows fit; none if that is impossible.

    The lowest priority is preempted first, in it the largest holder; jobs that turn out not to be
    in the way stay.
    """
    in_use = allocator.in_use(switch)
    own = _level(levels, request.job)
    held: dict[int, int] = {}
    for (job, _), (_, size) in in_use.items():
        if job != request.job and _level(levels, job) > own:
            held[job] = held.get(job, 0) + size
    order = sorted(held, key=lambda job: (-levels[job], -held[job], job))

    def fits(gone: Collection[int]) -> bool:
        staying = [taken for (job, _), taken in in_use.items() if job not in gone]
        return _room(staying, slots, request.window) >= trees

    leaving: list[int] = []
    for job in order:
        if fits(leaving):
            break
        leaving.append(job)
    if not fits(leaving):
        return []
    for job in reversed(order):
        if job in leaving and fits([other for other in leaving if other != job]):
            leaving.remove(job)
    return leaving


def _level(levels: Mapping[int, int], job: int) -> int:
    if job not in levels:
        raise PlanError(f"job {job} has no level; levels of jobs: {shorten(map(str, levels))}")
    return levels[job]


def _room(ranges: Iterable[Range], slots: int, window: int) -> int:
    """Return how many windows fit between ranges."""
    start = room = 0
    for base, size in sorted(ranges):
        room += (base - start) // window
        start = base + size
    return room + (slots - start) // window


def _granted(plan: JobPlan) -> Iterable[tuple[str, Range]]:
    for tree in plan.trees:
        for name, part in tree.parts.items():
            if part.aggregate:
                yield name, (part.slot_base, plan.window)


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
