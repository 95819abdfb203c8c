"""A cluster: drives the job engine in an event loop.

It carries out the engine's commands (rules go to the switches' driver, computations to threads,
messages to queues of agents' streams), and tells it what happens, and when time has passed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any

from hopsum.controller import clock
from hopsum.controller.background import log_defect
from hopsum.controller.dataplane.rules import Loss, SwitchRules
from hopsum.controller.jobs import events
from hopsum.controller.jobs.engine import JobEngine
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.plan_store import PlanStore
from hopsum.controller.jobs.priorities import FeedbackQueue
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.telemetry.health import Element, Health
from hopsum.controller.telemetry.nodes import Nodes
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import OperationError

LOGGER = logging.getLogger("hopsum.cluster")

MOST_MESSAGES = 10_000
"""Maximum number of unread messages of an agent; beyond it the stream ends, and the agent
reconnects."""

Install = Callable[[Mapping[str, SwitchRules]], Awaitable[None]]
"""Installs these rules, and returns when all switches have them (`Driver.apply`)."""


class StreamPostponedError(OperationError):
    """An agent's stream cannot be served now; the agent should try again."""


class AgentStream:
    """An agent's stream in a job: the messages to it, which end when the stream is to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._messages: asyncio.Queue[pb.ControllerMessage | StreamPostponedError | None] = (
            asyncio.Queue()
        )

    def put(self, message: pb.ControllerMessage) -> None:
        """Send a message; a stream that is not read ends."""
        unread = self._messages.qsize()
        if unread <= MOST_MESSAGES:
            self._messages.put_nowait(message if unread < MOST_MESSAGES else None)

    def end(self, error: StreamPostponedError | None = None) -> None:
        """End the stream after the messages so far."""
        self._messages.put_nowait(error)

    async def next(self) -> pb.ControllerMessage | None:
        """Return the next message, or None at the end. Raises StreamPostponedError."""
        message = await self._messages.get()
        if isinstance(message, StreamPostponedError):
            raise message
        return message


class Cluster:
    """The jobs and hosts of a network. Made, and used, in an event loop.

    `install` brings switches to rules. For the other arguments see `JobEngine`.
    """

    def __init__(
        self,
        network: Network,
        install: Install,
        settings: ClusterSettings | None = None,
        *,
        losses: Iterable[Loss] = (),
        date: Callable[[], float] = time.time,
        new_key: Callable[[], bytes] = secrets.token_bytes,
    ) -> None:
        self.engine = JobEngine(network, settings, losses, date, new_key, clock.now())
        self.send: Callable[[str, pb.NodeCommand], None] = lambda host, command: None
        """Sends a command to a host's agent process, if there is one."""
        self.end_host: Callable[[str], None] = lambda host: None
        """Ends the stream of a host's agent process."""
        self._install = install
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, AgentStream] = {}
        self._work: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self._set_timer(self.engine.deadline)

    @property
    def network(self) -> Network:
        """The network."""
        return self.engine.network

    @property
    def settings(self) -> ClusterSettings:
        """The settings of all jobs."""
        return self.engine.settings

    @property
    def jobs(self) -> JobTable:
        """All jobs, including finished ones."""
        return self.engine.jobs

    @property
    def plans(self) -> PlanStore:
        """The plans and resources of active jobs."""
        return self.engine.plans

    @property
    def nodes(self) -> Nodes:
        """The hosts and their latest reports."""
        return self.engine.nodes

    @property
    def health(self) -> Health:
        """Reachability of switches and links."""
        return self.engine.failover.health

    @property
    def priorities(self) -> FeedbackQueue:
        """The levels of jobs."""
        return self.engine.priorities

    @property
    def date(self) -> Callable[[], float]:
        """The wall clock, seconds since 1970."""
        return self.engine.date

    # -- requests of people

    async def submit(self, spec: JobSpec) -> Job:
        """Submit a job: it runs as soon as its agents attend, or is queued behind others.

        Raises JobError, NetworkError, PlanError for a job that can never run here, or not now if it
        is immediate, UnrecordedError for one that cannot be recorded, and DriverError, TimeoutError
        if switches do not take its rules; nothing is left of it then.
        """
        request = next(self._numbers)
        job: Job = await self._answer(request, events.JobSubmitted(request, spec))
        return job

    async def cancel(self, job: Job, reason: str = "cancelled by its owner") -> Job:
        """Cancel an active job; a finished one stays as it ended.

        Its agents are notified at once; unreachable switches lose its rules when they are back.
        """
        request = next(self._numbers)
        await self._answer(request, events.CancelRequested(request, job.number, reason))
        return job

    def awaited(self, job: Job) -> None:
        """Note that somebody waits for a job."""
        self._handle(events.JobAwaited(job.number))

    async def restore(self) -> None:
        """Install the rules of the jobs that an earlier controller has left.

        Running jobs continue as their agents return; queued ones are tried again.
        Raises DriverError, TimeoutError where switches do not take rules, UnrecordedError where an
        epoch cannot be recorded.
        """
        request = next(self._numbers)
        await self._answer(request, events.RestoreRequested(request))

    async def _answer(self, request: int, event: events.Event) -> Any:
        """Process the event of a request; return its answer, or raise the error."""
        answer = self._answers[request] = self._loop.create_future()
        self._carry_out(self.engine.handle(event, clock.now()))
        try:
            return await answer
        except asyncio.CancelledError:
            self._handle(events.RequestAbandoned(request))
            raise
        finally:
            self._answers.pop(request, None)

    # -- agents, switches and links

    def opened(self) -> None:
        """Note that agents can attend jobs from now on."""
        self._handle(events.ServiceOpened())

    def join(
        self, host: str, job: int, state: pb.AgentState, round_: int = 0, instance: str = ""
    ) -> AgentStream:
        """Open the stream of an agent that attends a job."""
        number = next(self._numbers)
        stream = self._streams[number] = AgentStream(number)
        self._handle(events.AgentJoined(number, host, job, state, round_, instance))
        return stream

    def receive(self, stream: AgentStream, message: pb.AgentMessage) -> None:
        """Process an agent's message."""
        self._handle(events.AgentSaid(stream.number, message))

    def leave(self, stream: AgentStream) -> None:
        """Process the end of an agent's stream."""
        self._streams.pop(stream.number, None)
        self._handle(events.AgentLeft(stream.number))

    def end_streams(self) -> None:
        """End the streams of all agents; the jobs stay."""
        for stream in self._streams.values():
            stream.end()

    def attached(self, host: str) -> None:
        """Let a host whose agent process is there attend its jobs."""
        self._handle(events.HostAttached(host))

    def detached(self, host: str) -> None:
        """Note that a host's agent process is gone."""
        self._handle(events.HostDetached(host))

    def take_report(self, host: str, report: pb.NodeReport, now: float | None = None) -> None:
        """Process a host's report on its links and jobs.

        Raises ReportError, PriorityError for a report that cannot be true.
        """
        self._handle(events.HostReported(host, report), now)

    def switch_changed(
        self, switch: str, reachable: bool | None, ports: Mapping[int, bool]
    ) -> None:
        """Process a switch's reachability (None: it is being programmed) and its ports' links."""
        self._handle(events.SwitchChanged(switch, reachable, ports))

    def links_changed(self, links: Mapping[Element, bool]) -> None:
        """Process the state of links as another source knows it."""
        self._handle(events.LinksChanged(links))

    # -- the engine

    def _set_timer(self, deadline: float) -> None:
        self._timer = self._loop.call_at(deadline, self._pass_time)

    def _pass_time(self) -> None:
        # Events may have moved the deadline since the timer was set.
        if clock.now() >= self.engine.deadline:
            self._handle(events.TimePassed())
        self._set_timer(self.engine.deadline)

    def _handle(self, event: events.Event, now: float | None = None) -> None:
        if not self._closed:
            self._carry_out(self.engine.handle(event, clock.now() if now is None else now))

    def _carry_out(self, commands: Iterable[events.Command]) -> None:
        for command in commands:
            match command:
                case events.InstallRules(work, rules):
                    self._start(work, partial(self._install, rules))
                case events.RunComputation(work, function):
                    self._start(work, partial(asyncio.to_thread, function))
                case events.AbandonWork(work):
                    task = self._work.pop(work, None)
                    if task is not None:
                        task.cancel()
                case events.SendToAgent(stream, message):
                    if stream in self._streams:
                        self._streams[stream].put(message)
                case events.RejectAgent(stream, message):
                    self._streams[stream].put(message)
                    self._streams[stream].end()
                case events.PostponeAgent(stream, reason):
                    self._streams[stream].end(StreamPostponedError(reason))
                case events.EndStream(stream):
                    if stream in self._streams:
                        self._streams[stream].end()
                case events.SendToHost(host, order):
                    self.send(host, order)
                case events.EndHost(host):
                    self.end_host(host)
                case events.Answer(request, value, error):
                    self._settle(request, value, error)
        deadline = self.engine.deadline
        if not self._closed and deadline < self._timer.when():
            self._timer.cancel()
            self._set_timer(deadline)

    def _settle(self, request: int, value: Any, error: Exception | None) -> None:
        answer = self._answers.get(request)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def _start(self, work: int, do: Callable[[], Awaitable[Any]]) -> None:
        task = self._work[work] = asyncio.create_task(self._do(work, do))
        task.add_done_callback(log_defect)

    async def _do(self, work: int, do: Callable[[], Awaitable[Any]]) -> None:
        event: events.Event
        try:
            event = events.WorkDone(work, await do())
        except Exception as error:  # noqa: BLE001 - it is raised where the work is awaited
            event = events.WorkFailed(work, error)
        self._work.pop(work, None)
        self._handle(event)

    async def close(self) -> None:
        """Stop; the jobs are left as they are, except those that are being submitted."""
        if self._closed:
            return
        for request in [*self._answers]:
            self._handle(events.RequestAbandoned(request))
        self._closed = True
        self._timer.cancel()
        tasks = [*self._work.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
