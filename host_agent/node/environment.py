"""Environment of a host's agent, real (`node.real`) or virtual (`simulation`).

Nothing here waits: what takes time, or comes from elsewhere, is asked after, and `wake` (see
`HostAgent`) says that there may be something. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hopsum.collectives.execution import Channel, Execution
from hopsum.collectives.plan import JobPlan
from hopsum.coordination.events import Event as CoordinationEvent
from hopsum.coordination.operators import Operator
from hopsum.coordination.reduction import ExternalAnd
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.io.tcp_collective import PROGRESS_SECONDS
from hopsum.host_agent.node.bandwidth import InterfaceCounters
from hopsum.host_agent.node.operation_pool import TaskResult
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.process_calls import CallPacket, Mailbox
from hopsum.host_agent.segment import AS_PLANNED, CallOptions, Tensor
from hopsum.host_agent.session import Assignment, Event
from hopsum.host_agent.workload import CheckedWorkload
from hopsum.network.model import Host, Network
from hopsum.protocol import hopsum_pb2 as pb


class NamedTensor(NamedTuple):
    """A flat tensor to sum, and its name; any `options` are for trees alone."""

    name: str
    tensor: Tensor
    options: CallOptions = AS_PLANNED


Then = Callable[[Any, float], None]
"""Receives an operation's result, and the time."""
Operate = Callable[[Callable[[], Any], Then], None]
"""Starts an operation elsewhere."""


class Stream(Protocol):
    """A job's stream to the controller; see `AgentSession`."""

    @property
    def job(self) -> int:
        """The job's number."""

    @property
    def host(self) -> str:
        """This host's name."""

    @property
    def address(self) -> str:
        """Address of the controller."""

    @property
    def assignment(self) -> Assignment | None:
        """The assignment, once the controller has sent it."""

    @property
    def started(self) -> bool:
        """Whether every agent is ready."""

    def events(self) -> Sequence[Event]:
        """Return new events; ControllerError if the controller has rejected the agent."""

    def ready(self) -> None:
        """Report that the agent is ready."""

    def progress(self, round_: int) -> None:
        """Report the number of summed tensors."""

    def ask_boundary(self, number: int) -> None:
        """Request the partition of tensors from a boundary on."""

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        """Return the last boundary decided, if not before `number`, and the plan that applies from
        there."""

    def finished(self, report: pb.Report) -> None:
        """Report that the work is done."""

    def failed(self, reason: str) -> None:
        """Report that the agent gives up."""


class NodeStream(Protocol):
    """The host's own stream to the controller; see `NodeSession`."""

    @property
    def address(self) -> str:
        """Address of the controller."""

    def commands(self) -> Sequence[pb.NodeCommand]:
        """Return and clear the controller's commands."""

    def report(self, report: pb.NodeReport) -> None:
        """Report the host's state."""


@dataclass(frozen=True, slots=True)
class ScheduleGroup:
    """The hosts that run a job's schedules together, by rank, and this host's rank.

    `part`: identifies one of the job's meetings at all hosts. `channels`: gives those on which
    this host sends, and those on which it receives. `tos`: IP ToS byte of its packets. `patience`:
    seconds without progress after which a peer counts as lost.
    """

    job: int
    part: int
    hosts: tuple[Host, ...]
    rank: int
    channels: Callable[[], tuple[Sequence[Channel], Sequence[Channel]]]
    tos: int = 0
    patience: float = PROGRESS_SECONDS


class Transport(Protocol):
    """Byte streams between the hosts of a meeting, connected first; one schedule at a time."""

    @property
    def busy(self) -> bool:
        """Whether an operation is in progress; raises its error, such as PeerLost."""

    def run(self, make: Callable[[], Execution]) -> None:
        """Execute this host's part of a schedule."""

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future packets."""

    def postpone(self) -> None:
        """Restart the timeout of the operation in progress, since the network is known to have
        failed."""

    @property
    def sent_bytes(self) -> int:
        """Bytes of tensors sent so far, also after the end."""

    @property
    def retransmissions(self) -> int:
        """Retransmitted TCP segments, also after the end."""

    def close(self) -> None:
        """Close, at once or when the operation in progress has ended."""


class Coordination(Protocol):
    """One process of the coordination of operators ([004][]); every call raises its error."""

    def start(self) -> None:
        """Start connecting."""

    def begin_iteration(self, number: int) -> None:
        """Publish the number of the iteration that begins."""

    def ready(self, operator: Operator, /) -> None:
        """Request an operator."""

    def end_iteration(self) -> None:
        """Request no more operators of this iteration."""

    def combined(self, words: Sequence[int]) -> None:
        """Process a vector that was combined elsewhere."""

    def leave(self) -> None:
        """Leave."""

    def events(self) -> Sequence[CoordinationEvent]:
        """Return and clear the events."""

    @property
    def done(self) -> bool:
        """Whether all processes have left."""

    def close(self) -> None:
        """Close without waiting for the last messages."""


class Source(Protocol):
    """The tensors of one job at one host, in the order of their sums."""

    in_place: bool
    """Whether a tensor's sum replaces it."""

    @property
    def workload(self) -> CheckedWorkload:
        """Owner of the tensors."""

    @property
    def prepared(self) -> bool:
        """Whether `prepare` has finished."""

    @property
    def over(self) -> bool:
        """Return whether there are no more tensors."""

    def prepare(self) -> None:
        """Start computations that do not need the other hosts."""

    def start(self, now: float) -> None:
        """Note that the job has started."""

    def next(self, now: float) -> NamedTensor | None:
        """Return the next tensor to sum, None if there is none now.

        Raises what ended the source.
        """

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Process the sum of a tensor."""

    def tick(self, now: float) -> None:
        """Run due timers."""

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick`."""

    def close(self, why: str) -> None:
        """Release resources, and end work in progress soon; `why`: the reason, if it failed."""


