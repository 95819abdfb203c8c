"""The plans of active jobs: the slots and groups they hold, and plans for their next epochs.

Without input or output; what computes a plan changes nothing. Switches and links that are
unreachable (`failed`) are planned around; a job that cannot do without one keeps its plan.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.plan_checker import check_plans, check_together
from hopsum.controller.dataplane.rules import Loss, SwitchRules, rules_for
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.sharing import Settlement, bypassing, settle
from hopsum.controller.telemetry.diagnosis import cut_off, used_elements
from hopsum.controller.telemetry.event_log import EventKind
from hopsum.controller.telemetry.health import Element
from hopsum.network.model import Network, shorten
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import next_epoch

LOGGER = logging.getLogger("hopsum.plans")


@dataclass(frozen=True, slots=True)
class NextPlan:
    """A job's next plan, and the reason for it.

    `bypassed`: the switches whose slots it has given up.
    """

    request: PlanRequest
    plan: JobPlan
    bypassed: frozenset[str]
    cause: tuple[EventKind, str] = (EventKind.PLANNED, "")


@dataclass(frozen=True, slots=True)
class Change:
    """What a new epoch is to change.

    `why`: for people. `servers`: the job's next ones. `on`: the working network, with free
    bandwidth on its links. `regain`: switches where the job was preempted and may sum again.
    `recut`: with other weights (planner embedding), which partition tensors from a boundary on; it
    needs `on`.
    """

    why: str
    servers: tuple[str, ...] | None = None
    on: Network | None = None
    regain: Collection[str] = ()
    recut: bool = False


def next_request(request: PlanRequest, before: JobPlan) -> PlanRequest:
    """Return the request for a job's next epoch, with everything that is fixed for its life."""
    return replace(
        request,
        epoch=next_epoch(before.epoch),
        shares=tuple(tree.share for tree in before.trees),
        before=before,
    )


