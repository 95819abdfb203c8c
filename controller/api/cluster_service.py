"""The cluster's gRPC service: agents' processes attach, people submit and cancel jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from controller import clock
from controller.api.certificates import why_not
from controller.api.service import ControllerService, SwitchReader
from controller.dataplane.driver import DriverError
from controller.jobs.cluster import Cluster
from controller.jobs.job import Job
from controller.jobs.job_spec import spec_from
from controller.jobs.job_state import JobError
from controller.jobs.journal import Unrecorded
from controller.jobs.priorities import PriorityError
from controller.jobs.task_check import check_task
from controller.telemetry.diagnosis import link_condition
from controller.telemetry.nodes import REPORT_SECONDS, NodeError
from controller.telemetry.state import StateError
from protocol import hopsum_pb2 as pb
from protocol.errors import InputError

LOGGER = logging.getLogger("hopsum.cluster")

CHECK_SECONDS = 1.0

Queue = asyncio.Queue[pb.NodeCommand | None]


class ClusterService(ControllerService):
    """Serve a cluster: its agents, and what people ask and submit.

    `switches`: those that questions about slots and counters are about; None: there are none.
    """

    def __init__(self, cluster: Cluster, switches: SwitchReader | None = None) -> None:
        super().__init__(
            cluster.manager.agents,
            cluster.manager.server_restarted,
            switches,
            cluster.manager.health,
            lambda number: cluster.why_waiting(cluster.jobs.find(number)),
        )
        self._cluster = cluster
        self._queues: dict[str, Queue] = {}
        cluster.send = self._send

    async def check(self) -> None:
        """Let silent processes go, and catch up with the journal; runs for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._cluster.catch_up()
            for host in self._cluster.nodes.silent(clock.now()):
                LOGGER.warning("[%s] has been silent too long", host)
                self._queues[host].put_nowait(None)

    def _send(self, host: str, command: pb.NodeCommand) -> None:
        if host in self._queues:
            self._queues[host].put_nowait(command)

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
            yield pb.NodeCommand(refused=pb.Refused(reason="the first message is Hello"))
            return
        host = first.hello.host
        if (why := why_not(host, context)) is not None:
            yield pb.NodeCommand(refused=pb.Refused(reason=why))
            return
        try:
            nodes.attach(host, clock.now(), first.hello.memory, first.hello.machine)
        except NodeError as error:
            yield pb.NodeCommand(refused=pb.Refused(reason=str(error)))
            return
        queue: Queue = asyncio.Queue()
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
            del self._queues[host]
            nodes.detach(host, clock.now())
            LOGGER.info("[%s] detached", host)

    async def _take_reports(
        self, host: str, request: AsyncIterator[pb.NodeMessage], queue: Queue
    ) -> None:
        async for message in request:
            if message.WhichOneof("message") != "report":
                continue
            try:
                self._cluster.take_report(host, message.report, clock.now())
            except (StateError, PriorityError) as error:
                LOGGER.warning("%s", error)
                refused = pb.Refused(reason=str(error))
                queue.put_nowait(pb.NodeCommand(report_refused=refused))
        queue.put_nowait(None)

    # -- people

    async def Submit(
        self, request: pb.Submission, context: grpc.aio.ServicerContext[pb.Submission, pb.JobInfo]
    ) -> pb.JobInfo:
        """Take a job in."""
        try:
            spec = spec_from(request)
            check_task(spec)
            job = await self._cluster.submit(spec)
        except InputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (DriverError, TimeoutError, Unrecorded) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return self._info(job)

    async def Cancel(
        self, request: pb.JobQuery, context: grpc.aio.ServicerContext[pb.JobQuery, pb.JobInfo]
    ) -> pb.JobInfo:
        """End a job."""
        try:
            job = self._cluster.jobs.find(request.job, request.name)
        except JobError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return self._info(await self._cluster.cancel(job))

    async def JobDetails(
        self, request: pb.JobQuery, context: grpc.aio.ServicerContext[pb.JobQuery, pb.JobInfo]
    ) -> pb.JobInfo:
        """Tell how far a job is, with its reports."""
        try:
            job = self._cluster.jobs.find(request.job, request.name)
        except JobError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        info = self._info(job)
        for host, report in job.reports.items():
            info.reports[host].CopyFrom(report)
        return info

    async def Jobs(
        self,
        request: pb.JobsRequest,
        context: grpc.aio.ServicerContext[pb.JobsRequest, pb.JobsReply],
    ) -> pb.JobsReply:
        """Tell how far all jobs are."""
        return pb.JobsReply(jobs=[self._info(job) for job in self._cluster.jobs])

    async def Nodes(
        self,
        request: pb.NodesRequest,
        context: grpc.aio.ServicerContext[pb.NodesRequest, pb.NodesReply],
    ) -> pb.NodesReply:
        """Tell which hosts have an agent, and what it reported."""
        now = clock.now()
        reply = pb.NodesReply()
        for node in self._cluster.nodes:
            info = reply.nodes.add(host=node.host, attached=node.attached, seconds=now - node.since)
            info.jobs.extend(
                job.number
                for job in self._cluster.jobs
                if not job.state.over and node.host in job.hosts
            )
            if node.report is not None:
                info.report.CopyFrom(node.report)
                info.report_age = now - node.reported
        return reply

    async def Use(
        self, request: pb.UseRequest, context: grpc.aio.ServicerContext[pb.UseRequest, pb.UseReply]
    ) -> pb.UseReply:
        """Tell what links carry and who holds which switch's slots."""
        cluster, reply, now = self._cluster, pb.UseReply(), clock.now()
        for (u, v), state in cluster.nodes.state.links(now).items():
            reply.links.add(
                sender=u,
                receiver=v,
                used=state.used,
                free=state.free,
                age=state.age,
                health=link_condition(cluster.manager.health, u, v, now),
            )
        for name, switch in cluster.network.switches.items():
            if switch.aggregates:
                held = cluster.manager.slots_held(name)
                quota = cluster.settings.sharing.slots(cluster.network, name)
                reply.slots.add(switch=name, slots=switch.slots, held=held, quota=quota)
        return reply

    def _info(self, job: Job) -> pb.JobInfo:
        return pb.JobInfo(
            job=job.number,
            name=job.spec.name,
            state=job.state,
            outcome=job.outcome or "",
            reason=self._cluster.why_waiting(job),
            epoch=job.epoch,
            workers=job.request.workers,
            servers=job.auxiliary,
            round=job.round,
            submitted=job.submitted,
            started=job.started,
            ended=job.ended,
            bypassed=sorted(job.bypassed),
        )