class RankCalls(Protocol):
    """The processes of this host that submit a job's tensors, by rank, once they are there."""

    def start(self, ranks: Sequence[str], *, rooted: bool) -> None:
        """Let them know that the job has begun; `ranks`: the host of each.

        `rooted`: whether what is for one rank goes to its host alone.
        """

    def absent(self) -> Sequence[int]:
        """Return the ranks of a job that has begun which no process attends as."""

    def take(self) -> Sequence[tuple[int, Request]]:
        """Take the calls that they have made since, with their ranks. Raises ProcessGone."""

    def mailbox(self, rank: int) -> Mailbox | None:
        """Return where a rank's packets come; None if flows cannot take them from there."""

    def request(self, rank: int, packet: CallPacket) -> Request:
        """Return the request in a packet that a flow has taken from a rank's mailbox.

        Raises ProcessGone.
        """

    def done(self, rank: int, call: int) -> None:
        """Say that a call's sum is where the rank's tensor was."""

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        """Report why a rank's call has no sum; `whose`: each rank's fault."""

    def close(self, why: str) -> None:
        """Say why the job is over, to those that are still there."""


class Environment(Protocol):
    """The environment of one host."""

    gradient_seconds: float
    """Seconds between two gradients of a step; 0: as long as they take."""

    def wake(self) -> None:
        """Schedule an `advance` of the host's agent; from any thread."""

    def work(self, assignment: Assignment) -> Work:
        """Return what a job does. Raises TaskError."""

    def too_much(self, needed: int, what: str) -> str | None:
        """Return why `needed` bytes of memory for `what` are too many; None if they are not."""

    def put(self, job: int, work: Callable[[], Any]) -> int:
        """Start an operation of a job; return its number."""

    def completed(self) -> Sequence[TaskResult]:
        """Return and clear the completed operations."""

    def set_level(self, job: int, level: int) -> None:
        """Assign a job's operations to the queue of a level."""

    def use_links(self, job: int, ports: Mapping[int, int], links: Mapping[int, str]) -> None:
        """Send a job's frames of each tree from one of the host's `links`, neighbours by port.

        Raises TaskError if frames cannot leave there.
        """

    def transport(self, meeting: ScheduleGroup) -> Transport:
        """Start connecting to the other hosts."""

    def coordination(
        self,
        network: Network,
        tree: CoordinationTree,
        rank: int,
        job: int,
        reduction: ExternalAnd | None,
    ) -> Coordination:
        """Return a process of a job's coordination; the tree's processes have the names of their
        hosts.

        `reduction`: where its vectors are combined, None: over the tree or its ring.
        """

    def process_tensors(self, job: int) -> RankCalls:
        """Return the attendance for a local process that submits a job's tensors. TaskError if
        impossible."""

    def attend(self, job: int) -> Stream:
        """Open the stream of a job."""

    def report_failure(self, job: int, reason: str) -> None:
        """Tell the controller why a job failed here that it assigns again, and no more."""

    def leave(self, stream: Stream) -> None:
        """Forget a job's operations and processes, and end its stream after the last messages."""

    def awaited(self) -> Iterable[int]:
        """Return the jobs that processes here have submitted, and are still there for."""

    def dismiss(self, job: int, why: str) -> None:
        """Say to processes here why a job that has not begun will not."""

    def counters(self, now: float) -> Mapping[int, InterfaceCounters]:
        """Return the counters of the host's interfaces by port (`hopsum.host_agent.interfaces`)."""
