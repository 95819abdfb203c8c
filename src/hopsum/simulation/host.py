"""A host of the virtual world: the real agent, with an environment in virtual time.

Operations are executed immediately, without advancing the clock. Schedules use
`hopsum.simulation.tcp`, whose frames cross the world's links. Coordination messages do not
(`hopsum.simulation.coordination`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nextafter
from socket import socket
from typing import Any

import numpy as np

from hopsum.collectives.execution import Execution
from hopsum.coordination.reduction import ExternalAnd
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.io.tcp_collective import no_progress
from hopsum.host_agent.node.bandwidth import InterfaceCounters
from hopsum.host_agent.node.environment import NodeStream, RankCalls, ScheduleGroup, Stream
from hopsum.host_agent.node.host import HostAgent
from hopsum.host_agent.node.operation_pool import TaskResult
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.session import Assignment
from hopsum.host_agent.task import task_from
from hopsum.host_agent.timeout import earliest
from hopsum.host_agent.workload import ExpectedSums
from hopsum.network.model import Network
from hopsum.protocol.wire import Address
from hopsum.simulation.coordination import Group, VirtualCoordination
from hopsum.simulation.flows import VirtualPort
from hopsum.simulation.processes import ProcessDoor
from hopsum.simulation.tcp import BASE_PORT, PROTOCOL, RECEIVE_BUFFER, TCP_PROTOCOL, StreamMember
from hopsum.simulation.world import FlowAgent, Frames, World

GRADIENT_SECONDS = 1e-4
"""Seconds between two gradients of a step that become ready at one worker."""
NO_FRAMES = np.empty((0, 0), np.uint8)
_PORTS = 1 << 16


class VirtualHosts:
    """Shared state of a world's hosts; `buffer`: bytes that receivers on a host buffer.

    `work`: the work of an assignment's job; None: as its task says.
    """

    def __init__(
        self,
        world: World,
        buffer: Callable[[str], int] = lambda host: RECEIVE_BUFFER,
        work: Callable[[Assignment], Work] | None = None,
    ) -> None:
        self.world = world
        self.buffer = buffer
        expected = ExpectedSums()
        self.work = work or (lambda assignment: Work(task_from(assignment.task), expected))
        self.groups: dict[int, Group] = {}
        """Coordination groups, by job."""
        self.calls_by_flows = 0
        """Calls of processes that flows took, on hosts that have ended."""
        self.clocks: defaultdict[str, HostClock] = defaultdict(HostClock)
        """Clocks of the hosts' machines, which outlive their agents."""
        self._ports: dict[tuple[int, int], int] = {}
        self._next_port = BASE_PORT

    def first_port(self, meeting: ScheduleGroup) -> int:
        """Return the first port of a group of hosts, the same at all of them; each rank has one."""
        key = meeting.job, meeting.part
        if key not in self._ports:
            if self._next_port + len(meeting.hosts) > _PORTS:
                self._next_port = BASE_PORT
            self._ports[key] = self._next_port
            self._next_port += len(meeting.hosts)
        return self._ports[key]


class HostClock:
    """The monotonic clock of a host's machine: the virtual time, unless it drifts."""

    def __init__(self) -> None:
        self._set_at = self._shown = 0.0
        self._pace = 1.0

    def shows(self, time: float) -> float:
        """Return its reading at a virtual time."""
        return self._shown + (time - self._set_at) * self._pace

    def time_of(self, shown: float) -> float:
        """Return the virtual time of a reading: the clock does not show less then, by rounding."""
        time = self._set_at + (shown - self._shown) / self._pace
        while self.shows(time) < shown:
            time = nextafter(time, inf)
        return time

    def reading(self) -> tuple[float, float, float]:
        """Return what it showed at a virtual time, that time, and its pace since."""
        return self._shown, self._set_at, self._pace

    def drift(self, time: float, pace: float) -> None:
        """Set its rate to `pace` seconds per second from a virtual time on."""
        self._shown, self._set_at, self._pace = self.shows(time), time, pace


