"""Bit vectors (004) that the switches combine: from the job that agrees to the job that sums them.

The vectors of a training are a job of their own, with the bitwise and as its reduction. Both jobs'
members run in one process on every worker's host; what goes from one to the other waits here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives.plan import JobPlan
from coordination.reduction import ExternalAnd
from host_agent.segment import Tensor
from host_agent.workload import Judged, Verdict

Words = Sequence[int]


class VectorQueue:
    """The vectors of one worker; `reduction` is for its participant.

    `combined`: told the words that come out, by whoever coordinates. `broken`: told once when no
    vector will be combined any more although the workers have not left.
    """

    def __init__(self) -> None:
        self.reduction = ExternalAnd(self._waiting_put)
        self.combined: Callable[[Words], None] = lambda words: None
        self.broken: Callable[[], None] = lambda: None
        self._waiting: queue.SimpleQueue[Words | None] = queue.SimpleQueue()
        self._ended = threading.Event()

    def _waiting_put(self, words: tuple[int, ...]) -> None:
        self._waiting.put(words)

    def next(self) -> Words | None:
        """Wait for the next vector; None when there will be none."""
        return self._waiting.get()

    def end(self) -> None:
        """No vector will come any more: all workers have left, or this one is given up."""
        self._ended.set()
        self._waiting.put(None)

    def give_up(self) -> None:
        """No vector will be combined any more."""
        if not self._ended.is_set():
            self.end()
            self.broken()


class VectorQueues:
    """Those of a host's jobs, by the number of the job that sums the vectors."""

    def __init__(self) -> None:
        self._queues: dict[int, VectorQueue] = {}

    def of(self, job: int) -> VectorQueue:
        """The queue of a job, whichever of the two members asks first."""
        return self._queues.setdefault(job, VectorQueue())

    def drop(self, job: int) -> None:
        """Forget a job."""
        self._queues.pop(job, None)


class _Vectors(Judged):
    """Vectors are checked by those who gave them: what comes out of a cycle went into it."""

    cycles = 0

    def cut_as(self, plan: JobPlan) -> None:
        """Vectors go through the switches whole."""

    def verdict(self) -> Verdict:
        """Nothing is checked here."""
        return Verdict()

    def outcome(self) -> dict[str, Any]:
        """How many vectors were combined."""
        return {"cycles": self.cycles}


class SwitchedVectors:
    """The source of a job of vectors: each is a tensor of some words, int32."""

    waits = True

    def __init__(self, vectors: VectorQueue) -> None:
        self.workload = _Vectors()
        self._vectors = vectors

    def prepare(self) -> None:
        """Vectors come once the workers agree."""

    def first(self) -> tuple[str, Tensor] | None:
        """Wait for the first vector."""
        words = self._vectors.next()
        return None if words is None else ("", np.array(words, dtype=np.uint32).view(np.int32))

    def after(self, name: str, result: Tensor) -> tuple[str, Tensor] | None:
        """Hand back what came out, and wait for the next vector."""
        self.workload.cycles += 1
        self._vectors.combined(result.tolist())
        return self.first()

    def close(self) -> None:
        """Vectors are combined no longer."""
        self._vectors.give_up()
