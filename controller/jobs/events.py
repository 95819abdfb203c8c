"""Events of a cluster that the job engine handles, and the commands that it returns.

`stream`: the number of an agent's stream in a job, which the driver of the engine chooses.
`request`: that of a caller's request, likewise. `work`: that of an installation or a computation,
which the engine chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.telemetry.health import Element
from hopsum.protocol import hopsum_pb2 as pb

# -- Events


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job is submitted; the answer is its `Job`, or why it cannot run."""

    request: int
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A job is to be cancelled; the answer is None, once its rules are removed or after a while."""

    request: int
    job: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobAwaited:
    """Somebody waits for a job."""

    job: int


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """The controller has started with a journal; the answer is None once rules are installed."""

    request: int


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """A request's caller no longer waits for the answer."""

    request: int


@dataclass(frozen=True, slots=True)
class ServiceOpened:
    """Agents can attend jobs from now on."""


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent has opened a stream; its state, round and session's name are what it says."""

    stream: int
    host: str
    job: int
    state: pb.AgentState = pb.EXPECTED
    round: int = 0
    instance: str = ""


@dataclass(frozen=True, slots=True)
class AgentSaid:
    """A message has arrived on an agent's stream."""

    stream: int
    message: pb.AgentMessage


@dataclass(frozen=True, slots=True)
class AgentLeft:
    """An agent's stream has ended."""

    stream: int


@dataclass(frozen=True, slots=True)
class HostAttached:
    """A host's agent process is there."""

    host: str


@dataclass(frozen=True, slots=True)
class HostDetached:
    """A host's agent process is gone."""

    host: str


@dataclass(frozen=True, slots=True)
class HostReported:
    """A host's agent process reports on links and jobs."""

    host: str
    report: pb.NodeReport


@dataclass(frozen=True, slots=True)
class SwitchChanged:
    """A switch's reachability has changed, or a port's.

    `reachable` None: it is being programmed, which is neither. `ports`: whether they have a link,
    by number, where the switch reports it.
    """

    switch: str
    reachable: bool | None
    ports: Mapping[int, bool]


@dataclass(frozen=True, slots=True)
class LinksChanged:
    """The state of links as another source knows it: whether they are up."""

    links: Mapping[Element, bool]


@dataclass(frozen=True, slots=True)
class WorkDone:
    """An installation or a computation has succeeded."""

    work: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """An installation or a computation has failed."""

    work: int
    error: Exception


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The engine's deadline is over."""


Event = (
    JobSubmitted
    | CancelRequested
    | JobAwaited
    | RestoreRequested
    | RequestAbandoned
    | ServiceOpened
    | AgentJoined
    | AgentSaid
    | AgentLeft
    | HostAttached
    | HostDetached
    | HostReported
    | SwitchChanged
    | LinksChanged
    | WorkDone
    | WorkFailed
    | TimePassed
)

# -- Commands


@dataclass(frozen=True, slots=True)
class InstallRules:
    """Bring switches to these rules, then report the work as done or failed."""

    work: int
    rules: Mapping[str, SwitchRules]


@dataclass(frozen=True, slots=True)
class RunComputation:
    """Call a function, which may take seconds, and report its result or its exception."""

    work: int
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class AbandonWork:
    """The result of this work no longer matters."""

    work: int


@dataclass(frozen=True, slots=True)
class SendToAgent:
    """Send a message on an agent's stream."""

    stream: int
    message: pb.ControllerMessage


@dataclass(frozen=True, slots=True)
class RejectAgent:
    """End a stream with this message, before any other."""

    stream: int
    message: pb.ControllerMessage


@dataclass(frozen=True, slots=True)
class PostponeAgent:
    """End a stream such that the agent tries again soon."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndStream:
    """End an agent's stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class SendToHost:
    """Send a command to a host's agent process, if there is one."""

    host: str
    command: pb.NodeCommand


@dataclass(frozen=True, slots=True)
class EndHost:
    """End the stream of a host's agent process, which has been silent for too long."""

    host: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request: with a value, or with an error."""

    request: int
    value: Any = None
    error: Exception | None = None


Command = (
    InstallRules
    | RunComputation
    | AbandonWork
    | SendToAgent
    | RejectAgent
    | PostponeAgent
    | EndStream
    | SendToHost
    | EndHost
    | Answer
)
