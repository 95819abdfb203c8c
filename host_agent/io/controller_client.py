"""An agent's connection to the controller. Synchronous; threads are inside.

The agent's life: `open`, prepare at its `assignment`, `ready`, work when `started` with `progress`
now and then, `finished` or `failed`, and `close` at `AllDone`. News in between (a new plan, a lost
agent) wait in `events`; `fileno` becomes readable when there are some, for an event loop. If the
controller is restarted, the client registers again by itself and says where it was.
"""

from __future__ import annotations

import secrets

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.io.session_thread import SessionThread
from hopsum.host_agent.session import AgentSession, Assignment, Event
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.channel import Tls


class AgentStream:
    """One agent's stream, see `AgentSession`.

    Messages wait while no controller is there, for the next one.
    """

    def __init__(
        self,
        address: str,
        job: int,
        host: str,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self.job = job
        self.host = host
        self._session = AgentSession(address, job, host, secrets.token_hex(8))
        self._thread: SessionThread[pb.AgentMessage, pb.ControllerMessage] = SessionThread(
            self._session,
            lambda channel, messages: pb_grpc.ControllerStub(channel).Attend(messages),
            tls,
        )
        self._changed = self._thread.changed

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` has something."""
        return self._thread.fileno()

    def open(self) -> None:
        """Start connecting; `events` and `fileno` report the outcome."""
        self._thread.start()

    def close(self) -> None:
        """End the stream after sending everything."""
        self._thread.close()

    # -- the session's, from any thread

    @property
    def assignment(self) -> Assignment | None:
        """See `AgentSession`, as for the following methods."""
        with self._changed:
            return self._session.assignment

    @property
    def started(self) -> bool:
        """Whether every agent is ready."""
        with self._changed:
            return self._session.started

    def ready(self) -> None:
        """Report that the agent is ready."""
        with self._changed:
            self._session.ready()

    def progress(self, round_: int) -> None:
        """Report the rounds completed."""
        with self._changed:
            self._session.progress(round_)

    def ask_boundary(self, number: int) -> None:
        """Request the partition of tensors from a boundary on."""
        with self._changed:
            self._session.ask_boundary(number)

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        """Return the last boundary decided, and the plan that applies from there."""
        with self._changed:
            return self._session.cut(number)

    def finished(self, report: pb.Report) -> None:
        """Report that the agent's work is done, with its final report."""
        with self._changed:
            self._session.finished(report)

    def failed(self, reason: str) -> None:
        """Report that the agent gives up, and why."""
        with self._changed:
            self._session.failed(reason)

    def events(self) -> list[Event]:
        """Return new events; ControllerError if the controller has rejected the agent."""
        with self._changed:
            self._thread.heard()
            return self._session.events()
