"""Reoptimization: plans follow the network's state as links fill ([002][]).

`replanning` decides when to look and what is worth an epoch; here plans are made and timed. Jobs
decide one by one, each knowing the expected load of those before: otherwise two jobs on a busy link
would leave it together, and meet again. Where plans do not follow the state of links, jobs return
to switches and links that have recovered, if that is faster.

The partition of an embedding's tensors must change at the same tensor on all hosts, or the job
stalls or sums wrongly. A new epoch cannot do that, since every agent adopts it when it receives it.
So all agents request every boundary, after each `period` tensors (`JobPlan`), and wait there for
the answer; the tracker's first decision is final. They request the next boundary at least one
tensor after the last: then all hosts have passed it, and only one boundary is open. The decision is
the job's plan at that time, which is recorded before any agent receives it: after a restart the
first requested boundary gets that plan again, whether it had been answered or not.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.plan_costs import (
    free_network,
    link_rates,
    round_cost,
    sending_rate,
    whole_rounds,
)
from hopsum.controller.jobs.plan_store import Change, PlanStore
from hopsum.controller.jobs.procedures import Compute, Lock, Procedure, Procedures
from hopsum.controller.jobs.replanning import Cause, Replanner, ReplanningPolicy
from hopsum.controller.telemetry.state import SMOOTHING_SECONDS, NetworkState
from hopsum.network.model import Network, NetworkError
from hopsum.planning.model.demand import DirectedLink
from hopsum.timing.estimate import estimate

LOGGER = logging.getLogger("hopsum.reoptimization")

UNKNOWN_ELEMENTS = 1_000_000
"""Elements of the tensor by which plans are compared where no agent has reported any."""


@dataclass(frozen=True, slots=True)
class _Due:
    """The reason to evaluate a job's plan, and the state at that time."""

    cause: Cause
    own: Mapping[DirectedLink, float]
    """Bit/s that the job sends itself."""
    shares: Mapping[DirectedLink, float]
    """Free part of each link, and what the job would give up."""
    regained: Collection[str]
    """Switches where it may sum again."""


