"""Plans around switches that stay away while jobs run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from collectives.plan import PlanError
from controller.driver import State
from controller.manager import Manager

LOGGER = logging.getLogger("hopsum.mending")

AWAY_SECONDS = 3.0
"""A switch that only restarts is back before that, and costs a job less than a new plan."""
WATCH_SECONDS = 0.1


class SwitchStates(Protocol):
    """What tells how far the switches are (`Driver` does)."""

    def states(self) -> Mapping[str, State]:
        """How far every switch is."""


class AwayList:
    """Which switches have been out of reach for how long; `patience` in seconds."""

    def __init__(self, patience: float = AWAY_SECONDS) -> None:
        self._patience = patience
        self._since: dict[str, float] = {}

    def update(self, states: Mapping[str, State], now: float) -> set[str]:
        """Take in where the switches are; returns those that are away for too long."""
        self._since = {
            name: self._since.get(name, now)
            for name, state in states.items()
            if state is State.CONNECTING
        }
        return {name for name, since in self._since.items() if now - since >= self._patience}


async def mend(manager: Manager, switches: SwitchStates, patience: float = AWAY_SECONDS) -> None:
    """Give the jobs that used a switch a new plan once it is away for `patience` s; for ever.

    Where there is no way around it, the jobs keep their plan and wait for it. A switch that comes
    back is not planned in again. Raises DriverError, TimeoutError if the others refuse the rules.
    """
    away = AwayList(patience)
    known: set[str] = set()
    mending: asyncio.Task[None] | None = None
    try:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            lost = away.update(switches.states(), asyncio.get_running_loop().time())
            if lost - known:
                # The plan being installed may wait for the switch that is lost just now.
                if mending is not None:
                    mending.cancel()
                    await asyncio.wait([mending])
                mending = asyncio.create_task(_plan_around(manager, lost))
            known = lost
            if mending is not None and mending.done():
                mending.result()
                mending = None
    finally:
        if mending is not None:
            mending.cancel()


async def _plan_around(manager: Manager, lost: Collection[str]) -> None:
    names = ", ".join(sorted(lost))
    try:
        plans = await manager.fail(lost)
    except PlanError as error:
        LOGGER.warning("no answer from %s, and no way around: %s", names, error)
        return
    for plan in plans:
        LOGGER.warning("no answer from %s: job %d goes on in epoch %d", names, plan.job, plan.epoch)
