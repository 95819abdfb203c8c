"""Failover: plans jobs around failed switches and links, and back onto recovered ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from hopsum.collectives.plan import PlanError
from hopsum.controller import clock
from hopsum.controller.dataplane.driver import DriverError, State
from hopsum.controller.jobs.manager import Manager
from hopsum.controller.jobs.reoptimizer import round_cost
from hopsum.controller.telemetry.diagnosis import cut_off, element_name
from hopsum.controller.telemetry.health import Element
from hopsum.network.model import NetworkError

LOGGER = logging.getLogger("hopsum.failover")

WATCH_SECONDS = 0.1
RETRY_SECONDS = 5.0
"""Pause after switches failed to install the rules of a change."""
GAIN = 0.1
"""Minimum fraction of time that a plan over recovered elements must save to be worth an epoch."""
ELEMENTS = 1_000_000
"""Elements of the tensor by which plans are compared."""

LinkStates = Callable[[], Mapping[Element, bool]]
"""Returns the state of links where it is known."""


class SwitchStates(Protocol):
    """Source of the switches' states (`Driver`)."""

    def states(self) -> Mapping[str, State]:
        """State of every switch."""

    def quiet(self) -> Collection[str]:
        """Return the switches that answer later than usual."""


async def fail_over(
    manager: Manager,
    switches: SwitchStates,
    link_states: LinkStates = dict,
    reoptimize: bool = True,
) -> None:
    """Keep the jobs of a manager on working switches and links, forever.

    Elements that are down for some time are planned around, and used again when they are back; see
    `health` for the times and for flapping. A job that cannot avoid one keeps its plan and waits.
    `reoptimize`: move jobs to recovered elements where that is faster; otherwise `reoptimizer` does
    so.
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
    """Return which switches are reachable; one that is installing its program is neither."""
    quiet = switches.quiet()
    return {
        name: state is not State.CONNECTING and name not in quiet
        for name, state in switches.states().items()
        if state in (State.CONNECTING, State.READY, State.REFUSED)
    }


def _release_essential(manager: Manager) -> None:
    """End the hold-down of flapping elements where hosts have no other path."""
    held, hosts = manager.health.held(), manager.network.hosts
    apart = len(cut_off(manager.working(), hosts)) if held else 0
    if apart:
        manager.health.release(
            element
            for element in held
            if len(cut_off(manager.working_with([element]), hosts)) < apart
        )


async def _adapt(manager: Manager, failed: bool, reoptimize: bool) -> bool:
    """Adapt jobs and switches to unreachable elements; return whether that succeeded."""
    try:
        for plan in await manager.fail() if failed else ():
            LOGGER.warning(
                "%s failed: job %d continues in epoch %d",
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
        LOGGER.error("failover incomplete: %s; retrying", error)
        return False
    except Exception:
        # What is wrong with one job or planner must not end the failover of all.
        LOGGER.exception("failover failed by a defect; retrying")
        return False
    return True


async def _reoptimize(manager: Manager, job: int) -> None:
    """Give a job a plan over recovered elements if that makes it faster by `GAIN`."""
    network, plan = manager.working(), manager.plan_of(job)
    if manager.lost_to(job):
        return
    try:
        candidate = await asyncio.to_thread(manager.candidate, job, network)
        kept, new = (round_cost(network, each, ELEMENTS) for each in (plan, candidate))
        if new < (1 - GAIN) * kept:
            newer = await manager.replan(job, why="a failed element is back in use")
            LOGGER.warning("job %d returns to its plan, in epoch %d", job, newer.epoch)
        else:
            manager.keep_plan(job)
    except (PlanError, NetworkError) as error:
        LOGGER.info("job %d keeps its plan: %s", job, error)


def _names(elements: Collection[Element]) -> str:
    return ", ".join(sorted(map(element_name, elements)))
