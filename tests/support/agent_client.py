"""An agent's stream for callers that wait, without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from hopsum.host_agent.io.controller_client import AgentStream
from hopsum.host_agent.session import AllDone, Assignment
from hopsum.protocol.channel import ControllerError

_T = TypeVar("_T")


class AgentLostError(ControllerError):
    """Another agent failed or is gone before the job could start; `host` names it."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(f"agent on {host}: {reason}")


class AgentClient(AgentStream):
    """`register`, `ready`, `wait_for_start`, `finished`, `wait_until_all_done`, `close`."""

    def register(self, timeout: float = 30.0) -> Assignment:
        """Connect and return the assignment; ControllerError if rejected or not answered."""
        self.open()
        return self._wait(lambda: self._session.assignment, timeout, "an assignment")

    def wait_for_start(self, timeout: float | None = None) -> None:
        """Wait until every agent is ready; AgentLostError if one failed before."""

        def started() -> bool | None:
            lost = self._session.lost
            if lost is not None and not self._session.started:
                raise AgentLostError(lost.host, lost.reason)
            return self._session.started or None

        self._wait(started, timeout, "the start")

    def wait_until_all_done(self, timeout: float | None = None) -> AllDone:
        """Wait until the job no longer needs this agent."""
        return self._wait(lambda: self._session.all_done, timeout, "the release")

    def _wait(self, ready: Callable[[], _T | None], timeout: float | None, what: str) -> _T:
        with self._changed:
            end = None if timeout is None else time.monotonic() + timeout
            while True:
                value = ready()
                if value is not None:
                    return value
                if self._session.error is not None:
                    raise ControllerError(self._session.error)
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise ControllerError(
                        f"job {self.job}, host {self.host}: waited {timeout} s for {what} "
                        f"from the controller at {self.address}"
                    )
                self._changed.wait(left)
