"""The controller's gRPC service: hands plans to agents and keeps them in step (`tracker`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import grpc

from collectives.messages import network_message, plan_message
from collectives.plan import JobPlan, PlanError
from controller import clock
from controller.api.certificates import why_not
from controller.dataplane.driver import DriverError, State, SwitchTarget
from controller.dataplane.slots import SlotState, slot_message
from controller.jobs.agents import AgentRegistry, MessageQueue, UnknownJobError
from controller.telemetry.diagnosis import condition
from controller.telemetry.health import Health
from protocol import hopsum_pb2 as pb
from protocol import hopsum_pb2_grpc as pb_grpc
from protocol.channel import CHANNEL_OPTIONS
from protocol.errors import OperationError
from protocol.outcomes import Outcome

LOGGER = logging.getLogger("hopsum.service")

CHECK_SECONDS = 1.0
STOP_SECONDS = 0.5
"""The plan of a large job is more than gRPC's 4 MB."""

AddTo = Callable[[grpc.aio.Server], None]
"""Lets a server answer a service's calls."""
Listen = Callable[[Iterable[AddTo]], AbstractAsyncContextManager[str]]
"""Makes services known at an address, which it gives, for as long as its block runs."""

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


class ServiceError(OperationError):
    """The service cannot listen; the message says where and why."""


def at(address: str, credentials: grpc.ServerCredentials | None = None) -> Listen:
    """Listen on `host:port` (port 0: any) or `unix:path`; with `credentials` speak TLS only.

    Entering its block raises ServiceError if that cannot be.
    """

    @contextlib.asynccontextmanager
    async def listen(services: Iterable[AddTo]) -> AsyncIterator[str]:
        server = grpc.aio.server(options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])
        for add in services:
            add(server)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ServiceError(f"cannot listen on {address}: {error}") from None
        await server.start()
        try:
            yield address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        finally:
            await server.stop(STOP_SECONDS)

    return listen


class ControllerService(pb_grpc.ControllerServicer):
    """Serve the agents of jobs: `async with ControllerService(agents).serve(at(address)) as bound`.

    `replan`: as `Replan`; None: jobs keep their epoch. With `switches` the service also answers
    questions about slots and counters. `health`: of switches and links. `why_waiting`: what a job
    waits for, and since when; empty if it makes progress.
    """

    def __init__(
        self,
        agents: AgentRegistry,
        replan: Replan | None = None,
        switches: SwitchReader | None = None,
        health: Health | None = None,
        why_waiting: Callable[[int], str] = lambda job: "",
    ) -> None:
        self._agents = agents
        self._replan = replan
        self._switches = switches
        self._health = health or Health()
        self._why_waiting = why_waiting

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let a server answer these calls."""
        pb_grpc.add_ControllerServicer_to_server(self, server)

    @contextlib.asynccontextmanager
    async def serve(self, listen: Listen) -> AsyncIterator[str]:
        """Serve as `listen` says; gives the address that agents and people use."""
        async with listen([self.add_to]) as address:
            checking = asyncio.create_task(self._check())
            try:
                yield address
            finally:
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
                self._agents.end_streams()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._agents.check(clock.now())

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
        host, job = asked.host, asked.job
        try:
            tracker = self._agents.tracker(job)
        except UnknownJobError as error:
            yield _refused(str(error))
            return
        if (why := why_not(host, context)) is not None:
            yield _refused(why)
            return
        if self._replan is not None and tracker.needs_new_epoch(host):
            try:
                plan = await self._replan(job, host)
            except (DriverError, PlanError, TimeoutError) as error:
                # It tries again.
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            self._agents.adopt(plan)
        try:
            queue, refused = self._agents.connect(host, job, asked.state, asked.round, clock.now())
        except UnknownJobError as error:
            yield _refused(str(error))
            return
        if refused is not None:
            yield refused
            return
        LOGGER.info("[%s] attends job %d", host, job)
        reading = asyncio.create_task(self._read(host, job, request, queue))
        try:
            while (message := await queue.get()) is not None:
                yield message
        finally:
            reading.cancel()
            self._agents.disconnect(host, job, queue)
            LOGGER.info("[%s] left job %d", host, job)

    async def _read(
        self,
        host: str,
        job: int,
        request: AsyncIterator[pb.AgentMessage],
        queue: MessageQueue,
    ) -> None:
        """Take in what an agent says, to the end of its stream."""
        async for message in request:
            self._agents.receive(host, job, message, clock.now())
        queue.put_nowait(None)

    async def Status(
        self,
        request: pb.StatusRequest,
        context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply],
    ) -> pb.StatusReply:
        """Tell where all jobs are."""
        now = clock.now()
        reply = pb.StatusReply(jobs=[tracker.status(now) for tracker in self._agents])
        for job in reply.jobs:
            job.waits_for = self._why_waiting(job.job)
        return reply

    async def Describe(
        self,
        request: pb.DescribeRequest,
        context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.Description],
    ) -> pb.Description:
        """Give a job's network and plan."""
        try:
            tracker = self._agents.tracker(request.job)
        except UnknownJobError as error:
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
        now = clock.now()
        reply = pb.SwitchesReply()
        for name, target in self._switches.targets().items():
            status = reply.switches.add(
                name=name,
                address=target.address,
                device_id=target.device_id,
                state=states[name],
                seconds=self._health.changed_for(name, now) or 0.0,
                health=condition(self._health, name, now),
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
