"""Failover: jobs are planned around switches and links that fail, and onto those that come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from collectives.plan import PlanError
from controller import clock
from controller.dataplane.driver import DriverError, State
from controller.jobs.manager import Manager
from controller.jobs.reoptimizer import round_cost
from controller.telemetry.diagnosis import cut_off, element_name
from controller.telemetry.health import Element
from network.model import NetworkError

LOGGER = logging.getLogger("hopsum.failover")

WATCH_SECONDS = 0.1
RETRY_SECONDS = 5.0
"""After switches have not taken the rules of a change."""
GAIN = 0.1
"""A plan over what came back is worth an epoch if it saves more than this part of the time."""
ELEMENTS = 1_000_000
"""Of the tensor that plans are compared by."""

LinkStates = Callable[[], Mapping[Element, bool]]
"""Gives whether links are up, of those of which it is known."""


class SwitchStates(Protocol):
    """What tells how far the switches are (`Driver` does)."""

    def states(self) -> Mapping[str, State]:
        """How far every switch is."""

    def quiet(self) -> Collection[str]:
        """Return the switches that answer later than they use to."""


async def fail_over(
    manager: Manager,
    switches: SwitchStates,
    link_states: LinkStates = dict,
    reoptimize: bool = True,
) -> None:
    """Keep the jobs of a manager on the switches and links that work; for ever.

    Those away for a while are planned around, and planned in again when they are back; see
    `health` for how long, and for those that flap. A job that cannot do without one keeps its plan
    and waits for it. `reoptimize`: let jobs go on over what is back where that is faster; without
    it somebody else does (`reoptimizer`).
    """
    adapting: asyncio.Task[bool] | None = None
    pending, retry_at = False, 0.0
    try:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = clock.now()
            reachable = {**_reachable_switches(switches), **link_states()}
            manager.health.update(reachable, now, manager.awaited())
            _release_essential(manager)
            lost = manager.health.out - manager.failed
            if lost:
                LOGGER.warning("planning around %s", _names(lost))
                manager.mark_failed(lost)
                pending, retry_at = True, now
            if adapting is not None and adapting.done():
                if not adapting.result():
                    pending, retry_at = True, now + RETRY_SECONDS
                adapting = None
            due = pending or manager.failed - manager.health.out
            if adapting is None and due and now >= retry_at:
                adapting = asyncio.create_task(_adapt(manager, pending, reoptimize))
                pending = False
    finally:
        if adapting is not None:
            adapting.cancel()


def _reachable_switches(switches: SwitchStates) -> dict[Element, bool]:
    """Which switches are reachable; one that takes its program is neither."""
    quiet = switches.quiet()
    return {
        name: state is not State.CONNECTING and name not in quiet
        for name, state in switches.states().items()
        if state in (State.CONNECTING, State.READY, State.REFUSED)
    }


def _release_essential(manager: Manager) -> None:
    """End the hold-down of what flaps where hosts have no other way: there is nothing to gain."""
    held, hosts = manager.health.held(), manager.network.hosts
    apart = len(cut_off(manager.working(), hosts)) if held else 0
    if apart:
        manager.health.release(
            element
            for element in held
            if len(cut_off(manager.working_with([element]), hosts)) < apart
        )


async def _adapt(manager: Manager, failed: bool, reoptimize: bool) -> bool:
    """Bring jobs and switches in line with what is unreachable; whether that was possible."""
    try:
        for plan in await manager.fail() if failed else ():
            LOGGER.warning(
                "%s failed: job %d goes on in epoch %d",
                _names(manager.failed),
                plan.job,
                plan.epoch,
            )
        back = manager.failed - manager.health.out
        if back:
            jobs = await manager.recover(back)
            LOGGER.warning("%s back in use", _names(back))
            for job in jobs if reoptimize else ():
                await _reoptimize(manager, job)
    except (DriverError, PlanError, TimeoutError) as error:
        LOGGER.error("failover is not complete: %s; trying again", error)
        return False
    return True


async def _reoptimize(manager: Manager, job: int) -> None:
    """Give a job a plan over what came back if that makes it faster by `GAIN`."""
    network, plan = manager.working(), manager.plan_of(job)
    if manager.lost_to(job):
        return
    try:
        candidate = await asyncio.to_thread(manager.candidate, job, network)
        kept, new = (round_cost(network, each, ELEMENTS) for each in (plan, candidate))
        if new < (1 - GAIN) * kept:
            newer = await manager.replan(job, why="what failed is back")
            LOGGER.warning("job %d goes back, in epoch %d", job, newer.epoch)
        else:
            manager.keep_plan(job)
    except (PlanError, NetworkError) as error:
        LOGGER.info("job %d keeps its plan: %s", job, error)


def _names(elements: Collection[Element]) -> str:
    return ", ".join(sorted(map(element_name, elements)))
