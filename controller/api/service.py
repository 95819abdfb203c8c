"""The controller's gRPC service, for agents of hosts and for users."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import grpc

from hopsum.collectives.messages import link_message, network_message, plan_message
from hopsum.controller import clock
from hopsum.controller.api.callers import CALLER, may_cancel, owner_of, why_not
from hopsum.controller.api.cluster_state import (
    SwitchReader,
    cluster_state,
    job_info,
    job_status,
    link_uses,
    missing_children,
    node_infos,
    slot_uses,
    switch_statuses,
)
from hopsum.controller.api.listening import Listen
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.slots import slot_message
from hopsum.controller.jobs.cluster import AgentStream, Cluster, StreamPostponedError
from hopsum.controller.jobs.engine import UnknownJobError
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import spec_from
from hopsum.controller.jobs.job_state import JobError
from hopsum.controller.jobs.journal import UnrecordedError
from hopsum.controller.jobs.priorities import PriorityError
from hopsum.controller.jobs.task_check import check_task
from hopsum.controller.jobs.tracker import refusal
from hopsum.controller.telemetry.nodes import REPORT_SECONDS, NodeError
from hopsum.controller.telemetry.slot_diagnosis import missing_message
from hopsum.controller.telemetry.state import ReportError
from hopsum.network.model import NetworkError
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.errors import InputError, OperationError

LOGGER = logging.getLogger("hopsum.service")

MOST_SLOTS = 1 << 16
"""Maximum number of slots read in one call."""
MOST_COMMANDS = 10_000
"""Maximum number of unread commands of an agent; beyond it the stream ends, and the agent
reconnects."""
NO_SWITCHES = "this controller drives no switches"
NO_LINKS = (
    "the links of this network do not belong to its controller; only those of `hopsum cluster` can "
    "be cut and restored by it"
)

Context = grpc.aio.ServicerContext[pb.AgentMessage, pb.ControllerMessage]
SetLink = Callable[[str, str, bool], None]
"""Restores a link (True) or cuts it, given its ends. Raises OperationError where that cannot be."""
Queue = asyncio.Queue[pb.NodeCommand | None]


class ControllerService(pb_grpc.ControllerServicer):
    """Serve a cluster: `async with ControllerService(cluster).serve(at(address)) as bound`.

    `switches`: those whose slots and counters may be queried; None: there are none. `set_link`:
    None: links are not this process's.
    """

    def __init__(
        self,
        cluster: Cluster,
        switches: SwitchReader | None = None,
        set_link: SetLink | None = None,
    ) -> None:
        self._cluster = cluster
        self._switches = switches
        self._set_link = set_link
        self._queues: dict[str, Queue] = {}
        """Queues of commands to each host's agent."""
        cluster.send = self._send
        cluster.end_host = self._end

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service at a server."""
        pb_grpc.add_ControllerServicer_to_server(self, server)

    @contextlib.asynccontextmanager
    async def serve(self, listen: Listen) -> AsyncIterator[str]:
        """Serve at `listen`; yield the address for agents and users."""
        async with listen([self.add_to]) as address:
            self._cluster.opened()
            try:
                yield address
            finally:
                self._cluster.end_streams()

    def _send(self, host: str, command: pb.NodeCommand) -> None:
        """Send a command to a host's agent; the stream of one that does not read ends."""
        queue = self._queues.get(host)
        if queue is None:
            return
        if queue.qsize() < MOST_COMMANDS:
            queue.put_nowait(command)
        elif queue.qsize() == MOST_COMMANDS:
            LOGGER.warning("[%s] does not read its messages", host)
            queue.put_nowait(None)

    def _end(self, host: str) -> None:
        """End the stream of a host's agent."""
        if host in self._queues:
            self._queues[host].put_nowait(None)

    # -- agents in jobs

    async def Attend(
        self, request: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ControllerMessage]:
        """Serve one agent while its stream is open."""
        first = await anext(aiter(request), None)
        if first is None or first.WhichOneof("message") != "register":
            yield refusal("expected Register as an agent's first message")
            return
        requested = first.register
        host, job = requested.host, requested.job
        if (why := why_not(host, context)) is not None:
            yield refusal(why)
            return
        stream = self._cluster.join(host, job, requested.state, requested.round, requested.instance)
        reading = asyncio.create_task(self._read(stream, request))
        LOGGER.info("[%s] attends job %d", host, job)
        try:
            while (message := await stream.next()) is not None:
                yield message
        except StreamPostponedError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            reading.cancel()
            self._cluster.leave(stream)
            LOGGER.info("[%s] left job %d", host, job)

    async def _read(self, stream: AgentStream, request: AsyncIterator[pb.AgentMessage]) -> None:
        """Process an agent's messages to the end of its stream."""
        async for message in request:
            self._cluster.receive(stream, message)
        stream.end()

    # -- agents' processes

    async def Serve(
        self,
        request: AsyncIterator[pb.NodeMessage],
        context: grpc.aio.ServicerContext[pb.NodeMessage, pb.NodeCommand],
    ) -> AsyncIterator[pb.NodeCommand]:
        """Stream commands to a host agent, for as long as its stream is open."""
        nodes = self._cluster.nodes
        first = await anext(aiter(request), None)
        if first is None or first.WhichOneof("message") != "hello":
            yield pb.NodeCommand(refused=pb.Refused(reason="expected Hello as the first message"))
            return
        host = first.hello.host
        if (why := why_not(host, context)) is not None:
            yield pb.NodeCommand(refused=pb.Refused(reason=why))
            return
        try:
            hello = first.hello
            nodes.attach(host, clock.now(), hello.memory, hello.machine, hello.instance)
        except NodeError as error:
            yield pb.NodeCommand(refused=pb.Refused(reason=str(error)))
            return
        queue: Queue = asyncio.Queue()
        if host in self._queues:
            self._queues[host].put_nowait(None)
        self._queues[host] = queue
        LOGGER.info("[%s] attached", host)
        reading = asyncio.create_task(self._take_reports(host, request, queue))
        try:
            yield pb.NodeCommand(
                welcome=pb.NodeWelcome(report_seconds=REPORT_SECONDS, links=nodes.links(host))
            )
            self._cluster.attached(host)
            while (command := await queue.get()) is not None:
                yield command
        finally:
            reading.cancel()
            # The process may have replaced this stream.
            if self._queues[host] is queue:
                del self._queues[host]
                nodes.detach(host, clock.now())
                self._cluster.detached(host)
                LOGGER.info("[%s] detached", host)

    async def _take_reports(
        self, host: str, request: AsyncIterator[pb.NodeMessage], queue: Queue
    ) -> None:
        async for message in request:
            if message.WhichOneof("message") != "report":
                continue
            try:
                self._cluster.take_report(host, message.report)
            except (ReportError, PriorityError) as error:
                LOGGER.warning("%s", error)
                refused = pb.Refused(reason=str(error))
                self._send(host, pb.NodeCommand(report_refused=refused))
        queue.put_nowait(None)

    # -- people

    async def Status(
        self,
        request: pb.StatusRequest,
        context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply],
    ) -> pb.StatusReply:
        """Return all jobs and their agents."""
        active = self._cluster.plans.active.values()
        return pb.StatusReply(jobs=[job_status(self._cluster, each) for each in active])

    async def Describe(
        self,
        request: pb.DescribeRequest,
        context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.Description],
    ) -> pb.Description:
        """Return a job's network, plan and task; the task's key is for its agents only."""
        try:
            tracker = self._cluster.engine.tracker(request.job)
        except UnknownJobError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        described = pb.Description(
            network=network_message(tracker.network),
            plan=plan_message(tracker.plan),
            task=tracker.task,
        )
        described.task.ClearField("key")
        return described

    async def Switches(
        self,
        request: pb.SwitchesRequest,
        context: grpc.aio.ServicerContext[pb.SwitchesRequest, pb.SwitchesReply],
    ) -> pb.SwitchesReply:
        """Return the switches: addresses, states, and packet counters."""
        if self._switches is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NO_SWITCHES)
        return pb.SwitchesReply(
            switches=await switch_statuses(self._cluster, self._switches, counters=request.counters)
        )

    async def Inspect(
        self,
        request: pb.InspectRequest,
        context: grpc.aio.ServicerContext[pb.InspectRequest, pb.InspectReply],
    ) -> pb.InspectReply:
        """Return slots of a switch."""
        if self._switches is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NO_SWITCHES)
        if request.count > MOST_SLOTS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{request.count} slots: expected at most {MOST_SLOTS} in one call",
            )
        reply = pb.InspectReply()
        try:
            for slot in range(request.first, request.first + request.count):
                state = await self._switches.inspect(request.switch, slot)
                reply.slots.append(slot_message(state, request.lanes))
        except DriverError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return reply

    async def WhyStuck(
        self,
        request: pb.WhyStuckRequest,
        context: grpc.aio.ServicerContext[pb.WhyStuckRequest, pb.WhyStuckReply],
    ) -> pb.WhyStuckReply:
        """Return the missing children of a job's incomplete slots."""
        if self._switches is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NO_SWITCHES)
        try:
            found = await missing_children(self._cluster, self._switches, request.job)
        except UnknownJobError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except DriverError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.WhyStuckReply(missing=map(missing_message, found))

    async def Submit(
        self, request: pb.Submission, context: grpc.aio.ServicerContext[pb.Submission, pb.JobInfo]
    ) -> pb.JobInfo:
        """Submit a job."""
        try:
            caller = CALLER.get()
            owner, limited = owner_of(caller, request.user)
            spec = replace(spec_from(request), owner=owner, limited=limited)
            check_task(spec)
            job = await self._cluster.submit(spec)
        except InputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (DriverError, TimeoutError) as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except UnrecordedError as error:
            # Another controller may lead.
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return job_info(self._cluster, job)

    async def Cancel(
        self, request: pb.JobQuery, context: grpc.aio.ServicerContext[pb.JobQuery, pb.JobInfo]
    ) -> pb.JobInfo:
        """End a job."""
        job = await self._find(request, context)
        caller = CALLER.get()
        if not may_cancel(caller, job.spec.owner):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"job {job.number} ({job.spec.name}) belongs to "
                f"{job.spec.owner or 'an unknown caller'}, and you are {caller}; only its owner "
                "or an operator can cancel it",
            )
        return job_info(self._cluster, await self._cluster.cancel(job))

    async def JobDetails(
        self, request: pb.JobQuery, context: grpc.aio.ServicerContext[pb.JobQuery, pb.JobInfo]
    ) -> pb.JobInfo:
        """Return the progress of a job, with its reports."""
        job = await self._find(request, context)
        if request.awaited:
            self._cluster.awaited(job)
        info = job_info(self._cluster, job)
        for host, report in job.reports.items():
            info.reports[host].CopyFrom(report)
        return info

    async def Jobs(
        self,
        request: pb.JobsRequest,
        context: grpc.aio.ServicerContext[pb.JobsRequest, pb.JobsReply],
    ) -> pb.JobsReply:
        """Return the progress of all jobs."""
        return pb.JobsReply(jobs=[job_info(self._cluster, job) for job in self._cluster.jobs])

    async def Nodes(
        self,
        request: pb.NodesRequest,
        context: grpc.aio.ServicerContext[pb.NodesRequest, pb.NodesReply],
    ) -> pb.NodesReply:
        """Return the hosts, whether they have an agent, and its report."""
        return pb.NodesReply(nodes=node_infos(self._cluster))

    async def Use(
        self, request: pb.UseRequest, context: grpc.aio.ServicerContext[pb.UseRequest, pb.UseReply]
    ) -> pb.UseReply:
        """Return the load of links and the owners of slots."""
        return pb.UseReply(links=link_uses(self._cluster), slots=slot_uses(self._cluster))

    async def SetLink(
        self, request: pb.LinkChange, context: grpc.aio.ServicerContext[pb.LinkChange, pb.Link]
    ) -> pb.Link:
        """Cut a link of an emulation, or restore it."""
        if self._set_link is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NO_LINKS)
        try:
            link = self._cluster.network.link_named(request.link)
            await asyncio.to_thread(self._set_link, link.a, link.b, request.up)
        except (NetworkError, OperationError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        LOGGER.warning(
            "link %s-%s is %s by %s",
            link.a,
            link.b,
            "restored" if request.up else "cut",
            CALLER.get(),
        )
        return link_message(link)

    async def State(
        self,
        request: pb.StateRequest,
        context: grpc.aio.ServicerContext[pb.StateRequest, pb.ClusterState],
    ) -> pb.ClusterState:
        """Return the whole state in one document."""
        return await cluster_state(self._cluster, self._switches)

    async def _find(
        self, query: pb.JobQuery, context: grpc.aio.ServicerContext[pb.JobQuery, pb.JobInfo]
    ) -> Job:
        """Return the job of a query; abort with NOT_FOUND if there is none."""
        try:
            return self._cluster.jobs.find(query.job, query.name)
        except JobError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
