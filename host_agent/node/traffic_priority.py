"""The traffic-priority module ([002][]): the send queues of a host's jobs, and demultiplexing of
frames.

Every job has a level; frames of a lower level leave first, and jobs of one level take turns. The
levels are the controller's to set; a job that it says nothing of is at level 0. Frames of a job
whose level has been set carry it in the IP ToS byte, for the queues of switches on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hopsum.host_agent.codec import JOB_START, Frames, by_number, in_turns
from hopsum.host_agent.io.loop import Machine
from hopsum.host_agent.timeout import earliest
from hopsum.protocol.tos import tos_of_level


@runtime_checkable
class MarkedMachine(Protocol):
    """Interface of machines whose frames carry a priority (Worker, Server, ServerSet)."""

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future frames."""


@runtime_checkable
class FlowMachine(Protocol):
    """Interface of machines whose flows have news (Worker)."""

    def give_back(self, tree: int, frames: Sequence[Frames]) -> None:
        """Send frames that the flow of a tree has made."""


@dataclass(slots=True)
class _Queue:
    machine: Machine
    level: int = 0
    sent_bytes: int = 0


class TrafficPriority:
    """Machines of several jobs, with the interface of one."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        self._levels: dict[int, int] = {}
        self._last: list[Frames] = []
        self.foreign = 0
        """Number of frames of jobs that are not here."""
        self.changed: Callable[[], None] = _nothing
        """Called before a machine comes or goes."""

    def add(self, job: int, machine: Machine) -> None:
        """Add a job's machine."""
        self.changed()
        self._queues[job] = _Queue(machine)
        if job in self._levels:
            self.set_level(job, self._levels[job])

    def remove(self, job: int) -> None:
        """Remove a job, if it is here; its frames count as foreign from now on.

        Its pending frames are still sent.
        """
        self.changed()
        queue = self._queues.pop(job, None)
        if queue is not None:
            self._last += queue.machine.take_output()
        self._levels.pop(job, None)

    def set_level(self, job: int, level: int) -> None:
        """Assign a job's frames to the send queue of a level, and mark them; 0 is served first.

        LevelError for a level that packets cannot carry.
        """
        tos = tos_of_level(level)
        self._levels[job] = level
        queue = self._queues.get(job)
        if queue is not None:
            queue.level = level
            if isinstance(queue.machine, MarkedMachine):
                queue.machine.mark(tos)

    def sent_bytes(self, job: int) -> int:
        """Return the bytes of frames that a job has sent."""
        # Metrics are read in another thread, while jobs come and go.
        queue = self._queues.get(job)
        return 0 if queue is None else queue.sent_bytes

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        if frames.shape[1] < JOB_START + 2:
            self.foreign += len(frames)
            return
        if not len(frames):
            return
        for job, of_job in by_number(frames, JOB_START, JOB_START + 2):
            queue = self._queues.get(job)
            if queue is None:
                self.foreign += len(of_job)
            else:
                queue.machine.receive(of_job, now)

    def enter(self) -> list[int]:
        """Leave frames and timers to flows until `leave`; return their addresses (flow.h)."""
        return [flow for queue in self._queues.values() for flow in queue.machine.enter()]

    def give_back(self, flow: int, frames: Sequence[Frames]) -> None:
        """Let a flow's stream, of job << 8 | tree, send frames that the flow has made."""
        machine = self._queues[flow >> 8].machine
        assert isinstance(machine, FlowMachine)
        machine.give_back(flow & 0xFF, frames)

    def leave(self, now: float) -> int:
        """Take over what the flows have done; return the bytes that they have sent."""
        total = 0
        for queue in self._queues.values():
            sent = queue.machine.leave(now)
            queue.sent_bytes += sent
            total += sent
        return total

    def tick(self, now: float) -> None:
        """Run due timers."""
        for queue in self._queues.values():
            queue.machine.tick(now)

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick`."""
        return earliest(*[queue.machine.deadline for queue in self._queues.values()])

    @property
    def deferrable(self) -> float:
        """Number of frames that may be batched: the minimum over jobs."""
        return min((queue.machine.deferrable for queue in self._queues.values()), default=0)

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length."""
        last, self._last = self._last, []
        waiting: dict[int, list[list[Frames]]] = {}
        for queue in self._queues.values():
            batches = queue.machine.take_output()
            if batches:
                queue.sent_bytes += sum(batch.nbytes for batch in batches)
                waiting.setdefault(queue.level, []).append(batches)
        return last + [frames for level in sorted(waiting) for frames in in_turns(waiting[level])]


def _nothing() -> None:
    pass
