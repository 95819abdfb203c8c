"""Hosts that take part in a simulated all-reduce: a workload joined to a protocol agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collectives.execution import Execution
from collectives.schedule import Schedule
from host_agent.worker import Worker
from host_agent.workload import Interval, Workload
from protocol.wire import Address
from simulation.stream import StreamMember
from simulation.world import Frames


class InNetworkMember:
    """A worker of a plan with its workload."""

    def __init__(self, worker: Worker, workload: Workload) -> None:
        self.worker = worker
        self.workload = workload
        self.intervals: list[Interval] = []
        self.done = False
        self._call: int | None = None
        self._started = 0.0
        self._advance(0.0)

    def _advance(self, now: float) -> None:
        """Finish the call in hand if it is complete, and start the next; raises JobFailed."""
        while not self.done:
            if self._call is not None:
                if not self.worker.done(self._call):
                    return
                result = self.worker.result(self._call)
                assert result is not None
                self.intervals.append((self._started, now))
                self.workload.take_result(result)
            tensor = self.workload.next_tensor()
            if tensor is None:
                self.done = True
                return
            self._started = now
            self._call = self.worker.submit(tensor, now)

    @property
    def retransmissions(self) -> int:
        """Fragments sent again."""
        return self.worker.statistics.retransmissions

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames in; a completed call starts the next one."""
        self.worker.receive(frames, now)
        self._advance(now)

    def tick(self, now: float) -> None:
        """Timers."""
        self.worker.tick(now)
        self._advance(now)

    def take_output(self) -> list[Frames]:
        """Frames to send."""
        return self.worker.take_output()

    @property
    def deadline(self) -> float | None:
        """The worker's next timer."""
        return self.worker.deadline


class ScheduleMember:
    """A rank of a schedule with its workload; `schedule`: the one for so many elements."""

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, Address],
        workload: Workload,
        schedule: Callable[[int], Schedule],
    ) -> None:
        self.workload = workload
        self.intervals: list[Interval] = []
        self.done = False
        self._schedule = schedule
        self._rank = rank
        self._stream = StreamMember(rank, addresses)
        self._execution: Execution | None = None
        self._started = 0.0
        self._advance(0.0)

    def _advance(self, now: float) -> None:
        while not self.done:
            if self._execution is not None:
                if not self._execution.done:
                    return
                self.intervals.append((self._started, now))
                self.workload.take_result(self._execution.values)
            tensor = self.workload.next_tensor()
            if tensor is None:
                self.done = True
                return
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
        self._advance(now)

    def tick(self, now: float) -> None:
        """Timers."""
        self._stream.tick(now)

    def take_output(self) -> list[Frames]:
        """Frames to send."""
        return self._stream.take_output()

    @property
    def deadline(self) -> float | None:
        """The streams' next timer."""
        return self._stream.deadline
