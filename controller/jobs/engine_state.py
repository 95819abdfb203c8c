"""What the parts of the job engine share: jobs and plans, the time, and the commands so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from math import inf

from hopsum.controller.dataplane.rules import Loss
from hopsum.controller.jobs import events
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.plan_store import PlanStore
from hopsum.controller.jobs.priorities import FeedbackQueue, suitable_policy
from hopsum.controller.jobs.procedures import Procedures
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.telemetry.nodes import Nodes
from hopsum.network.model import Network


class EngineState:
    """The jobs and hosts of a network. For the arguments see `JobEngine`."""

    def __init__(
        self,
        network: Network,
        settings: ClusterSettings,
        losses: Iterable[Loss],
        date: Callable[[], float],
        new_key: Callable[[], bytes],
        now: float,
    ) -> None:
        self.network = network
        self.settings = settings
        self.date = date
        self.new_key = new_key
        self.now = now
        """Time of the event that is being processed, in seconds."""
        self.nodes = Nodes(network, now=now)
        self.jobs = JobTable(settings.journal, date, new_key)
        self.priorities = FeedbackQueue(settings.priorities or suitable_policy(network))
        self.plans = PlanStore(network, losses)
        self.procedures = Procedures()
        self.commands: list[events.Command] = []
        """Those that the driver of the engine has not taken yet."""
        self.open_since = inf
        """Time from which agents could attend jobs."""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = count()

    def send(self, command: events.Command) -> None:
        """Add a command."""
        self.commands.append(command)

    def at(self, moment: float, action: Callable[[], None] = lambda: None) -> None:
        """Call a function at a time; without one, only review all jobs then."""
        heappush(self._timers, (moment, next(self._timer_numbers), action))

    @property
    def next_timer(self) -> float:
        """Time of the next call; inf: there is none."""
        return self._timers[0][0] if self._timers else inf

    def run_timers(self) -> None:
        """Call the functions that are due."""
        while self.next_timer <= self.now:
            heappop(self._timers)[2]()