class VirtualHost(FlowAgent):
    """Host `name` of the world, and the `Environment` of its agent.

    `node`: the host's stream to the controller; `attend`: opens the stream of a job.
    """

    gradient_seconds = GRADIENT_SECONDS

    def __init__(
        self,
        name: str,
        hosts: VirtualHosts,
        node: NodeStream | None = None,
        attend: Callable[[int], Stream] | None = None,
        leave: Callable[[Stream], None] = lambda stream: None,
    ) -> None:
        self.name = name
        self._hosts = hosts
        self._clock = hosts.clocks[name]
        self._attend = attend
        self._leave = leave
        self._awake = False
        self._operations = 0
        self._completed: list[TaskResult] = []
        self._transports: dict[int, list[StreamTransport]] = {}
        """Transports by job, including closed ones, which may still have to retransmit."""
        self._coordinations: dict[int, VirtualCoordination] = {}
        self.agent = HostAgent(self, node)
        self._port = VirtualPort(self.agent.traffic)
        self.agent.traffic.changed = self._end_flows
        self.door: ProcessDoor | None = None
        """Where processes meet the agent, once the first of them or a job of theirs has come."""

    @property
    def now(self) -> float:
        """Return the reading of the clock of the host's machine."""
        return self._clock.shows(self._hosts.world.queue.now)

    # -- for the world

    def enter(self) -> tuple[list[int], float | None] | None:
        """See `FlowAgent`: hosts with processes or TCP take their frames themselves."""
        if self.door is not None or self._transports:
            return None
        flows = self._port.enter()
        return [*flows.values()], self._others_due

    def reading(self) -> tuple[float, float, float]:
        """See `FlowAgent`."""
        return self._clock.reading()

    def finish(self, flow: int, sent: list[Frames], now: float) -> None:
        """See `FlowAgent`."""
        self.agent.traffic.give_back(flow, sent)
        self.advance()

    def _end_flows(self) -> None:
        """End the flows before machines come or go."""
        self._port.leave(self.now)
        self._hosts.world.withdraw(self.name)

    def _streams(self) -> list[StreamMember]:
        return [each.stream for of_job in self._transports.values() for each in of_job]

    def receive(self, frames: Frames, now: float) -> None:
        """Receive frames: TCP, and frames for the agent."""
        now = self.now
        if self.door is None:
            self._port.leave(now)
        others = False
        streams = self._streams()
        if streams:
            tcp = frames[:, PROTOCOL] == TCP_PROTOCOL
            for stream in streams:
                stream.receive(frames[tcp], now)
            others = bool(tcp.any())
            frames = frames[~tcp]
        if not self._goes_on(frames, now) or others:
            self.advance()

    def _goes_on(self, frames: Frames, now: float, *, calls: bool = False) -> bool:
        """Process frames; return whether flows go on, and the agent has nothing to do.

        They run at hosts with processes, which alone hand them `calls`.
        """
        left: Frames | None = frames
        if self.door is not None:
            left = self._port.run(frames, now, calls=calls)
        if left is None:
            self._wake_processes()
            return True
        if len(left):
            self.agent.traffic.receive(left, now)
        return False

    def tick(self, now: float) -> None:
        """Run due timers."""
        now = self.now
        if self.door is None:
            self._port.leave(now)
        if self._port.runs and self._goes_on(NO_FRAMES, now):
            others = self._others_due
            if others is None or others > now:
                return
            self._port.leave(now)
        for stream in self._streams():
            stream.tick(now)
        self.agent.tick(now)
        for coordination in list(self._coordinations.values()):
            coordination.tick(now)
        self.advance()

    def take_output(self) -> list[Frames]:
        """Return the frames to send."""
        output = self._port.take_output() + self.agent.take_output()
        for stream in self._streams():
            output += stream.take_output()
        return output

    @property
    def deadline(self) -> float | None:
        """Return the time of the next timer, in virtual time."""
        due = self._due
        return None if due is None else self._clock.time_of(due)

    @property
    def _due(self) -> float | None:
        return earliest(self._port.deadline, self._others_due)

    @property
    def _others_due(self) -> float | None:
        """Return when something is due but timers of flows."""
        dues = [stream.deadline for stream in self._streams()]
        dues += [coordination.deadline for coordination in self._coordinations.values()]
        return earliest(self.agent.deadline, *dues)

    def advance(self) -> None:
        """Let the agent advance as far as possible at this instant."""
        self._port.leave(self.now)
        self._awake = True
        while self._awake:
            self._awake = False
            self.agent.advance(self.now)
            if self.door is not None and self.door.turn():
                self._awake = True
        self._wake_processes()

    def _wake_processes(self) -> None:
        if self.door is not None:
            self.door.wake()

    def go_on(self) -> None:
        """Let the agent process an event other than a frame, and send the resulting frames."""
        self.advance()
        self._hosts.world.flush(self.name)

    # -- for processes

    def connect(self, wake: Callable[[], None]) -> socket:
        """Connect a process; return its end. `wake`: called when it may have news.

        After it has said something, or closed its end (`ProcessDoor.disconnect`), call `hear`.
        """
        return self._opened().connect(wake)

    def hear(self) -> None:
        """Take in what processes have said."""
        if self._goes_on(NO_FRAMES, self.now, calls=True) and not self._opened().turn():
            self._hosts.world.flush(self.name)
        else:
            self.go_on()

    def _opened(self) -> ProcessDoor:
        if self.door is None:
            self.door = ProcessDoor(self.name)
        return self.door

    def close(self) -> None:
        """End as a process that is killed: no connection says why."""
        self._port.leave(self.now)
        self._hosts.calls_by_flows += self._port.called
        if self.door is not None:
            self.door.socket.close()
        self.agent.close()
        self._wake_processes()

    # -- for the agent

    def wake(self) -> None:
        """Let the agent advance by one step; external callers use `advance` or `go_on`."""
        self._awake = True

    def work(self, assignment: Assignment) -> Work:
        """Return the work of a job."""
        return self._hosts.work(assignment)

    def too_much(self, needed: int, what: str) -> str | None:
        """Return None: memory is not modelled."""

    def put(self, job: int, work: Callable[[], Any]) -> int:
        """Execute an operation immediately."""
        self._operations += 1
        try:
            done = TaskResult(self._operations, job, work())
        except Exception as error:  # noqa: BLE001 - the agent raises it
            done = TaskResult(self._operations, job, error=error)
        self._completed.append(done)
        self.wake()
        return self._operations

    def completed(self) -> Sequence[TaskResult]:
        """Return and clear the completed operations."""
        taken, self._completed = self._completed, []
        return taken

    def set_level(self, job: int, level: int) -> None:
        """Do nothing: no operation ever waits."""

    def use_links(self, job: int, ports: Mapping[int, int], links: Mapping[int, str]) -> None:
        """Send frames of trees over these links."""
        self._hosts.world.use_links(self.name, job, ports)

    def transport(self, meeting: ScheduleGroup) -> StreamTransport:
        """Return streams between the hosts, at separate ports."""
        port = self._hosts.first_port(meeting)
        made = StreamTransport(meeting, self, port, self._hosts.buffer(self.name))
        self._transports.setdefault(meeting.job, []).append(made)
        return made

    def coordination(
        self,
        network: Network,
        tree: CoordinationTree,
        rank: int,
        job: int,
        reduction: ExternalAnd | None,
    ) -> VirtualCoordination:
        """Return the host's process in a job's coordination."""
        group = self._hosts.groups.setdefault(job, Group(self._hosts.world, tree))
        made = self._coordinations[job] = VirtualCoordination(self, group, rank, reduction)
        return made

    def process_tensors(self, job: int) -> RankCalls:
        """Return the attendance for processes that `connect`."""
        return self._opened().socket.attendance(job)

    def attend(self, job: int) -> Stream:
        """Open the stream of a job."""
        assert self._attend is not None
        return self._attend(job)

    def report_failure(self, job: int, reason: str) -> None:
        """Send it in a stream that ends then."""
        stream = self.attend(job)
        stream.failed(reason)
        self._leave(stream)

    def leave(self, stream: Stream) -> None:
        """Forget a job."""
        self._completed = [done for done in self._completed if done.job != stream.job]
        self._hosts.world.use_links(self.name, stream.job, {})
        self._transports.pop(stream.job, None)
        if self.door is not None:
            self.door.socket.end(stream.job)
        self._coordinations.pop(stream.job, None)
        self._leave(stream)

    def awaited(self) -> Iterable[int]:
        """Return what the host's processes wait for."""
        return [] if self.door is None else self.door.socket.awaited

    def dismiss(self, job: int, why: str) -> None:
        """End the connections of processes that attend the job."""
        if self.door is not None:
            self.door.socket.end(job, why)

    def counters(self, now: float) -> Mapping[int, InterfaceCounters]:
        """Return the counters of this host's links, by port."""
        world = self._hosts.world
        ways = {
            port: (world.channels[self.name, peer], world.channels[peer, self.name])
            for port, peer in world.network.ports(self.name).items()
        }
        return {
            port: InterfaceCounters(out.bytes, back.bytes, now, carrier=not out.cut)
            for port, (out, back) in ways.items()
        }


