"""Sessions between agent and controller, without I/O: messages in, messages out.

`AgentSession` is one host's side of `Controller.Attend`, the stream of one job; `NodeSession` is
its side of `Cluster.Serve`, the stream of the whole host. A transport drives either, over any
number of connections, one after the other:

    session.wake = ...                  # called whenever `take_output` has something to send
    session.connected()                 # a stream begins: state is repeated first
    for message in session.take_output(): ...      # send them in order; again after each `wake`
    session.receive(message)            # every message of the other end, in order
    session.beat()                      # after `session.heartbeat` seconds of silence of ours
    session.disconnected()              # the stream has ended, for any reason
    session.over                        # True: open no other stream

Messages without a stream wait for the next one. The agent calls all other methods, and `news` is
called when there are events. A session belongs to one thread: a transport with several holds a lock
around every call, including `wake` and `news`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hopsum.collectives.messages import network_from, plan_from
from hopsum.collectives.plan import JobPlan
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError
from hopsum.protocol.liveness import HEARTBEAT_SECONDS


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of a registered agent. `task` is the job's own description."""

    network: Network
    plan: JobPlan
    task: pb.Task


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """A new epoch's plan."""

    plan: JobPlan


@dataclass(frozen=True, slots=True)
class AgentLost:
    """Another agent failed or is gone."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class AllDone:
    """The job no longer needs this agent; `lost`: hosts that did not finish, and why."""

    lost: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobWaits:
    """The job waits for a switch or link that is unreachable; repeated while it does.

    `over`: it waits no longer.
    """

    over: bool = False


Event = PlanChanged | AgentLost | AllDone | JobWaits


def _ignore() -> None:
    """Default callback: does nothing."""


_Out = TypeVar("_Out")


class _Session(Generic[_Out]):
    """What both sessions have: messages, and streams that come and go."""

    def __init__(self, address: str, host: str) -> None:
        self.address = address
        self.host = host
        self.wake: Callable[[], None] = _ignore
        self.news: Callable[[], None] = _ignore
        self._output: list[_Out] = []
        self._up = False

    def disconnected(self) -> None:
        """End a stream."""
        self._up = False

    def take_output(self) -> list[_Out]:
        """Return the messages to send, in order; none while no stream is up."""
        if not self._up:
            return []
        taken, self._output = self._output, []
        return taken


class AgentSession(_Session[pb.AgentMessage]):
    """Host `host` in job `job`, as the controller at `address` knows it.

    A restarted controller learns the agent's progress: state and rounds in Register, then the final
    message (Finished or Failed), and the requested boundary. `instance`: a random name,
    which tells a reconnect of this session from a second agent of the host.
    """

    def __init__(self, address: str, job: int, host: str, instance: str = "") -> None:
        super().__init__(address, host)
        self.job = job
        self.instance = instance
        self.heartbeat = HEARTBEAT_SECONDS
        """Until the controller sets one: seconds of silence after which an agent should `beat`."""
        self.state: pb.AgentState = pb.EXPECTED
        self.started = False
        """Whether every agent is ready."""
        self.lost: AgentLost | None = None
        """The agent that was lost last."""
        self.all_done: AllDone | None = None
        self.error: str | None = None
        """The controller's reason for rejecting this agent."""
        self._round = 0
        self._epoch = 0
        self._welcome: pb.Welcome | None = None
        self._assignment: Assignment | None = None
        self._events: list[Event] = []
        self._last_word: pb.AgentMessage | None = None
        self._boundary: pb.AgentMessage | None = None
        self._cut: tuple[int, JobPlan] | None = None

    # -- the agent

    @property
    def assignment(self) -> Assignment | None:
        """The assignment of this agent, or None until the controller has sent it.

        Its plan is the newest when this is first read; later ones are events. Raises what is wrong
        with it.
        """
        welcome = self._welcome
        if self._assignment is None and welcome is not None:
            self._assignment = Assignment(
                network_from(welcome.network), plan_from(welcome.plan), welcome.task
            )
        return self._assignment

    def ready(self) -> None:
        """Report that the agent is ready."""
        self.state = pb.READY
        self._say(pb.AgentMessage(ready=pb.Ready()))

    def progress(self, round_: int) -> None:
        """Report the rounds completed."""
        self._round = round_
        self._say(pb.AgentMessage(progress=pb.Progress(round=round_)))

    def ask_boundary(self, number: int) -> None:
        """Request the partition of tensors from a boundary on; `cut` has the answer when it has
        arrived."""
        self._boundary = pb.AgentMessage(boundary=pb.Boundary(number=number))
        self._say(self._boundary)

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        """Return the last boundary decided, if not before `number`, and the plan that applies from
        there.

        None while no such boundary is decided on.
        """
        cut = self._cut
        return None if cut is None or cut[0] < number else cut

    def finished(self, report: pb.Report) -> None:
        """Report that the agent's work is done, with its final report."""
        self._end(pb.FINISHED, pb.AgentMessage(finished=pb.Finished(report=report)))

    def failed(self, reason: str) -> None:
        """Report that the agent gives up, and why."""
        self._end(pb.FAILED, pb.AgentMessage(failed=pb.Failed(reason=reason)))

    def events(self) -> list[Event]:
        """Return new events; ControllerError if the controller has rejected the agent."""
        taken, self._events = self._events, []
        if not taken and self.error is not None:
            raise ControllerError(self.error)
        return taken

    def _end(self, state: pb.AgentState, word: pb.AgentMessage) -> None:
        self.state = state
        self._last_word = word
        self._say(word)

    def _say(self, message: pb.AgentMessage) -> None:
        self._output.append(message)
        if self._up:
            self.wake()

    # -- the transport

    def connected(self) -> None:
        """Start a stream, with Register first."""
        self._up = True
        register = pb.Register(
            job=self.job,
            host=self.host,
            state=self.state,
            round=self._round,
            instance=self.instance,
        )
        again = [word for word in (self._last_word, self._boundary) if word is not None]
        waiting = [message for message in self._output if message not in again]
        self._output = [pb.AgentMessage(register=register), *waiting, *again]
        self.wake()

    @property
    def over(self) -> bool:
        """Whether no further stream is needed."""
        return self.error is not None or self.all_done is not None

    def beat(self) -> None:
        """Send a heartbeat."""
        self._say(pb.AgentMessage(heartbeat=pb.Heartbeat()))

    def receive(self, message: pb.ControllerMessage) -> None:
        """Process a message of the controller."""
        match message.WhichOneof("message"):
            case "welcome":
                self._take_welcome(message.welcome)
            case "refused":
                self.error = f"rejected by the controller: {message.refused.reason}"
            case "start":
                self.started = True
                if self.state == pb.READY:
                    self.state = pb.RUNNING
            case "plan":
                self._new_plan(message.plan)
            case "lost":
                self.lost = AgentLost(message.lost.host, message.lost.reason)
                self._events.append(self.lost)
            case "waiting":
                waits = JobWaits(message.waiting.over)
                if waits not in self._events:
                    self._events.append(waits)
            case "cut":
                if self._cut is None or message.cut.number > self._cut[0]:
                    self._cut = message.cut.number, plan_from(message.cut.plan)
            case "all_done":
                lost = {fallen.host: fallen.reason for fallen in message.all_done.lost}
                self.all_done = AllDone(lost)
                self._events.append(self.all_done)
        self.news()

    def _take_welcome(self, welcome: pb.Welcome) -> None:
        self.heartbeat = welcome.heartbeat_seconds
        if self._welcome is None:
            self._welcome = welcome
            self._epoch = welcome.plan.epoch
        else:
            self._new_plan(welcome.plan)

    def _new_plan(self, message: pb.Plan) -> None:
        if self._welcome is None or message.epoch == self._epoch:
            return
        self._epoch = message.epoch
        if self._assignment is None:
            self._welcome.plan.CopyFrom(message)
        else:
            self._events.append(PlanChanged(plan_from(message)))