class PlanStore:
    """The active jobs of a network, their plans and their resources."""

    def __init__(self, network: Network, losses: Iterable[Loss] = ()) -> None:
        self.network = network
        self.active: dict[int, ActiveJob] = {}
        """Jobs whose rules the switches should have, by number."""
        self.failed: frozenset[Element] = frozenset()
        """The failed switches and links."""
        self._working = self.failed, network
        self._allocator = Allocator(network)
        self._losses = tuple(losses)

    def job(self, number: int) -> ActiveJob:
        """Return an active job; PlanError if there is none of that number."""
        if number not in self.active:
            raise PlanError(self.unknown(number))
        return self.active[number]

    def unknown(self, number: int) -> str:
        """Return the error about a job that is not active."""
        known = shorten(map(str, self.active)) or "none"
        return f"there is no job {number}; jobs: {known}"

    def plan_of(self, number: int) -> JobPlan:
        """Return the current plan of a job; PlanError if there is none."""
        return self.job(number).plan

    def plans(self) -> list[JobPlan]:
        """Return the current plan of every job that sums in switches or on a server."""
        return [each.plan for each in self.active.values() if not each.job.spec.among_hosts]

    def rules(self) -> Mapping[str, SwitchRules]:
        """Return the rules of all jobs for the reachable switches."""
        working = self.working()
        losses = [loss for loss in self._losses if _linked(working, loss.u, loss.v)]
        return rules_for(working, self.plans(), losses)

    # -- slots

    def slots_held(self, switch: str) -> dict[int, int]:
        """Return the number of slots of a switch that each job holds."""
        held: dict[int, int] = {}
        for (job, _), slots in self.slot_ranges(switch).items():
            held[job] = held.get(job, 0) + len(slots)
        return held

    def free_slots(self) -> float:
        """Return the fewest slots that a summing switch has left; inf: there is no such switch."""
        return min(
            (
                switch.slots - sum(self.slots_held(name).values())
                for name, switch in self.network.switches.items()
                if switch.aggregates
            ),
            default=inf,
        )

    def slot_ranges(self, switch: str) -> dict[tuple[int, int], range]:
        """Return the slots of a switch that each tree of each job holds, by (job, tree)."""
        return {
            owner: range(first, first + size)
            for owner, (first, size) in self._allocator.in_use(switch).items()
        }

    def bypassed(self, number: int) -> frozenset[str]:
        """Return the switches where a job was preempted (`sharing`)."""
        return self.job(number).job.bypassed

    def regained(self, number: int) -> frozenset[str]:
        """Return those of them that have slots for all its trees again."""
        active = self.job(number)
        window, trees = active.plan.window, len(active.plan.trees)
        return frozenset(
            switch
            for switch in active.job.bypassed
            if self._allocator.room(switch, number, window) >= trees
        )

    def take(self, plan: JobPlan) -> None:
        """Reserve the resources of a plan; a job keeps those of its earlier plans."""
        self._allocator.take(plan)

    def release_before(self, plan: JobPlan) -> None:
        """Release what a job held before its current plan and no longer uses."""
        self._allocator.release_epochs(plan.job, before=plan.epoch)
        self._allocator.release_unused(plan)

    def remove(self, number: int) -> ActiveJob:
        """Remove a job and release its resources."""
        active = self.job(number)
        del self.active[number]
        self._allocator.release(number)
        return active

    # -- failures

    def working(self) -> Network:
        """Return the network without failed elements, the same one until others fail."""
        failed, working = self._working
        if failed != self.failed:
            working = _without(self.network, self.failed)
            self._working = self.failed, working
        return working

    def working_with(self, elements: Collection[Element]) -> Network:
        """Return the working network if these had not failed."""
        return _without(self.network, self.failed.difference(elements))

    def lost_to(self, number: int) -> frozenset[Element]:
        """Return the failed switches and links that the plan of a job still uses."""
        return used_elements(self.plan_of(number)) & self.failed

    def awaited(self) -> frozenset[Element]:
        """Return the failed switches and links that no plan is known to avoid."""
        return frozenset().union(*map(self.lost_to, self.active if self.failed else ()))

    def waits(self, number: int) -> bool:
        """Whether a job waits for a failed switch or link, in its plan or between its hosts."""
        if number not in self.active or not self.failed:
            return False
        hosts = self.active[number].job.hosts
        return bool(self.lost_to(number) or cut_off(self.working(), hosts))

    def avoided(self, number: int) -> bool:
        """Return whether an element is back that was unreachable when the job was planned."""
        return bool(self.job(number).job.avoided - self.failed)

    def keep_plan(self, number: int) -> None:
        """Keep the plan of a job although the elements it avoided are back."""
        self.job(number).job.avoided &= self.failed

    # -- planning

    def check(self, newer: Iterable[JobPlan]) -> None:
        """Check next plans together with those of all other jobs; PlanError lists every fault.

        `plan_job` has checked each by itself.
        """
        newer = list(newer)
        jobs = {plan.job for plan in newer}
        check_together(self.network, [*(p for p in self.plans() if p.job not in jobs), *newer])

    def settle(self, view: Network, job: Job, levels: Mapping[int, int]) -> Settlement:
        """Plan a new job on a network, and those that it preempts. Raises PlanError."""
        return settle(view, job.request, self._allocator, levels, job.spec.planner, self._preempted)

    def _preempted(self, number: int, given_up: frozenset[str], allocator: Allocator) -> JobPlan:
        """Return the plan of a job's next epoch, with fewer aggregating switches."""
        active = self.job(number)
        network = bypassing(self.working(), active.job.bypassed | given_up)
        return plan_job(network, self.next_request(active), allocator, active.job.spec.planner)

    def preempted(self, settled: Settlement, number: int) -> NextPlan:
        """Return the next plan of a job that another one preempts."""
        active, given_up = self.job(number), settled.given_up[number]
        why = f"it was preempted at {', '.join(sorted(given_up))} by job {settled.plan.job}"
        return NextPlan(
            self.next_request(active),
            settled.preempted[number],
            active.job.bypassed | given_up,
            (EventKind.PREEMPTED, why),
        )

    def restored(self, job: Job) -> NextPlan | None:
        """Return the next plan of a job of an earlier controller; None: its own holds as it is.

        A job that has not started according to the journal may have ended since then, unrecorded:
        new agents would repeat the sequence numbers of its epoch, so it gets the next one. Where
        others hold slots that it had, it gives them up. Raises PlanError.
        """
        plan = job.plan
        assert plan is not None
        if job.state is not JobState.WAITING and self._holds(job, plan):
            return None
        request = next_request(job.request, plan)
        found = self.plan_on(job, request, job.bypassed, self.working())
        self.check([found.plan])
        return replace(found, cause=(EventKind.REPLAN, "the controller was restarted"))

    def _holds(self, job: Job, plan: JobPlan) -> bool:
        """Whether a job's plan is still valid: it fits the network, and avoids no element."""
        deepest = max((len(stack) for tree in plan.trees for stack in tree.up), default=0)
        if job.avoided or deepest > job.request.max_hops:
            return False
        try:
            check_plans(self.network, [plan])
            self.check([plan])
        except PlanError as error:
            LOGGER.warning("job %d needs another plan: %s", job.number, error)
            return False
        return True

    def plan_on(
        self, job: Job, request: PlanRequest, bypassed: frozenset[str], network: Network
    ) -> NextPlan:
        """Plan a started job; it does without slots where there are none. Raises PlanError."""
        trial = self._allocator.copy()
        try:
            plan = plan_job(bypassing(network, bypassed), request, trial, job.spec.planner)
        except PlanError as error:
            trees = len(request.shares or request.servers)
            bypassed |= {
                name
                for name, switch in network.switches.items()
                if switch.aggregates and trial.room(name, request.job, request.window) < trees
            }
            try:
                plan = plan_job(bypassing(network, bypassed), request, trial, job.spec.planner)
            except PlanError:
                raise error from None
        return NextPlan(request, plan, bypassed)

    def around_failures(self, number: int) -> NextPlan:
        """Plan a job's next epoch on what works. Raises PlanError, NetworkError."""
        active = self.job(number)
        request = self.next_request(active)
        return self.plan_on(active.job, request, active.job.bypassed, self.working())

    def candidate(
        self, number: int, on: Network, regain: Collection[str] = (), *, recut: bool = False
    ) -> JobPlan:
        """Return the plan that a change of epoch would make, without side effects."""
        active = self.job(number)
        left = active.job.bypassed.difference(regain)
        return self._plan_on_free(active, self.next_request(active), on, left, recut)

    def _plan_on_free(
        self,
        active: ActiveJob,
        request: PlanRequest,
        on: Network,
        left: Collection[str],
        recut: bool,
    ) -> JobPlan:
        """Return a plan on the free resources of network `on` that does not aggregate at switches
        `left`."""
        requested = replace(request, recut=recut)
        trial = self._allocator.copy()
        return plan_job(bypassing(on, left), requested, trial, active.job.spec.planner)

    def changed(self, number: int, change: Change) -> NextPlan:
        """Plan a job's next epoch. Raises PlanError."""
        active = self.job(number)
        if active.job.outcome is not None:
            raise PlanError(f"job {number} has ended")
        request = self.next_request(active, change.servers)
        left = active.job.bypassed.difference(change.regain)
        if change.on is None:
            found = self._around_failures_or_with(active, request, left)
        else:
            # It is optional: a job keeps its plan if there is none on the free resources.
            on = _without(change.on, self.failed)
            plan = self._plan_on_free(active, request, on, left, change.recut)
            found = NextPlan(request, plan, left)
        return replace(found, cause=(EventKind.REPLAN, change.why))

    def _around_failures_or_with(
        self, active: ActiveJob, request: PlanRequest, left: frozenset[str]
    ) -> NextPlan:
        """Plan a job's next epoch without failed elements, or with those it waits for."""
        try:
            return self.plan_on(active.job, request, left, self.working())
        except PlanError:
            waits_for = used_elements(active.plan) & self.failed
            if not waits_for:
                raise
            network = _without(self.network, self.failed - waits_for)
            return self.plan_on(active.job, request, left, network)

    def next_request(
        self, active: ActiveJob, servers: tuple[str, ...] | None = None
    ) -> PlanRequest:
        """Return the request for a job's next epoch, with its servers or others."""
        request = next_request(active.job.request, active.plan)
        return request if servers is None else replace(request, servers=servers)


def roster(request: PlanRequest) -> JobPlan:
    """Return a plan without trees, which only lists workers: they run a schedule."""
    return JobPlan(request.job, request.epoch, request.workers, (), request.lanes, request.window)


def _without(network: Network, elements: Collection[Element]) -> Network:
    return network.without(
        [element for element in elements if isinstance(element, str)],
        [element for element in elements if not isinstance(element, str)],
    )


def _linked(network: Network, u: str, v: str) -> bool:
    return any({link.a, link.b} == {u, v} for link in network.links)
