"""A job engine whose plans a test changes directly, with switches that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from hopsum.collectives.plan import JobPlan
from hopsum.controller.dataplane.rules import Loss, SwitchRules
from hopsum.controller.jobs import events
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.cluster import AgentStream, Cluster
from hopsum.controller.jobs.engine import JobEngine
from hopsum.controller.jobs.epochs import Levels
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.plan_store import Change
from hopsum.controller.jobs.procedures import Procedure
from hopsum.controller.jobs.tracker import Tracker
from hopsum.controller.telemetry.health import Element, link_element
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from tests.support.machine import PATIENCE

T = TypeVar("T")
Install = Callable[[Mapping[str, SwitchRules]], Awaitable[None]]


class Performer:
    """Drives an engine in the running loop, with rules that `install` takes. No time passes."""

    def __init__(self, engine: JobEngine, install: Install) -> None:
        self._engine = engine
        self._install = install
        self._work: dict[int, asyncio.Task[None]] = {}

    def handle(self, event: events.Event) -> None:
        for command in self._engine.handle(event, self._engine.now):
            match command:
                case events.InstallRules(work, rules):
                    self._work[work] = asyncio.create_task(self._do(work, self._install(rules)))
                case events.RunComputation(work, function):
                    doing = asyncio.to_thread(function)
                    self._work[work] = asyncio.create_task(self._do(work, doing))
                case events.AbandonWork(work):
                    self._work[work].cancel()

    async def _do(self, work: int, doing: Awaitable[Any]) -> None:
        event: events.Event
        try:
            event = events.WorkDone(work, await doing)
        except Exception as error:  # noqa: BLE001 - it is raised where the work is awaited
            event = events.WorkFailed(work, error)
        self.handle(event)


class Manager:
    """The plans of an engine: of one of its own, or of a cluster's."""

    def __init__(
        self,
        network: Network,
        install: Install,
        losses: Iterable[Loss] = (),
        cluster: Cluster | None = None,
    ) -> None:
        self.network = network
        self.install = install
        if cluster is None:
            self.engine = JobEngine(network, losses=losses)
            self._go_on = partial(Performer(self.engine, install).handle, events.LinksChanged({}))
        else:
            self.engine = cluster.engine
            self._go_on = partial(cluster.links_changed, {})
        self.store = self.engine.plans
        self.epochs = self.engine.epochs

    async def perform(self, steps: Procedure[T]) -> T:
        """Carry out a procedure; return its result, or raise its error."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(value: T, error: Exception | None) -> None:
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        number = self.engine.procedures.start(steps, done)
        self._go_on()
        try:
            return await answer
        except asyncio.CancelledError:
            self.engine.procedures.interrupt(number)
            self._go_on()
            raise

    async def submit(
        self,
        job: Job,
        measured: Callable[[Network], Network] = lambda network: network,
        levels: Levels | None = None,
    ) -> JobPlan:
        """Plan a job and install its rules."""
        return await self.perform(self.epochs.admit(job, measured, levels))

    async def replan(
        self,
        job: int,
        servers: tuple[str, ...] | None = None,
        on: Network | None = None,
        regain: Collection[str] = (),
        why: str = "",
    ) -> JobPlan:
        """Start a job's next epoch."""
        change = Change(why, servers, on, regain)
        return await self.perform(self.epochs.change(job, change))

    async def fail(
        self, nodes: Iterable[str] = (), links: Iterable[tuple[str, str]] = ()
    ) -> list[JobPlan]:
        """Plan around failed switches and links."""
        self.mark_failed([*nodes, *(link_element(*link) for link in links)])
        return await self.perform(self.epochs.fail())

    def mark_failed(self, elements: Collection[Element]) -> None:
        """Mark switches and links as failed, unreachable for long."""
        health, now = self.engine.failover.health, self.engine.now
        new = [element for element in elements if element not in health.out]
        for reachable, ago in ((True, 100.0), (False, 50.0)):
            health.update(dict.fromkeys(new, reachable), now - ago)
        health.update({}, now)
        self.epochs.mark_failed(elements)

    async def recover(self, elements: Iterable[Element]) -> list[int]:
        """Use switches and links again."""
        elements = [*elements]
        health, now = self.engine.failover.health, self.engine.now
        health.update(dict.fromkeys(elements, True), now, elements)
        return await self.perform(self.epochs.recover(elements))

    async def remove(self, job: int) -> None:
        """Remove a job with its rules."""
        await self.perform(self.epochs.remove(job))

    async def refresh(self) -> None:
        """Install the rules of all jobs."""
        await self.perform(self.epochs.refresh())

    def active(self, job: int) -> ActiveJob:
        """Return an active job."""
        return self.store.job(job)

    def tracker(self, job: int) -> Tracker:
        """Return the tracker of a job's agents."""
        return self.engine.tracker(job)

    def why_waiting(self, job: int) -> str:
        """Return the failed elements that a job waits for."""
        return self.engine.describe(self.store.lost_to(job))


def join(cluster: Cluster, host: str, job: int, state: pb.AgentState = pb.READY) -> AgentStream:
    """Let a host's agent attend a job and say that it is ready, or in this state."""
    stream = cluster.join(host, job, pb.EXPECTED if state <= pb.READY else state)
    if state == pb.READY:
        cluster.receive(stream, pb.AgentMessage(ready=pb.Ready()))
    return stream


async def next_check(cluster: Cluster) -> None:
    """Return when the engine has looked for agents that timed out and for pending records."""
    due = cluster.engine.next_check
    async with asyncio.timeout(PATIENCE):
        while cluster.engine.next_check == due:
            await asyncio.sleep(0.01)


def manage(cluster: Cluster) -> Manager:
    """Return the plans of a running cluster."""

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        raise AssertionError("the cluster installs rules itself")

    return Manager(cluster.network, install, cluster=cluster)