class StreamTransport:
    """A `Transport` whose segments cross the world's links."""

    def __init__(self, meeting: ScheduleGroup, host: VirtualHost, port: int, buffer: int) -> None:
        addresses = {
            rank: Address(peer.mac_bytes, peer.ip_bytes) for rank, peer in enumerate(meeting.hosts)
        }
        self.stream = StreamMember(
            meeting.rank, addresses, host.now, port, buffer, meeting.patience
        )
        self.stream.tos = meeting.tos
        self._host = host
        self._rank = meeting.rank
        self._execution: Execution | None = None

    @property
    def busy(self) -> bool:
        """Return whether a schedule is in progress. Raises PeerLost if nothing moves any more."""
        if self.stream.stalled(self._host.now):
            raise no_progress(self._rank, self.stream.patience)
        return self._execution is not None and not self._execution.done

    def run(self, make: Callable[[], Execution]) -> None:
        """Execute this host's part of a schedule."""
        self._execution = make()
        self.stream.start(self._execution, self._host.now)

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future packets."""
        self.stream.tos = tos

    def postpone(self) -> None:
        """Restart the timeout of the schedule in progress."""
        self.stream.postpone(self._host.now)

    @property
    def sent_bytes(self) -> int:
        """Return the bytes sent so far."""
        return self.stream.sent_bytes

    @property
    def retransmissions(self) -> int:
        """Return the number of segments retransmitted."""
        return self.stream.retransmissions

    def close(self) -> None:
        """Close: start nothing more, but retransmit sent data until it has arrived."""
        self.stream.abort()
