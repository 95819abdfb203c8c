"""Failover: plans jobs around unreachable switches and links, and uses those again that are back.

`telemetry.health` has the times, and how elements that flap are held down.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hopsum.collectives.plan import PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.procedures import Procedure
from hopsum.controller.jobs.reoptimization import Reoptimization
from hopsum.controller.telemetry.diagnosis import cut_off, element_name
from hopsum.controller.telemetry.health import Element, Health
from hopsum.controller.telemetry.link_states import link_states

LOGGER = logging.getLogger("hopsum.failover")

RETRY_SECONDS = 5.0
"""Pause after switches failed to install the rules of a failover."""


class Failover:
    """The state of a network's switches and links, and what follows from it for jobs.

    `recovered` is called when elements are back. `returns`: whether jobs return to recovered
    elements at once where that is faster; else their next look at the network moves them.
    """

    def __init__(
        self,
        state: EngineState,
        epochs: Epochs,
        reoptimization: Reoptimization,
        recovered: Callable[[], object],
        *,
        returns: bool,
    ) -> None:
        self.health = Health()
        self._state = state
        self._plans = state.plans
        self._epochs = epochs
        self._reoptimization = reoptimization
        self._recovered = recovered
        self._returns = returns
        self._ports: dict[str, Mapping[int, bool]] = {}
        self._review_at = math.inf
        self._adapting = False
        self._failed_anew, self._retry_at = False, 0.0

    @property
    def deadline(self) -> float:
        """Time of the next review; inf: when something changes."""
        retry = self._failed_anew and not self._adapting
        return min(self._review_at, self._retry_at if retry else math.inf)

    def switch_changed(
        self, switch: str, reachable: bool | None, ports: Mapping[int, bool]
    ) -> None:
        """Process a switch's state (None: being programmed) and that of its links."""
        self._ports[switch] = ports
        if reachable is not None:
            self.links_changed({switch: reachable})
        self.update_links()

    def links_changed(self, reachable: Mapping[Element, bool]) -> None:
        """Process which elements are reachable; others stay as they were."""
        self.health.update(reachable, self._state.now, self._plans.awaited())

    def update_links(self) -> None:
        """Update the state of links from what both of their ends report."""
        self.links_changed(link_states(self._plans.network, self._ports, self._state.nodes))

    def review(self) -> None:
        """Plan around elements that have been unreachable for some time, and use those again that
        are back."""
        self.links_changed({})
        self._release_essential()
        lost = self.health.out - self._plans.failed
        if lost:
            LOGGER.warning("planning around %s", _names(lost))
            self._epochs.mark_failed(lost)
            self._failed_anew, self._retry_at = True, self._state.now
        due = self._failed_anew or self._plans.failed - self.health.out
        if due and not self._adapting and self._state.now >= self._retry_at:
            self._adapting = True
            self._state.procedures.start(self._adapt(self._failed_anew), self._adapted)
            self._failed_anew = False
        self._review_at = self.health.next_change()

    def _release_essential(self) -> None:
        """End the hold-down of flapping elements where hosts have no other path."""
        held, hosts = self.health.held(), self._plans.network.hosts
        apart = len(cut_off(self._plans.working(), hosts)) if held else 0
        if apart:
            self.health.release(
                element
                for element in held
                if len(cut_off(self._plans.working_with([element]), hosts)) < apart
            )

    def _adapt(self, failed: bool) -> Procedure[None]:
        """Adapt jobs and switches to elements that are unreachable, or back."""
        if failed:
            yield from self._plan_around()
        back = self._plans.failed - self.health.out
        if not back:
            return
        jobs = yield from self._epochs.recover(back)
        LOGGER.warning("%s back in use", _names(back))
        self._recovered()
        if any(map(self._plans.lost_to, self._plans.active)):
            # They have waited for elements that are still away; those that are back may do.
            yield from self._plan_around()
        for number in jobs if self._returns else ():
            active = self._plans.active.get(number)
            if active is not None:
                newer = yield from self._reoptimization.return_to_recovered(active)
                if newer is not None:
                    LOGGER.warning("job %d returns to its plan, in epoch %d", number, newer.epoch)

    def _plan_around(self) -> Procedure[None]:
        """Plan jobs around failed elements; those that cannot do without them wait."""
        for plan in (yield from self._epochs.fail()):
            around = _names(self._plans.failed)
            LOGGER.warning("%s failed: job %d continues in epoch %d", around, plan.job, plan.epoch)

    def _adapted(self, value: Any, error: Exception | None) -> None:
        self._adapting = False
        if error is None:
            return
        self._failed_anew, self._retry_at = True, self._state.now + RETRY_SECONDS
        if isinstance(error, DriverError | PlanError | TimeoutError):
            LOGGER.error("failover incomplete: %s; retrying", error)
        else:
            # What is wrong with one job or planner must not end the failover of all.
            LOGGER.error("failover failed by a defect; retrying", exc_info=error)


def _names(elements: Iterable[Element]) -> str:
    return ", ".join(sorted(map(element_name, elements)))
