"""Hosts that take part in a simulated all-reduce: a workload joined to a protocol agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collectives.execution import Execution
from collectives.plan import JobPlan
from collectives.schedule import Schedule
from coordination.reduction import ExternalAnd
from host_agent.worker import Worker
from host_agent.workload import Interval
from protocol.wire import Address
from simulation.coordination import AgreedOrder, Source
from simulation.stream import RECEIVE_BUFFER, StreamMember
from simulation.world import Frames


class InNetworkMember:
    """A worker of a plan with its workload; all tensors that may be summed are under way at once.

    `intervals`: of the calls in the order in which they began.
    """

    def __init__(self, worker: Worker, source: Source) -> None:
        self.worker = worker
        self.source = source
        self.intervals: list[Interval] = []
        self._calls: list[tuple[int, int, str]] = []
        self.advance(0.0)

    @property
    def done(self) -> bool:
        """Whether all is summed."""
        return self.source.over and not self._calls

    def advance(self, now: float) -> None:
        """Finish the calls that are complete, and start what can start; raises JobFailed."""
        while self._finish(now) or self._begin(now):
            pass

    def _finish(self, now: float) -> bool:
        complete = [call for call in self._calls if self.worker.done(call[0])]
        for call in complete:
            number, place, name = call
            result = self.worker.result(number)
            assert result is not None
            self._calls.remove(call)
            self.intervals[place] = self.intervals[place][0], now
            self.source.finish(name, result, now)
        return bool(complete)

    def _begin(self, now: float) -> bool:
        following = self.source.next(now)
        if following is None:
            return False
        name, tensor = following
        self._calls.append((self.worker.submit(tensor, now), len(self.intervals), name))
        self.intervals.append((now, now))
        return True

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer epoch."""
        self.worker.adopt(plan, now)

    @property
    def retransmissions(self) -> int:
        """Fragments sent again."""
        return self.worker.statistics.retransmissions

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames in; a completed call starts the next one."""
        self.worker.receive(frames, now)
        self.advance(now)

    def tick(self, now: float) -> None:
        """Timers."""
        self.worker.tick(now)
        self.source.tick(now)
        self.advance(now)

    def take_output(self) -> list[Frames]:
        """Frames to send."""
        return self.worker.take_output()

    @property
    def deadline(self) -> float | None:
        """The next timer of the worker or of the source."""
        return earlier(self.worker.deadline, self.source.deadline)


class SwitchedVectors:
    """A worker's end of the bit vectors' all-reduce in the switches: a job of its own (004).

    `external` is for the worker's participant; `worker` belongs to the job with the bitwise and.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.external = ExternalAnd(self._wait_for_turn)
        self._waiting: tuple[int, ...] | None = None
        self._call: int | None = None

    def _wait_for_turn(self, words: tuple[int, ...]) -> None:
        self._waiting = words

    def exchange(self, now: float) -> bool:
        """Send the vector that waits, or take in what came of the last; whether that has come."""
        if self._waiting is not None:
            words = np.array(self._waiting, dtype=np.uint32).view(np.int32)
            self._waiting = None
            self._call = self.worker.submit(words, now)
        if self._call is None or not self.worker.done(self._call):
            return False
        combined = self.worker.result(self._call)
        assert combined is not None
        self._call = None
        self.external.completed(combined.tolist())
        return True


class CoordinatedMember(InNetworkMember):
    """A worker of a plan whose bit vectors are combined by the switches, beside its tensors."""

    source: AgreedOrder

    def __init__(self, worker: Worker, source: AgreedOrder, vectors: SwitchedVectors) -> None:
        self.vectors = vectors
        super().__init__(worker, source)

    def advance(self, now: float) -> None:
        """Go on with tensors and vectors as far as they go; raises JobFailed."""
        super().advance(now)
        while self.vectors.exchange(now):
            self.source.combined(now)
            super().advance(now)

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer epoch of either job."""
        worker = self.worker if plan.job == self.worker.plan.job else self.vectors.worker
        worker.adopt(plan, now)

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames of either job in."""
        self.vectors.worker.receive(frames, now)
        super().receive(frames, now)

    def tick(self, now: float) -> None:
        """Timers."""
        self.vectors.worker.tick(now)
        super().tick(now)

    def take_output(self) -> list[Frames]:
        """Frames to send; a vector does not wait behind a window of tensors."""
        return self.vectors.worker.take_output() + super().take_output()

    @property
    def deadline(self) -> float | None:
        """The next timer of either job or of the source."""
        return earlier(self.vectors.worker.deadline, super().deadline)


class ScheduleMember:
    """A rank of a schedule with its workload; `schedule`: the one for so many elements.

    `buffer`: bytes that a connection's receiver holds.
    """

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, Address],
        source: Source,
        schedule: Callable[[int], Schedule],
        buffer: int = RECEIVE_BUFFER,
    ) -> None:
        self.source = source
        self.intervals: list[Interval] = []
        self._schedule = schedule
        self._rank = rank
        self._stream = StreamMember(rank, addresses, buffer=buffer)
        self._execution: Execution | None = None
        self._name = ""
        self._started = 0.0
        self.advance(0.0)

    @property
    def done(self) -> bool:
        """Whether all is summed."""
        return self.source.over and self._execution is None

    def advance(self, now: float) -> None:
        """Finish the schedule in hand if it is complete, and start the next."""
        while True:
            if self._execution is not None:
                if not self._execution.done:
                    return
                result = self._execution.values
                self._execution = None
                self.intervals.append((self._started, now))
                self.source.finish(self._name, result, now)
            following = self.source.next(now)
            if following is None:
                return
            self._name, tensor = following
            self._started = now
            schedule = self._schedule(len(tensor))
            self._execution = Execution(schedule, self._rank, np.array(tensor))
            self._stream.start(self._execution, now)

    @property
    def retransmissions(self) -> int:
        """Segments sent again."""
        return self._stream.retransmissions

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames in; a completed schedule starts the next one."""
        self._stream.receive(frames, now)
        self.advance(now)

    def tick(self, now: float) -> None:
        """Timers."""
        self._stream.tick(now)
        self.source.tick(now)
        self.advance(now)

    def take_output(self) -> list[Frames]:
        """Frames to send."""
        return self._stream.take_output()

    @property
    def deadline(self) -> float | None:
        """The next timer of the streams or of the source."""
        return earlier(self._stream.deadline, self.source.deadline)


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two deadlines; None: there is none."""
    return min((d for d in (one, other) if d is not None), default=None)
