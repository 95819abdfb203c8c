"""The controller's gRPC service: hands plans to agents and keeps them in step (`tracker`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from collectives.messages import network_message, plan_message
from collectives.network import shorten
from collectives.plan import JobPlan, PlanError
from controller.certificates import why_not
from controller.diagnosis import condition
from controller.driver import DriverError, State, SwitchTarget
from controller.health import Health
from controller.slots import SlotState, slot_message
from controller.tracker import SILENCE_SECONDS, Outgoing, Tracker
from protocol import hopsum_pb2 as pb
from protocol import hopsum_pb2_grpc as pb_grpc
from protocol.channel import CHANNEL_OPTIONS
from protocol.outcomes import Outcome

LOGGER = logging.getLogger("hopsum.service")

CHECK_SECONDS = 1.0
STOP_SECONDS = 0.5
"""The plan of a large job is more than gRPC's 4 MB."""

NO_SWITCHES = "this controller drives no switches"

Context = grpc.aio.ServicerContext[pb.AgentMessage, pb.ControllerMessage]
Replan = Callable[[int, str], Awaitable[JobPlan]]
"""Makes (and installs) the next plan of a job because the server on a host was restarted."""


class SwitchReader(Protocol):
    """What the service needs of the driver (`Driver` is one)."""

    def targets(self) -> Mapping[str, SwitchTarget]:
        """Where every switch is."""

    def states(self) -> Mapping[str, State]:
        """How far every switch is."""

    async def outcomes(self, name: str) -> Mapping[Outcome, int]:
        """Read a switch's counters."""

    async def inspect(self, name: str, slot: int) -> SlotState:
        """Read a slot of a switch."""


class ServiceError(RuntimeError):
    """The service cannot do what it is asked; the message says what and why."""


@dataclass
class _Job:
    tracker: Tracker
    heard: Callable[[], None]
    queues: dict[str, asyncio.Queue[pb.ControllerMessage | None]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, messages: Outgoing) -> None:
        self.heard()
        for host, message in messages:
            if host in self.queues:
                self.queues[host].put_nowait(message)
        self.changed.set()

    def end_streams(self) -> None:
        for queue in self.queues.values():
            queue.put_nowait(None)


