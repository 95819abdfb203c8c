"""A host's agent in real time: threads, sockets and a port around `HostAgent`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hopsum.coordination.reduction import ExternalAnd
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.interfaces import options_for
from hopsum.host_agent.io.attendance import Attendance
from hopsum.host_agent.io.controller_client import AgentStream
from hopsum.host_agent.io.coordination import Coordinator
from hopsum.host_agent.io.loop import Loop
from hopsum.host_agent.io.port import FramePort, LinksPort
from hopsum.host_agent.io.process_socket import ProcessSocket
from hopsum.host_agent.io.tcp_collective import BASE_PORT
from hopsum.host_agent.io.tcp_transport import TcpTransport
from hopsum.host_agent.io.wakeup import Wakeup
from hopsum.host_agent.memory import too_much
from hopsum.host_agent.node.bandwidth import InterfaceCounters
from hopsum.host_agent.node.client import NodeClient
from hopsum.host_agent.node.environment import ScheduleGroup, Stream
from hopsum.host_agent.node.host import HostAgent
from hopsum.host_agent.node.operation_pool import OperationPool, TaskResult
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.session import Assignment
from hopsum.host_agent.task import TaskError, task_from
from hopsum.network.model import Network
from hopsum.protocol.channel import Tls

PORTS = 8192
"""Jobs' TCP ports are numbered from BASE_PORT by job number and part."""
COORDINATION_PORTS = 4096
"""Jobs' ports for coordination, after those of their schedules."""

Counters = Callable[[float], Mapping[int, InterfaceCounters]]
"""The counters of the host's interfaces, by port, at a time (s)."""


class RealEnvironment:
    """The `Environment` of this machine and process.

    `node`: the host's own stream, whose controller its jobs attend. `watch` and `unwatch` take
    streams' descriptors.
    """

    gradient_seconds = 0.0

    def __init__(
        self,
        host: str,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
        node: NodeClient | None = None,
        counters: Counters | None = None,
        tls: Tls | None = None,
        port: FramePort | None = None,
    ) -> None:
        self.pool = OperationPool()
        self._port = port
        self.processes: ProcessSocket | None = None
        self._host = host
        self._watch = watch
        self._unwatch = unwatch
        self._node = node
        self._counters = counters
        self._tls = tls
        self._wakeup = Wakeup()

    def fileno(self) -> int:
        """Return a descriptor that is readable after `wake`."""
        return self._wakeup.fileno()

    def wake(self) -> None:
        """Schedule an advance of the host's agent; from any thread."""
        self._wakeup.set()

    def awake(self) -> None:
        """Advance the agent; `fileno` is no longer readable."""
        self._wakeup.clear()

    def work(self, assignment: Assignment) -> Work:
        """Return the work in the job's task."""
        return Work(task_from(assignment.task))

    def too_much(self, needed: int, what: str) -> str | None:
        """As `hopsum.host_agent.memory`."""
        return too_much(needed, what)

    def put(self, job: int, work: Callable[[], Any]) -> int:
        """Queue an operation."""
        return self.pool.put(job, work)

    def completed(self) -> Sequence[TaskResult]:
        """Empty the completion queue."""
        return self.pool.completed()

    def set_level(self, job: int, level: int) -> None:
        """Assign a job's operations to the queue of a level."""
        self.pool.set_level(job, level)

    def use_links(self, job: int, ports: Mapping[int, int], links: Mapping[int, str]) -> None:
        """Send frames of trees from the interfaces at these ports."""
        interfaces: Mapping[int, str] = {}
        if isinstance(self._port, LinksPort):
            interfaces = self._port.interfaces
        if (len(links) > 1 or interfaces) and not interfaces.keys() >= set(ports.values()):
            raise TaskError(
                f"job {job}: host {self._host} has links to {', '.join(links.values())}, and its "
                f"agent was started without an interface for each; expected {options_for(links)}"
            )
        if isinstance(self._port, LinksPort) and interfaces:
            self._port.use_links(job, ports)

    def transport(self, meeting: ScheduleGroup) -> TcpTransport:
        """TCP connections, at the meeting's own port."""
        return TcpTransport(
            meeting.rank,
            [host.ip for host in meeting.hosts],
            meeting.channels,
            self.wake,
            port_of(meeting.job, meeting.part),
            meeting.job << 48 | meeting.part,
            meeting.tos,
            meeting.patience,
        )

    def coordination(
        self,
        network: Network,
        tree: CoordinationTree,
        rank: int,
        job: int,
        reduction: ExternalAnd | None,
    ) -> RealCoordination:
        """Return a `Coordinator`, at the job's own port."""
        return RealCoordination(network, tree, rank, job, reduction, self.wake)

    def process_tensors(self, job: int) -> Attendance:
        """Return the attendance for a process that connects to this agent's socket."""
        if self.processes is None:
            raise TaskError(
                f"job {job}, host {self._host}: its agent accepts no processes; expected one "
                "started by `hopsum-agent serve`"
            )
        return self.processes.attendance(job)

    def attend(self, job: int) -> Stream:
        """Connect to the controller of the host's own stream."""
        client = self._client(job)
        self.open(client)
        return client

    def report_failure(self, job: int, reason: str) -> None:
        """Send it in a stream that ends then."""
        client = self._client(job)
        client.failed(reason)  # before it registers, which says so too
        client.open()
        self._close(client)

    def _client(self, job: int) -> AgentStream:
        assert self._node is not None
        return AgentStream(self._node.address, job, self._host, tls=self._tls)

    def open(self, client: AgentStream) -> None:
        """Connect, and let events wake the loop."""
        self._watch(client.fileno())
        client.open()

    def leave(self, stream: Stream) -> None:
        """Forget a job's operations, and end its stream."""
        self.pool.drop(stream.job)
        if self.processes is not None:
            self.processes.end(stream.job)
        if isinstance(self._port, LinksPort) and self._port.interfaces:
            self._port.use_links(stream.job, {})
        client: Any = stream
        self._unwatch(client.fileno())
        self._close(client)

    def _close(self, client: AgentStream) -> None:
        """Close a stream, which waits until the last messages are sent."""
        name = f"closing job {client.job}"
        threading.Thread(target=client.close, name=name, daemon=True).start()

    def awaited(self) -> Iterable[int]:
        """Return what processes of this agent's socket wait for."""
        return [] if self.processes is None else self.processes.awaited

    def dismiss(self, job: int, why: str) -> None:
        """End the connections of processes that attend the job."""
        if self.processes is not None:
            self.processes.end(job, why)

    def counters(self, now: float) -> Mapping[int, InterfaceCounters]:
        """Return the kernel's counters."""
        assert self._counters is not None
        return self._counters(now)

    def close(self) -> None:
        """End the operations, and close descriptors."""
        self.pool.close()
        self._wakeup.close()


