"""What a host's agent needs from its world, which is real (`node.real`) or virtual (`simulation`).

Nothing here waits: what takes time, or comes from elsewhere, is asked after, and `wake` (see
`HostAgent`) says that there may be something. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from collectives.execution import Channel, Execution
from collectives.plan import JobPlan
from coordination.events import Event as CoordinationEvent
from coordination.operators import Operator
from coordination.reduction import ExternalAnd
from coordination.tree import CoordinationTree
from host_agent.io.process_socket import Request
from host_agent.node.bandwidth import Counted
from host_agent.node.operation_pool import Completed
from host_agent.node.work import Work
from host_agent.segment import Tensor
from host_agent.session import Assignment, Event
from host_agent.workload import Judged
from network.model import Host, Network
from protocol import hopsum_pb2 as pb
from protocol.wire import Reduction


class Named(NamedTuple):
    """A tensor to sum, flat, and its name; `reduction`: how, None: as its job's plan says."""

    name: str
    tensor: Tensor
    reduction: Reduction | None = None


Then = Callable[[Any, float], None]
"""Takes what an operation has come to, and the time."""
Operate = Callable[[Callable[[], Any], Then], None]
"""Has an operation done elsewhere."""


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
        """Where the controller is."""

    @property
    def assignment(self) -> Assignment | None:
        """What there is to do, once the controller has said."""

    @property
    def started(self) -> bool:
        """Whether every agent is ready."""

    def events(self) -> Sequence[Event]:
        """Take the news; ControllerError if the controller has refused it."""

    def ready(self) -> None:
        """Say that the agent has prepared."""

    def progress(self, round_: int) -> None:
        """Say how many tensors are summed."""

    def ask_boundary(self, number: int) -> None:
        """Ask how tensors are cut from a boundary on."""

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        """Return the last boundary decided on, if not before `number`, and the plan that cuts
        there.
        """

    def finished(self, report: pb.Report) -> None:
        """Say that the work is done."""

    def failed(self, reason: str) -> None:
        """Say that the agent gives up."""


class NodeStream(Protocol):
    """The host's own stream to the controller; see `NodeSession`."""

    @property
    def address(self) -> str:
        """Where the controller is."""

    def commands(self) -> Sequence[pb.NodeCommand]:
        """Take what the controller has said."""

    def report(self, report: pb.NodeReport) -> None:
        """Tell how the host fares."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The hosts that run a job's schedules together, by rank, and which of them is this one.

    `part`: tells the job's meetings apart, at all hosts alike. `channels`: gives those on which
    this host sends, and those on which it receives. `tos`: IP ToS byte of its packets.
    """

    job: int
    part: int
    hosts: tuple[Host, ...]
    rank: int
    channels: Callable[[], tuple[Sequence[Channel], Sequence[Channel]]]
    tos: int = 0


class Transport(Protocol):
    """Byte streams between the hosts of a meeting, which are made first; one schedule at a time."""

    @property
    def busy(self) -> bool:
        """Whether something is under way; raises what ended it, such as PeerLost."""

    def run(self, make: Callable[[], Execution]) -> None:
        """Do this host's part of a schedule."""

    def mark(self, tos: int) -> None:
        """Give packets this IP ToS byte from now on."""

    def postpone(self) -> None:
        """Begin the timeout of what is under way anew: the network is known to be out of order."""

    @property
    def sent_bytes(self) -> int:
        """Bytes of tensors sent so far, also after the end."""

    @property
    def retransmissions(self) -> int:
        """TCP segments sent again, also after the end."""

    def close(self) -> None:
        """End, at once or when what is under way has given up."""


class Coordination(Protocol):
    """One process of the agreement on an order (004); every call raises what ended it."""

    def start(self) -> None:
        """Begin to connect."""

    def begin_iteration(self, number: int) -> None:
        """Publish the number of the iteration that begins."""

    def ready(self, operator: Operator, /) -> None:
        """Be ready for an operator."""

    def end_iteration(self) -> None:
        """Call for no more operators of this iteration."""

    def combined(self, words: Sequence[int]) -> None:
        """Take in a vector that was combined elsewhere."""

    def leave(self) -> None:
        """Need nothing any more."""

    def events(self) -> Sequence[CoordinationEvent]:
        """Take what has happened."""

    @property
    def done(self) -> bool:
        """Whether everybody has left."""

    def close(self) -> None:
        """End, without holding up the caller for the last words."""


class Source(Protocol):
    """The tensors of one job at one host, in the order in which they are to be summed."""

    in_place: bool
    """Whether a tensor's sum takes its place."""

    @property
    def workload(self) -> Judged:
        """Whose tensors they are."""

    @property
    def prepared(self) -> bool:
        """Whether what `prepare` began is there."""

    @property
    def over(self) -> bool:
        """Whether no tensor will come any more."""

    def prepare(self) -> None:
        """Begin to compute what is there without the other hosts."""

    def start(self, now: float) -> None:
        """Take in that the job has started."""

    def next(self, now: float) -> Named | None:
        """Return the next tensor to sum, None if there is none now.

        Raises what ended the source.
        """

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Take in the sum of a tensor."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    @property
    def deadline(self) -> float | None:
        """When `tick` is wanted, at the latest."""

    def close(self, why: str) -> None:
        """Release what it holds, and end work in progress soon; `why`: the reason, if it failed."""


class Handover(Protocol):
    """The processes of this host that submit a job's tensors, by rank, once they are there."""

    def start(self, ranks: Sequence[str]) -> None:
        """Let them know that the job has begun; `ranks`: the host of each."""

    def take(self) -> Sequence[tuple[int, Request]]:
        """Take the calls that they have made since, with their ranks. Raises ProcessGone."""

    def done(self, rank: int, call: int) -> None:
        """Say that a call's sum is where the rank's tensor was."""

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        """Say why a rank's call has no sum; `whose`: by rank what it did."""

    def close(self, why: str) -> None:
        """Say why the job is over, to those that are still there."""


class Environment(Protocol):
    """The world of one host."""

    gradient_seconds: float
    """Between two gradients of a step that become ready; 0 where they take what they take."""

    def wake(self) -> None:
        """Let the host's agent `advance` soon; from any thread."""

    def work(self, assignment: Assignment) -> Work:
        """Return what a job does. Raises TaskError."""

    def too_much(self, needed: int, what: str) -> str | None:
        """Why `needed` bytes of memory for `what` are too many; None if they are not."""

    def put(self, job: int, work: Callable[[], Any], *, apart: bool = False) -> int:
        """Begin an operation of a job, `apart` if it waits for others; its number."""

    def completed(self) -> Sequence[Completed]:
        """Take the operations that have completed."""

    def set_level(self, job: int, level: int) -> None:
        """Let a job's operations wait in the queue of a level."""

    def transport(self, meeting: Meeting) -> Transport:
        """Begin to meet the other hosts."""

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

    def process_tensors(self, job: int) -> Handover:
        """Where a process of this host submits a job's tensors. TaskError if there is none."""

    def attend(self, job: int) -> Stream:
        """Open the stream of a job."""

    def leave(self, stream: Stream) -> None:
        """Forget a job's operations, and end its stream after the last words are out."""

    def counters(self, now: float) -> Counted:
        """Return what the host's interface has carried."""