class ControllerService(pb_grpc.ControllerServicer):
    """Serves agents: `async with ControllerService().serve(address) as bound`.

    With `switches` it also answers what people ask about slots and counters.
    """

    def __init__(
        self,
        replan: Replan | None = None,
        silence: float = SILENCE_SECONDS,
        switches: SwitchReader | None = None,
    ) -> None:
        self.heard: Callable[[Tracker], None] = lambda tracker: None
        """Is told of a job of which there is news, before its agents are."""
        self.why_waiting: Callable[[int], str] = lambda job: ""
        """Says what a job waits for, and since when; empty: it goes on."""
        self.waits: Callable[[int], bool] = lambda job: False
        """Whether a job waits for a switch or link that is out of reach; its agents are told."""
        self.health = Health()
        """Of switches and links, for people to see."""
        self._jobs: dict[int, _Job] = {}
        self._switches = switches
        self._replan = replan
        self._silence = silence

    @contextlib.asynccontextmanager
    async def serve(
        self,
        address: str,
        also: Iterable[Callable[[grpc.aio.Server], None]] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> AsyncIterator[str]:
        """Listen on `host:port` (port 0: any) or `unix:path`; gives the address agents use.

        `also`: add further services to the server. With `credentials` it speaks TLS only. Raises
        ServiceError if it cannot listen.
        """
        server = grpc.aio.server(
            options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)],
        )
        pb_grpc.add_ControllerServicer_to_server(self, server)
        for add in also:
            add(server)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ServiceError(f"cannot listen on {address}: {error}") from None
        await server.start()
        checking = asyncio.create_task(self._check())
        try:
            if address.startswith("unix:"):
                yield address
            else:
                yield f"{address.rpartition(':')[0]}:{port}"
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
            for job in self._jobs.values():
                job.end_streams()
            await server.stop(STOP_SECONDS)

    # -- jobs

    def add(self, tracker: Tracker) -> None:
        """Expect the agents of a job; ServiceError if it is there already."""
        if tracker.plan.job in self._jobs:
            raise ServiceError(f"job {tracker.plan.job} is there already")
        tracker.silence = self._silence
        self._jobs[tracker.plan.job] = _Job(tracker, lambda: self.heard(tracker))

    def remove(self, job: int) -> None:
        """Forget a job; its agents' streams end."""
        self._job(job).end_streams()
        del self._jobs[job]

    def adopt(self, plan: JobPlan) -> None:
        """Hand a job's next plan to its agents."""
        job = self._job(plan.job)
        job.send(job.tracker.adopt(plan))

    def decide(self, number: int, plan: JobPlan) -> None:
        """Let a job's tensors be cut as a plan says, from a border on."""
        job = self._job(plan.job)
        job.send(job.tracker.decide(number, plan))

    def tracker(self, job: int) -> Tracker:
        """Where a job's agents are."""
        return self._job(job).tracker

    async def wait(self, job: int, until: Callable[[Tracker], bool]) -> None:
        """Wait until a job's tracker satisfies a condition."""
        entry = self._job(job)
        while not until(entry.tracker):
            entry.changed.clear()
            await entry.changed.wait()

    def _job(self, job: int) -> _Job:
        if job not in self._jobs:
            known = shorten(map(str, self._jobs)) or "none"
            raise ServiceError(f"there is no job {job}; jobs: {known}")
        return self._jobs[job]

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for number, job in self._jobs.items():
                job.send(job.tracker.check(time.monotonic()))
                if self.waits(number):
                    job.send(job.tracker.waiting())

    # -- calls

    async def Attend(
        self, request: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ControllerMessage]:
        """Serve one agent for as long as its stream is open."""
        first = await anext(aiter(request), None)
        if first is None or first.WhichOneof("message") != "register":
            yield _refused("the first message of an agent is Register")
            return
        asked = first.register
        job = self._jobs.get(asked.job)
        if job is None:
            known = shorten(map(str, self._jobs)) or "none"
            yield _refused(f"there is no job {asked.job}; jobs: {known}")
            return
        host = asked.host
        if (why := why_not(host, context)) is not None:
            yield _refused(why)
            return
        if self._replan is not None and job.tracker.needs_new_epoch(host):
            try:
                plan = await self._replan(asked.job, host)
            except (DriverError, PlanError, TimeoutError) as error:
                # It tries again.
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            job.send(job.tracker.adopt(plan))
        queue: asyncio.Queue[pb.ControllerMessage | None] = asyncio.Queue()
        messages = job.tracker.register(host, time.monotonic(), asked.state, asked.round)
        if messages[0][1].HasField("refused"):
            yield messages[0][1]
            return
        job.queues[host] = queue
        job.send(messages)
        LOGGER.info("[%s] attends job %d", host, asked.job)
        reading = asyncio.create_task(self._read(job, host, request, queue))
        try:
            while (message := await queue.get()) is not None:
                yield message
        finally:
            reading.cancel()
            del job.queues[host]
            job.send(job.tracker.gone(host))
            LOGGER.info("[%s] left job %d", host, asked.job)

    async def _read(
        self,
        job: _Job,
        host: str,
        request: AsyncIterator[pb.AgentMessage],
        queue: asyncio.Queue[pb.ControllerMessage | None],
    ) -> None:
        """Take in what an agent says, to the end of its stream."""
        async for message in request:
            job.send(job.tracker.receive(host, message, time.monotonic()))
        queue.put_nowait(None)

    async def Status(
        self,
        request: pb.StatusRequest,
        context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply],
    ) -> pb.StatusReply:
        """Tell where all jobs are."""
        now = time.monotonic()
        reply = pb.StatusReply(jobs=[job.tracker.status(now) for job in self._jobs.values()])
        for job in reply.jobs:
            job.waits_for = self.why_waiting(job.job)
        return reply

    async def Describe(
        self,
        request: pb.DescribeRequest,
        context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.Description],
    ) -> pb.Description:
        """Give a job's network and plan."""
        try:
            tracker = self._job(request.job).tracker
        except ServiceError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return pb.Description(
            network=network_message(tracker.network),
            plan=plan_message(tracker.plan),
            task=tracker.task,
        )

    async def Switches(
        self,
        request: pb.SwitchesRequest,
        context: grpc.aio.ServicerContext[pb.SwitchesRequest, pb.SwitchesReply],
    ) -> pb.SwitchesReply:
        """Tell where the switches are, how far, and what became of their packets."""
        if self._switches is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SWITCHES)
        states = self._switches.states()
        now = time.monotonic()
        reply = pb.SwitchesReply()
        for name, target in self._switches.targets().items():
            status = reply.switches.add(
                name=name,
                address=target.address,
                device_id=target.device_id,
                state=states[name],
                seconds=self.health.changed_for(name, now) or 0.0,
                health=condition(self.health, name, now),
            )
            if request.counters and states[name] is State.READY:
                try:
                    counts = await self._switches.outcomes(name)
                except DriverError as error:
                    status.state = str(error)
                    continue
                status.outcomes.update({cell.name.lower(): n for cell, n in counts.items()})
        return reply

    async def Inspect(
        self,
        request: pb.InspectRequest,
        context: grpc.aio.ServicerContext[pb.InspectRequest, pb.InspectReply],
    ) -> pb.InspectReply:
        """Read slots of a switch."""
        if self._switches is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SWITCHES)
        reply = pb.InspectReply()
        try:
            for slot in range(request.first, request.first + request.count):
                state = await self._switches.inspect(request.switch, slot)
                reply.slots.append(slot_message(state, request.lanes))
        except DriverError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return reply


def _refused(reason: str) -> pb.ControllerMessage:
    return pb.ControllerMessage(refused=pb.Refused(reason=reason))
