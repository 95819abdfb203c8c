"""An agent's connection to the controller. Synchronous; threads are inside.

The agent's life: `register`, prepare, `ready`, `wait_for_start`, work with `progress` now and
then, `finished` or `failed`, `wait_until_all_done`, `close`. News in between (a new plan, a lost
agent) wait in `events`; `fileno` becomes readable when there are some, for an event loop.
If the controller is restarted, the client registers again by itself and says where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import grpc

from collectives.messages import network_from, plan_from
from collectives.plan import JobPlan
from files.json_text import parse_json
from network.model import Network
from protocol import hopsum_pb2 as pb
from protocol import hopsum_pb2_grpc as pb_grpc
from protocol.channel import ControllerError, Tls, in_words, open_channel

RECONNECT_PAUSE = 0.2

_T = TypeVar("_T")


class AgentLostError(ControllerError):
    """Another agent failed or is gone before the job could start; `host` names it."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(f"agent on {host}: {reason}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an agent gets when it registers. `task` is the job's own description."""

    network: Network
    plan: JobPlan
    task: Mapping[str, Any]


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
    """Nobody needs this agent any more; `lost`: who did not finish, and why."""

    lost: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobWaits:
    """The job waits for a switch or link that is out of reach; told again while it does."""


Event = PlanChanged | AgentLost | AllDone | JobWaits


