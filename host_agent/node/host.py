"""One host's agent, without I/O: its roles in all jobs, their frames, and its commands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from hopsum.host_agent.codec import Frames
from hopsum.host_agent.interfaces import ONLY_PORT, options_for
from hopsum.host_agent.node.bandwidth import InterfaceCounters, rates_between
from hopsum.host_agent.node.environment import Environment, NodeStream, Stream
from hopsum.host_agent.node.member import Member, PeerGone
from hopsum.host_agent.node.traffic_priority import TrafficPriority
from hopsum.host_agent.node.vectors import VectorQueues
from hopsum.host_agent.timeout import earliest
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError

LOGGER = logging.getLogger("hopsum-agent")


class HostAgent:
    """State machine of a host with jobs that `join` and `leave`, or end by themselves: frames and
    time in, frames out.

    Errors that end one job's member are reported to the controller, kept in `failures`, and affect
    no other. A controller that assigns such a job again did not receive the report, as it was down:
    it gets the same one again. `node`: the host's own stream, by which the controller assigns jobs
    and receives the host's reports. Call `advance` after every `wake` of the environment, and
    whenever a stream has events. Raises ControllerError if the controller rejects this host.
    """

    def __init__(self, environment: Environment, node: NodeStream | None = None) -> None:
        self.traffic = TrafficPriority()
        self.failures: dict[int, Exception] = {}
        """Errors that ended members of jobs here, until `leave` or the next `join`."""
        self._reports: dict[int, str] = {}
        """What the controller was told of these, where no other member can take their place."""
        self._environment = environment
        self._node = node
        self._vectors = VectorQueues(environment.wake)
        self._members: dict[int, Member] = {}
        self._report_seconds: float | None = None
        self._next_report = 0.0
        self._links: Mapping[str, pb.LinkRate] = {}
        """By neighbour."""
        self._counted: Mapping[str, InterfaceCounters] | None = None

    @property
    def members(self) -> Mapping[int, Member]:
        """The members that are not over, by job."""
        return self._members

    # -- jobs

    def join(self, stream: Stream) -> None:
        """Attend the job of a stream, which the environment ends (`leave`).

        ValueError if the host is in that job already.
        """
        job = stream.job
        if job in self._members:
            raise ValueError(f"host {stream.host} attends job {job} already")
        self._forget_failure(job)
        self._members[job] = Member(
            stream,
            self._environment,
            partial(self.traffic.add, job),
            self._vectors,
            partial(self.traffic.sent_bytes, job),
            partial(self._assign_level, job),
        )

    def leave(self, job: int, why: str = "the job is over") -> None:
        """Leave a job in any state; do nothing if this host does not attend it."""
        self._forget_failure(job)
        member = self._members.pop(job, None)
        if member is None:
            return
        self.traffic.remove(job)
        self._vectors.drop(job)
        member.close(why)
        self._environment.leave(member.stream)

    def _forget_failure(self, job: int) -> None:
        self.failures.pop(job, None)
        self._reports.pop(job, None)

    def set_level(self, job: int, level: int, early_tensors: int = 0) -> None:
        """Assign a job's frames and operations to the queues of a level, here and on the path.

        Until the host has summed `early_tensors`, that is level 0.
        """
        if job in self._members:
            self._members[job].set_level(level, early_tensors)

    def _assign_level(self, job: int, level: int) -> None:
        self._environment.set_level(job, level)
        self.traffic.set_level(job, level)

    def close(self) -> None:
        """Leave every job."""
        for job in list(self._members):
            self.leave(job)

    # -- frames and time

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        self.traffic.receive(frames, now)
        self.advance(now)

    def tick(self, now: float) -> None:
        """Run due timers."""
        self.traffic.tick(now)
        self.tick_members(now)

    def tick_members(self, now: float) -> None:
        """Run due timers except those of `traffic`, and advance every job; for callers that tick
        `traffic`."""
        for member in list(self._members.values()):
            self._guard(member, partial(member.tick, now))
        self.advance(now)

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length."""
        return self.traffic.take_output()

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick`."""
        return earliest(self.traffic.deadline, self.members_deadline)

    @property
    def stirred(self) -> bool:
        """Whether received frames may have given `advance` something to do."""
        return any(member.stirred for member in self._members.values())

    @property
    def members_deadline(self) -> float | None:
        """Latest time to call `tick_members`."""
        report = None if self._report_seconds is None else self._next_report
        return earliest(report, *[member.deadline for member in self._members.values()])

    def advance(self, now: float) -> None:
        """Advance every job as far as possible."""
        if self._node is not None:
            for command in self._node.commands():
                self._obey(command)
        for done in self._environment.completed():
            member = self._members.get(done.job)
            if member is not None:
                self._guard(member, partial(member.completed, done, now))
        for member in list(self._members.values()):
            self._guard(member, partial(member.advance, now))
            # One that has failed has left already, and what ended it is kept.
            if member.over and member.job in self._members:
                self.leave(member.job)
        if self._report_seconds is not None and now >= self._next_report:
            self._report(now)

    def _guard(self, member: Member, step: Callable[[], None]) -> None:
        """Advance a member; its errors end only this member."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - one job's end must not be the others'
            LOGGER.error("job %d: %s: %s", member.job, type(error).__name__, error)
            what = error.for_controller if isinstance(error, PeerGone) else str(error)
            report = f"{type(error).__name__}: {what}"
            member.stream.failed(report)
            self.leave(member.job, str(error))
            self.failures[member.job] = error
            if not member.replaceable:
                self._reports[member.job] = report

    # -- status

    @property
    def counted(self) -> Mapping[str, InterfaceCounters]:
        """The last counters of the host's links, by neighbour."""
        return self._counted or {}

    def features(self) -> list[pb.JobFeatures]:
        """Return the progress of each job here."""
        return [
            pb.JobFeatures(
                job=member.job,
                round=member.round,
                elements=member.elements,
                sent_bytes=member.sent_bytes,
                retransmissions=member.retransmissions,
                summed_bytes=member.summed_bytes,
            )
            for member in list(self._members.values())
        ]

    # -- the controller

    def _obey(self, command: pb.NodeCommand) -> None:
        assert self._node is not None
        match command.WhichOneof("message"):
            case "welcome":
                self._report_seconds = command.welcome.report_seconds
                self._links = {link.peer: link for link in command.welcome.links}
                self._counted = None
                LOGGER.info("attached to the controller at %s", self._node.address)
            case "refused":
                raise ControllerError(f"rejected by the controller: {command.refused.reason}")
            case "report_refused":
                LOGGER.warning("report ignored: %s", command.report_refused.reason)
            case "attend":
                self._attend(command.attend.job)
            case "leave":
                if command.leave.job in self._members:
                    LOGGER.info("leaves job %d: %s", command.leave.job, command.leave.reason)
                else:
                    self._environment.dismiss(command.leave.job, command.leave.reason)
                self.leave(command.leave.job, command.leave.reason)
            case "priority":
                priority = command.priority
                self.set_level(priority.job, priority.level, priority.early_tensors)

    def _attend(self, job: int) -> None:
        if job in self._members:
            return
        report = self._reports.get(job)
        if report is None:
            LOGGER.info("attends job %d", job)
            self.join(self._environment.attend(job))
        else:
            LOGGER.info("reports again why job %d failed here", job)
            self._environment.report_failure(job, report)

    def _report(self, now: float) -> None:
        assert self._node is not None and self._report_seconds is not None
        self._next_report = now + self._report_seconds
        report = pb.NodeReport()
        counted = self._read_counters(now)
        if self._counted is None:
            self._warn_of_others(counted)
        for peer, after in counted.items():
            before = self.counted.get(peer)
            if before is None or after.at <= before.at:
                continue
            used = rates_between(before, after, self._links[peer].rate)
            report.interfaces.add(
                peer=peer,
                sent=used.sent,
                received=used.received,
                free_sent=used.free_sent,
                free_received=used.free_received,
                no_carrier=not after.carrier,
            )
        self._counted = counted
        report.jobs.extend(self.features())
        report.awaited.extend(self._environment.awaited())
        self._node.report(report)

    def _read_counters(self, now: float) -> dict[str, InterfaceCounters]:
        """Return the counters of the links that have an interface here, by neighbour."""
        counted = self._environment.counters(now)
        only = counted.get(ONLY_PORT) if len(self._links) == 1 else None
        found = {peer: counted.get(link.port, only) for peer, link in self._links.items()}
        return {peer: each for peer, each in found.items() if each is not None}

    def _warn_of_others(self, counted: Mapping[str, InterfaceCounters]) -> None:
        """Log the links that have no interface here: trees over them would fail."""
        others = [peer for peer in self._links if peer not in counted]
        if others:
            LOGGER.warning(
                "no interface for the host's links to %s: their load is not reported, and trees "
                "cannot use them; expected %s",
                ", ".join(others),
                options_for(link.port for link in self._links.values()),
            )