class NodeSession(_Session[pb.NodeMessage]):
    """Session of host `host`'s agent process with the controller at `address`.

    `memory`: bytes that the processes of its machine may use together; `machine`: the same for all
    hosts of one machine. `instance`: see `AgentSession`.
    """

    heartbeat: float | None = None
    """None: reports serve as heartbeats."""

    def __init__(
        self, address: str, host: str, memory: int = 0, machine: str = "", instance: str = ""
    ) -> None:
        super().__init__(address, host)
        self.refused: str | None = None
        """The controller's reason for rejecting this process."""
        self._hello = pb.Hello(host=host, memory=memory, machine=machine, instance=instance)
        self._commands: list[pb.NodeCommand] = []

    # -- the agent

    def commands(self) -> list[pb.NodeCommand]:
        """Return and clear the controller's commands."""
        taken, self._commands = self._commands, []
        return taken

    def report(self, report: pb.NodeReport) -> None:
        """Send a report; drop it if there is no stream."""
        if self._up:
            self._output.append(pb.NodeMessage(report=report))
            self.wake()

    # -- the transport

    def connected(self) -> None:
        """Start a stream, with Hello first."""
        self._up = True
        self._output = [pb.NodeMessage(hello=self._hello)]
        self.wake()

    @property
    def over(self) -> bool:
        """Whether no further stream is needed."""
        return self.refused is not None

    def beat(self) -> None:
        """Nothing: see `heartbeat`."""

    def receive(self, command: pb.NodeCommand) -> None:
        """Process a message of the controller."""
        if command.WhichOneof("message") == "refused":
            self.refused = command.refused.reason
        self._commands.append(command)
        self.news()