class Reoptimization:
    """Optional changes of the plans in a store. Times in seconds."""

    def __init__(
        self,
        plans: PlanStore,
        epochs: Epochs,
        procedures: Procedures,
        state: NetworkState,
        policy: ReplanningPolicy,
    ) -> None:
        self.plans = plans
        self.epochs = epochs
        self._procedures = procedures
        self._state = state
        self._policy = policy
        self._deciding = Lock()

    def replanner(self, active: ActiveJob, now: float) -> Replanner:
        """Return a job's replanner, which begins with the first call."""
        if active.replanner is None:
            active.replanner = Replanner(self._policy, 0, self._state.shares(now), now)
        return active.replanner

    def look(
        self, active: ActiveJob, round_: int, elements: int, sent: int, now: float
    ) -> Procedure[Cause | None]:
        """Start a new epoch if the state calls for it; return the reason, or None.

        `elements`: of its tensors. `sent`: bytes that its hosts have sent so far. Rounds would not
        do: a long one, or a window that is sent again in a new epoch, would pass for the load of
        others. Raises DriverError, TimeoutError where switches do not take it.
        """
        replanner, plan = self.replanner(active, now), active.plan
        if now > replanner.measured and elements:
            a_second = max(0, sent - replanner.sent) / (now - replanner.measured)
            predicted = active.round_estimate(self.plans.network, plan, elements)
            rate = sending_rate(self.plans.network.hosts, predicted, a_second)
            replanner.smooth(rate, now, SMOOTHING_SECONDS)
        replanner.sent, replanner.measured = sent, now
        if self._due(active, round_, elements, now) is None:
            # Others that decide at present need not be waited for.
            return None
        steps = self._look(active, round_, elements, now)
        return (yield from self._procedures.locked(self._deciding, steps))

    def _due(self, active: ActiveJob, round_: int, elements: int, now: float) -> _Due | None:
        """Return the reason to evaluate the plan in the present state; None: there is none."""
        number, plan = active.job.number, active.plan
        if number not in self.plans.active or self.plans.lost_to(number) or not plan.trees:
            # It has ended, waits for what failed, or has nothing to move.
            return None
        replanner = self.replanner(active, now)
        own = self._own(active, self.plans.working(), plan, elements)
        shares = self._state.shares(now, own)
        regained, recovered = self.plans.regained(number), self.plans.avoided(number)
        cause = replanner.due(round_, shares, now, bool(regained), recovered)
        if cause is None or not elements:
            return None
        return _Due(cause, own, shares, regained)

    def _own(
        self, active: ActiveJob, network: Network, plan: JobPlan, elements: int
    ) -> dict[DirectedLink, float]:
        """Return what a job's trees use of links by one of its plans, bit/s."""
        if not elements or active.replanner is None:
            return {}
        return link_rates(active.trees_estimate(network, plan, elements), active.replanner.rate)

    def _look(
        self, active: ActiveJob, round_: int, elements: int, now: float
    ) -> Procedure[Cause | None]:
        due = self._due(active, round_, elements, now)
        if due is None:
            return None
        replanner, network = self.replanner(active, now), self.plans.working()
        view = free_network(network, due.shares)
        replanner.looked(round_, due.shares, now)
        newer = yield from self._move(active, view, elements, f"{due.cause}", due.regained)
        if newer is None:
            return None
        replanner.replaced(round_)
        # Jobs that decide next must not go where this one does.
        after = self._own(active, network, newer, elements)
        self._state.expect(active.job.number, due.own, after, now)
        return due.cause

    def return_to_recovered(self, active: ActiveJob) -> Procedure[JobPlan | None]:
        """Give a job a plan over recovered elements if that is faster; return it, or None.

        Raises PlanError, DriverError, TimeoutError.
        """
        number = active.job.number
        if number not in self.plans.active or self.plans.lost_to(number):
            return None
        elements = active.job.elements or UNKNOWN_ELEMENTS
        view = self.plans.working()
        return (yield from self._move(active, view, elements, "a failed element is back in use"))

    def _move(
        self,
        active: ActiveJob,
        view: Network,
        elements: int,
        why: str,
        regained: Collection[str] = (),
    ) -> Procedure[JobPlan | None]:
        """Start a new epoch if a plan for this view of the network is worth it.

        Return the plan, or None where the job keeps its own.
        """
        number, plan = active.job.number, active.plan
        try:
            # Planning takes tenths of a second, in which others are served.
            candidate: JobPlan = yield Compute(lambda: self.plans.candidate(number, view, regained))
            kept, new = (round_cost(view, each, elements) for each in (plan, candidate))
            if not self._policy.worth(kept, new):
                candidate = plan
        except (PlanError, NetworkError) as error:
            LOGGER.info("job %d keeps its plan: %s", number, error)
            candidate = plan
        if candidate is plan:
            if number in self.plans.active:
                self.plans.keep_plan(number)
            return None
        return (yield from self.epochs.change(number, Change(why, on=view, regain=regained)))

    def recut(self, active: ActiveJob, elements: int, now: float) -> Procedure[None]:
        """Partition tensors of this size anew from the next boundary on, if that is faster.

        Other weights than before must be faster by a margin, in the present state. Raises
        DriverError, TimeoutError where switches do not take the plan's trees.
        """
        self.replanner(active, now).recut_at = now
        steps = self._recut(active, elements, now)
        yield from self._procedures.locked(self._deciding, steps)

    def _recut(self, active: ActiveJob, elements: int, now: float) -> Procedure[None]:
        number, plan = active.job.number, active.plan
        # Parts among hosts need paths, and no element of the plan's trees.
        if not elements or number not in self.plans.active or self.plans.waits(number):
            return
        network, rate = self.plans.working(), self.replanner(active, now).rate
        own = link_rates(active.round_estimate(network, plan, elements), rate)
        view = free_network(network, self._state.shares(now, own))

        def faster() -> bool:
            newer = self.plans.candidate(number, view, recut=True)
            works = (whole_rounds(each, elements) for each in (plan, newer))
            kept, new = (estimate(view, work).seconds for work in works)
            return newer.cut != plan.cut and self._policy.worth(kept, new)

        try:
            if (yield Compute(faster)):
                change = Change("other weights are faster", on=view, recut=True)
                newer = yield from self.epochs.change(number, change)
                after = link_rates(active.round_estimate(network, newer, elements), rate)
                self._state.expect(number, own, after, now)
        except PlanError as error:
            LOGGER.info("job %d keeps its weights: %s", number, error)
