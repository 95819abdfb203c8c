"""Pending calls, as PyTorch waits for them."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hopsum_torch.agent import AgentClient
from hopsum_torch.errors import GroupLost, HopsumError
from hopsum_torch.outer_work import OuterWork

SLICE_SECONDS = 1.0
"""Interval of checks for lost ranks."""
LOST_SECONDS = 3.0
"""Time for the agents to detect a lost process after gloo has."""
LOSS = "onnection|abort|closed|failed to pass"
"""Texts in gloo's errors when a rank may be lost."""
GLOO_THREAD = "pt_gloo_runloop"
"""The name of gloo's threads."""
LOOK_SECONDS, RESTING_LOOKS = 0.002, 3
"""Interval of checks for idle threads, and number of consecutive checks that must find them idle.
"""
REST_SECONDS = 1.0
"""Maximum time to wait for idle threads: one may be in a call that never ends."""


@contextlib.contextmanager
def naming(agent: AgentClient) -> Iterator[None]:
    """Raise GroupLost, which names the lost rank, for gloo's connection errors."""
    if lost := agent.lost():
        raise lost
    try:
        yield
    except RuntimeError as error:
        # gloo also raises errors of wrong arguments, which need no explanation.
        if isinstance(error, HopsumError) or not re.search(LOSS, str(error)):
            raise
        lost = agent.lost(LOST_SECONDS)
        if lost is None:
            raise
        raise GroupLost(str(lost)) from error


def watched(call: Callable[[], None], agent: AgentClient) -> None:
    """Call what waits for other ranks over gloo. Raises GroupLost at once, and what it raises.

    gloo does not notify ranks that wait indirectly for a lost rank.
    """
    outcome = Future[None]()

    def run() -> None:
        try:
            call()
            outcome.set_result(None)
        except Exception as error:  # noqa: BLE001 - for who waits
            outcome.set_exception(error)

    threading.Thread(target=run, name="hopsum barrier", daemon=True).start()
    with naming(agent):
        while not wait([outcome], SLICE_SECONDS).done:
            if lost := agent.lost():
                raise lost
        outcome.result()


class GlooWork(OuterWork):
    """A pending call over gloo; if a rank is lost, its error is the agent's, with names."""

    def __init__(self, inner: Any, agent: AgentClient) -> None:
        super().__init__(inner)
        self._agent = agent

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call. Raises GroupLost, and what gloo raises."""
        deadline = time.monotonic() + timeout.total_seconds() if timeout else math.inf
        with naming(self._agent):
            # gloo does not notify ranks that wait indirectly for a lost rank.
            while not self._wait_a_while(deadline):
                if lost := self._agent.lost():
                    raise lost
            return super().wait()

    def _wait_a_while(self, deadline: float) -> bool:
        """Wait for some time; return whether the call is over, well or not.

        Raises what gloo raises, at the deadline too.
        """
        began = time.monotonic()
        left = min(SLICE_SECONDS, max(0.001, deadline - began))
        try:
            super().wait(timedelta(seconds=left))
        except RuntimeError:
            if self.is_completed():
                return True
            # Reduce-scatters are not completed before they have been waited for, and do not look at
            # the time: an error before that is their own.
            now = time.monotonic()
            if now < began + left or now >= deadline:
                raise
            return False
        return True


class HopsumWork(dist.Work):
    """One or several pending calls of an agent; `tensors` finally hold the result."""

    def __init__(
        self,
        what: str,
        calls: int,
        tensors: list[torch.Tensor],
        timeout: timedelta,
        agent: AgentClient,
    ) -> None:
        super().__init__()
        self._what = what
        self._left = itertools.count(calls - 1, -1)
        self._over = False
        self._error: Exception | None = None
        self._tensors = tensors
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._agent = agent
        self._end: Any = None
        """A future that ends with the calls, and then runs `_outcome` for `_future`."""
        self._future: Any = None
        self._at_end: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def ended(self, error: Exception | None) -> None:
        """Record the end of one of the calls."""
        self._error = self._error or error
        if next(self._left) <= 0:
            self._finish()

    def _finish(self, error: Exception | None = None) -> None:
        """Record the end of all calls, or of the time for them."""
        with self._lock:
            if self._over:
                return
            self._error = self._error or error
            if self._at_end is not None:
                self._at_end()
            self._over = True
            if self._future is None:
                return
        # Callbacks of a future may wait for calls that end later (PowerSGD's do): not in the thread
        # that receives their results.
        complete = self._end.set_result
        threading.Thread(target=complete, args=(None,), name="hopsum future", daemon=True).start()

    def when_over(self, call: Callable[[], object]) -> None:
        """Call something once at the end of the calls, before those who wait learn of it.

        It must not wait for other calls.
        """
        with self._lock:
            if not self._over:
                self._at_end = call
                return
        call()

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        """Return the tensors, or raise the exception of the call."""
        if self._error is not None:
            raise self._error
        return self._tensors

    def _is_over(self) -> bool:
        return self._over

    def is_completed(self) -> bool:
        """Return whether the call is over, well or not."""
        return self._agent.turns.until(self._is_over, 0.0)

    def is_success(self) -> bool:
        """Return whether the call is over and has a result."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the exception of the call, if any."""
        return self._error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call. Raises its exception, HopsumError after the timeout."""
        # The default of the C++ class, zero, means the group's.
        seconds = (timeout or self._timeout).total_seconds()
        if not self._agent.turns.until(self._is_over, seconds):
            raise self._agent.lost() or self._late(seconds)
        if self._error is not None:
            raise self._error
        return True

    def _late(self, seconds: float) -> HopsumError:
        # gloo's wording, which programs and PyTorch's own tests match.
        return HopsumError(
            f"{self._what}: Timed out after {seconds:g} s: not all ranks have called for it; "
            "expected the same calls in the same order at all of them"
        )

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self._tensors

    def get_future(self) -> Any:
        """Return the same as a torch future of the tensors.

        It ends with the call's exception, or at the group's timeout: what waits for it in C++, as
        DistributedDataParallel does, has no timeout of its own.
        """
        with self._lock:
            if self._future is None:
                # C++ does not see exceptions of Future.set_exception, and takes them for tensors.
                self._end = torch.futures.Future()
                self._future = self._end.then(self._outcome)
                if self._over:
                    self._end.set_result(None)
                else:
                    self._agent.turns.read_for(self._is_over, self._deadline, self._expire)
            return self._future

    def _expire(self) -> None:
        self._finish(self._late(self._timeout.total_seconds()))


def until_gloo_rests() -> None:
    """Wait until gloo's threads have released the tensors of ended calls, at most REST_SECONDS.

    Called before the interpreter ends: a thread that then waits for the GIL, to release a tensor of
    Python's, aborts the process (pytorch/pytorch, issue 190489).
    """
    deadline, rested = time.monotonic() + REST_SECONDS, 0
    while rested < RESTING_LOOKS and time.monotonic() < deadline:
        # Sleeping gives them the GIL.
        time.sleep(LOOK_SECONDS)
        rested = 0 if _gloo_runs() else rested + 1


def _gloo_runs() -> bool:
    """Return whether a thread of gloo is running; False where the system does not say (proc(5))."""
    for thread in Path("/proc/self/task").glob("*/stat"):
        try:
            # The kernel cuts names after 15 bytes, also inside a character.
            text = thread.read_text(errors="replace")
        except OSError:
            continue
        name, _, fields = text.partition("(")[2].rpartition(") ")
        if name == GLOO_THREAD and fields.startswith("R"):
            return True
    return False