class RealCoordination(Coordinator):
    """The coordination of a job; the tree's processes have the names of their hosts."""

    def __init__(
        self,
        network: Network,
        tree: CoordinationTree,
        rank: int,
        job: int,
        reduction: ExternalAnd | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        port = BASE_PORT + PORTS + (job - 1) % COORDINATION_PORTS
        addresses = [(network.hosts[name].ip, port) for name in tree.names]
        super().__init__(tree, rank, addresses, reduction=reduction, wake=wake)

    def close(self) -> None:
        """Close, in a thread: the last messages take a while."""
        threading.Thread(target=super().close, name="closing coordination").start()


class HostLoop:
    """A host's agent behind a port, in one thread; `watch`: descriptors that end a `turn`.

    `processes`: the name of the socket where processes of the host submit tensors. Raises
    SocketInUse.
    """

    def __init__(
        self,
        port: FramePort,
        host: str,
        node: NodeClient | None = None,
        counters: Counters | None = None,
        tls: Tls | None = None,
        watch: Iterable[int] = (),
        processes: str | None = None,
    ) -> None:
        self._environment = RealEnvironment(
            host,
            lambda descriptor: self._loop.watch(descriptor),
            lambda descriptor: self._loop.unwatch(descriptor),
            node,
            counters,
            tls,
            port,
        )
        self.agent = HostAgent(self._environment, node)
        watched = [self._environment.fileno(), self._environment.pool.fileno(), *watch]
        if node is not None:
            watched.append(node.fileno())
        self._port = port.fileno()
        self._loop = Loop(port, [self.agent.traffic], watch=watched)
        if processes is not None and node is not None:
            self._environment.processes = ProcessSocket(
                host,
                processes,
                node.submit_processes,
                self._loop.watch,
                self._loop.unwatch,
            )

    def join(self, client: AgentStream) -> None:
        """Attend the job of a client, see `HostAgent.join`."""
        self.agent.join(client)
        self._environment.open(client)

    def turn(self) -> set[int]:
        """Move frames until something is due (see Loop.turn), then advance every job."""
        due = self.agent.members_deadline
        ready = self._loop.turn(None if due is None else max(0.0, due - time.monotonic()))
        if self._environment.fileno() in ready:
            self._environment.awake()
        if self._environment.processes is not None:
            self._environment.processes.turn(ready)
        now = time.monotonic()
        # Most turns only move frames.
        if due is not None and due <= now:
            self.agent.tick_members(now)
        elif ready - {self._port} or self.agent.stirred:
            self.agent.advance(now)
        return ready

    def close(self) -> None:
        """Leave every job."""
        self.agent.close()
        if self._environment.processes is not None:
            self._environment.processes.close()
        self._loop.flush()
        self._environment.close()


def port_of(job: int, part: int) -> int:
    """Return the TCP port of a job's schedule number `part`; jobs 1 and 8193 share theirs."""
    return BASE_PORT + (job - 1 + 1021 * part) % PORTS
