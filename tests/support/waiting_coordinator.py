"""A coordinator whose caller waits for operators to start."""

from __future__ import annotations

import threading
from typing import Any

from hopsum.coordination.events import Event
from hopsum.coordination.operators import Operator
from hopsum.host_agent.io.coordination import Coordinator, started
from tests.support.machine import PATIENCE


class WaitingCoordinator(Coordinator):
    """A `Coordinator` for threads that have nothing else to do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._unread: list[Event] = []
        self._woken = threading.Event()
        super().__init__(*args, wake=self._woken.set, **options)

    def next_start(self) -> Operator:
        """Wait for the next operator to start; raises what `events` and `started` raise."""
        operator = None
        while operator is None:
            self._woken.clear()
            self._unread += self.events() if not self._unread else []
            if self._unread:
                operator = started(self._unread.pop(0))
            else:
                assert self._woken.wait(PATIENCE), f"no operator started for {PATIENCE:g} s"
        return operator
