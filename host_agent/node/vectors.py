"""Queues of bit vectors ([004][]) from the coordinating job to the job that combines them.

The vectors of a training are a job of their own, with the bitwise and as its reduction. Both jobs'
members are of one agent on every worker's host; what goes from one to the other waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from hopsum.coordination.reduction import ExternalAnd
from hopsum.host_agent.node.environment import NamedTensor
from hopsum.host_agent.segment import Tensor
from hopsum.host_agent.workload import UncheckedWorkload
from hopsum.protocol import hopsum_pb2 as pb

Words = Sequence[int]


class VectorQueue:
    """The vectors of one worker; `reduction` is for its participant, from any thread.

    `wake`: called when something waits. `combined`: called with the words that come out.
    `broken`: called once when no vector will be combined any more although the workers
    have not left.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.reduction = ExternalAnd(self._put)
        self.combined: Callable[[Words], None] = lambda words: None
        self.broken: Callable[[], None] = lambda: None
        self.ended = False
        """Whether there will be no more vectors."""
        self._wake = wake
        self._waiting: deque[Words] = deque()

    def _put(self, words: tuple[int, ...]) -> None:
        self._waiting.append(words)
        self._wake()

    def next(self) -> Words | None:
        """Return the next vector; None if there is none now."""
        return self._waiting.popleft() if self._waiting else None

    def end(self) -> None:
        """Note that there will be no more vectors: all workers have left, or this one failed."""
        self.ended = True
        self._wake()

    def give_up(self) -> None:
        """Note that no more vectors will be combined."""
        if not self.ended:
            self.end()
            self.broken()


class VectorQueues:
    """The queues of a host's jobs, by the number of the job that sums the vectors."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._queues: dict[int, VectorQueue] = {}

    def of(self, job: int) -> VectorQueue:
        """Return the queue of a job, created by whichever of the two members asks first."""
        return self._queues.setdefault(job, VectorQueue(self._wake))

    def drop(self, job: int) -> None:
        """Forget a job."""
        self._queues.pop(job, None)


class _Vectors(UncheckedWorkload):
    """The workload of vectors, which their coordinators check."""

    cycles = 0

    def outcome(self) -> pb.Outcome:
        """Return the number of combined vectors."""
        return pb.Outcome(cycles=self.cycles)


class SwitchedVectors:
    """The source of a job of vectors: each is a tensor of some words, int32."""

    prepared = True
    in_place = False
    deadline: float | None = None

    def __init__(self, vectors: VectorQueue) -> None:
        self.workload = _Vectors()
        self._vectors = vectors

    @property
    def over(self) -> bool:
        """Whether the workers have left."""
        return self._vectors.ended

    def prepare(self) -> None:
        """Do nothing: vectors come once the workers coordinate."""

    def start(self, now: float) -> None:
        """Do nothing: vectors come once the workers coordinate."""

    def next(self, now: float) -> NamedTensor | None:
        """Return the next vector."""
        words = self._vectors.next()
        if words is None:
            return None
        return NamedTensor("", np.array(words, dtype=np.uint32).view(np.int32))

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Return the combined vector."""
        self.workload.cycles += 1
        self._vectors.combined(result.tolist())

    def tick(self, now: float) -> None:
        """Nothing is ever due."""

    def close(self, why: str) -> None:
        """Stop combining vectors."""
        self._vectors.give_up()