class ControllerClient:
    """One agent's stream. `address`: as the service gives it; `reconnect`: s, 0 for never."""

    def __init__(
        self,
        address: str,
        job: int,
        host: str,
        reconnect: float = 30.0,
        tls: Tls | None = None,
    ) -> None:
        self._tls = tls
        self.address = address
        self.job = job
        self.host = host
        self._reconnect = reconnect
        self._heartbeat = 1.0
        self._state = pb.EXPECTED
        self._round = 0
        self._epoch = 0
        self._outgoing: queue.Queue[pb.AgentMessage | None] = queue.Queue()
        self._changed = threading.Condition()
        self._welcome: pb.Welcome | None = None
        self._started = False
        self._all_done: AllDone | None = None
        self._events: list[Event] = []
        self._lost: AgentLost | None = None
        self._error: str | None = None
        self._closed = False
        self._closing = threading.Lock()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._streams = 0
        self._last_word: pb.AgentMessage | None = None
        self._border = 0
        self._cut: tuple[int, JobPlan] | None = None

    def __enter__(self) -> ControllerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Become readable when `events` has something."""
        return self._wakeup

    # -- the agent's life

    def open(self) -> None:
        """Connect, without waiting; `events` and `fileno` tell what comes of it."""
        self._thread = threading.Thread(target=self._run, name="controller client", daemon=True)
        self._thread.start()

    def register(self, timeout: float = 30.0) -> Assignment:
        """Connect and get the assignment; ControllerError if refused or out of reach."""
        self.open()
        self._wait(lambda: self._welcome, timeout, "an assignment")
        assignment = self.assignment
        assert assignment is not None
        return assignment

    @property
    def assignment(self) -> Assignment | None:
        """What this agent has to do, or None while the controller has not said."""
        welcome = self._welcome
        if welcome is None:
            return None
        return Assignment(
            network_from(welcome.network), plan_from(welcome.plan), parse_json(welcome.task)
        )

    @property
    def started(self) -> bool:
        """Whether every agent is ready; from then on this one counts as running."""
        if self._started and self._state == pb.READY:
            self._state = pb.RUNNING
        return self._started

    def ready(self) -> None:
        """Say that the agent has prepared."""
        self._say(pb.AgentMessage(ready=pb.Ready()), pb.READY)

    def wait_for_start(self, timeout: float | None = None) -> None:
        """Wait until every agent is ready; AgentLostError if one fell before."""

        def started() -> bool | None:
            if self._lost is not None and not self._started:
                raise AgentLostError(self._lost.host, self._lost.reason)
            return self._started or None

        self._wait(started, timeout, "the start")
        self._state = pb.RUNNING

    def progress(self, round_: int, detail: Mapping[str, Any] | None = None) -> None:
        """Report the rounds completed."""
        self._round = round_
        message = pb.Progress(round=round_, detail=json.dumps(detail) if detail else "")
        self._say(pb.AgentMessage(progress=message))

    def ask_border(self, number: int) -> None:
        """Ask how tensors are cut from a border on; `cut` has the answer when it has come."""
        self._border = number
        self._say(_border(number))

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        """The last border decided on, if it is not before `number`, and the plan that cuts there.

        None while no such border is decided on.
        """
        cut = self._cut
        return None if cut is None or cut[0] < number else cut

    def finished(self, report: Mapping[str, Any]) -> None:
        """Say that the agent's work is done, with its report."""
        message = pb.Finished(report=json.dumps(report))
        self._say(pb.AgentMessage(finished=message), pb.FINISHED)

    def failed(self, reason: str) -> None:
        """Say that the agent gives up, and why."""
        self._say(pb.AgentMessage(failed=pb.Failed(reason=reason)), pb.FAILED)

    def wait_until_all_done(self, timeout: float | None = None) -> AllDone:
        """Wait until nobody needs this agent any more."""
        return self._wait(lambda: self._all_done, timeout, "the release")

    def events(self) -> list[Event]:
        """Take the news that have come; ControllerError if the controller is gone for good."""
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wakeup)
            taken, self._events = self._events, []
            if not taken and self._error is not None:
                raise ControllerError(self._error)
        return taken

    def close(self) -> None:
        """End the stream, after what was said has gone out."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._outgoing.put(None)
            if self._thread is not None:
                self._thread.join(timeout=5.0)
                if self._thread.is_alive() and self._call is not None:
                    self._call.cancel()
            os.close(self._wakeup)

    # -- inside

    def _say(self, message: pb.AgentMessage, state: pb.AgentState | None = None) -> None:
        if state is not None:
            self._state = state
            if state >= pb.FINISHED:
                self._last_word = message
        self._outgoing.put(message)

    def _wait(self, ready: Callable[[], _T | None], timeout: float | None, what: str) -> _T:
        with self._changed:
            end = None if timeout is None else time.monotonic() + timeout
            while True:
                value = ready()
                if value is not None:
                    return value
                if self._error is not None:
                    raise ControllerError(self._error)
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise ControllerError(
                        f"job {self.job}, host {self.host}: waited {timeout} s for {what} "
                        f"from the controller at {self.address}"
                    )
                self._changed.wait(left)

    def _run(self) -> None:
        """Keep a stream open until closed, refused, or unreachable too long."""
        since = time.monotonic()
        while True:
            try:
                self._stream()
                why = "the controller ended the stream"
            except grpc.RpcError as error:
                why = in_words(error)
            except ControllerError as error:
                why = str(error)
            if self._closed or self._error is not None or self._all_done is not None:
                return
            if self._call is not None:
                since, self._call = time.monotonic(), None
            if time.monotonic() - since > self._reconnect:
                self._fail(f"controller at {self.address}: {why}")
                return
            time.sleep(RECONNECT_PAUSE)

    def _stream(self) -> None:
        with open_channel(self.address, self._tls) as channel:
            call = pb_grpc.ControllerStub(channel).Attend(self._requests())
            for message in call:
                self._call = call
                self._take(message)

    def _requests(self) -> Iterator[pb.AgentMessage]:
        """What the agent says: Register first, and a heartbeat when it has been silent."""
        self._streams += 1
        stream = self._streams
        register = pb.Register(job=self.job, host=self.host, state=self._state, round=self._round)
        yield pb.AgentMessage(register=register)
        if self._last_word is not None:
            yield self._last_word
        # A controller that was restarted does not know what was asked, nor what was answered.
        if self._border:
            yield _border(self._border)
        while True:
            try:
                message = self._outgoing.get(timeout=self._heartbeat)
            except queue.Empty:
                message = pb.AgentMessage(heartbeat=pb.Heartbeat())
            if stream != self._streams:
                # The stream is dead and another one has begun: the message belongs there.
                self._outgoing.put(message)
                return
            if message is None:
                return
            yield message

    def _take(self, message: pb.ControllerMessage) -> None:
        with self._changed:
            match message.WhichOneof("message"):
                case "welcome":
                    self._heartbeat = message.welcome.heartbeat_seconds
                    if self._welcome is None:
                        self._welcome = message.welcome
                        self._epoch = message.welcome.plan.epoch
                    else:
                        self._new_plan(message.welcome.plan)
                case "refused":
                    self._error = f"the controller refused: {message.refused.reason}"
                case "start":
                    self._started = True
                case "plan":
                    self._new_plan(message.plan)
                case "lost":
                    self._lost = AgentLost(message.lost.host, message.lost.reason)
                    self._events.append(self._lost)
                case "cut":
                    if self._cut is None or message.cut.number > self._cut[0]:
                        self._cut = message.cut.number, plan_from(message.cut.plan)
                case "waiting":
                    if JobWaits() not in self._events:
                        self._events.append(JobWaits())
                case "all_done":
                    lost = {fallen.host: fallen.reason for fallen in message.all_done.lost}
                    self._all_done = AllDone(lost)
                    self._events.append(self._all_done)
            self._wake()

    def _new_plan(self, message: pb.Plan) -> None:
        if message.epoch != self._epoch:
            self._epoch = message.epoch
            self._events.append(PlanChanged(plan_from(message)))

    def _fail(self, why: str) -> None:
        with self._changed:
            self._error = why
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if not self._closed:
            os.eventfd_write(self._wakeup, 1)


def _border(number: int) -> pb.AgentMessage:
    return pb.AgentMessage(border=pb.Border(number=number))
