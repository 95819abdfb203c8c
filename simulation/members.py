"""Hosts that take part in a simulated all-reduce: a workload joined to a protocol agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collectives.execution import Execution
from collectives.schedule import Schedule
from host_agent.worker import Worker
from host_agent.workload import Interval
from protocol.wire import Address
from simulation.coordination import Source
from simulation.stream import StreamMember
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


class ScheduleMember:
    """A rank of a schedule with its workload; `schedule`: the one for so many elements."""

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, Address],
        source: Source,
        schedule: Callable[[int], Schedule],
    ) -> None:
        self.source = source
        self.intervals: list[Interval] = []
        self._schedule = schedule
        self._rank = rank
        self._stream = StreamMember(rank, addresses)
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
