"""The agents that attend jobs: a tracker per job, and the messages to agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hopsum.collectives.plan import JobPlan
from hopsum.controller.jobs.tracker import Outgoing, Tracker
from hopsum.network.model import shorten
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import OperationError
from hopsum.protocol.liveness import SILENCE_SECONDS

MessageQueue = asyncio.Queue[pb.ControllerMessage | None]
"""Messages to one agent; None ends its stream."""


MOST_MESSAGES = 10_000
"""Maximum number of unread commands of an agent; beyond it the stream ends, and the agent
reconnects."""


class UnknownJobError(OperationError):
    """No such job, or a job of that name exists already."""


@dataclass
class _Attendance:
    """One job's tracker and the queues of the agents that are connected."""

    tracker: Tracker
    heard: Callable[[], None]
    queues: dict[str, MessageQueue] = field(default_factory=dict)

    def send(self, messages: Outgoing) -> None:
        self.heard()
        for host, message in messages:
            queue = self.queues.get(host)
            if queue is None or queue.qsize() > MOST_MESSAGES:
                continue
            queue.put_nowait(message if queue.qsize() < MOST_MESSAGES else None)

    def end_streams(self) -> None:
        for queue in self.queues.values():
            queue.put_nowait(None)


class AgentRegistry:
    """Every job's tracker, and a queue of messages for each agent that attends.

    `waits`: whether a job waits for an unreachable switch or link; its agents are notified.
    `silence`: seconds after which an agent that says nothing counts as lost.
    """

    def __init__(
        self, waits: Callable[[int], bool] = lambda job: False, silence: float = SILENCE_SECONDS
    ) -> None:
        self.heard: Callable[[Tracker], None] = lambda tracker: None
        """Called with a job's tracker when it changes, before agents are sent messages."""
        self._jobs: dict[int, _Attendance] = {}
        self._waits = waits
        self._silence = silence

    def __iter__(self) -> Iterator[Tracker]:
        return iter([job.tracker for job in self._jobs.values()])

    def add(self, tracker: Tracker) -> None:
        """Expect the agents of a job. Raises UnknownJobError if the job exists already."""
        if tracker.plan.job in self._jobs:
            raise UnknownJobError(f"job {tracker.plan.job} exists already")
        tracker.silence = self._silence
        self._jobs[tracker.plan.job] = _Attendance(tracker, lambda: self.heard(tracker))

    def remove(self, job: int) -> None:
        """Forget a job; its agents' streams end."""
        self._job(job).end_streams()
        del self._jobs[job]

    def adopt(self, plan: JobPlan) -> None:
        """Send a job's next plan to its agents."""
        self._send(plan.job, lambda tracker: tracker.adopt(plan))

    def resume(self, job: int) -> None:
        """Notify a job's agents that the element it waited for is back."""
        self._send(job, lambda tracker: tracker.waiting(over=True))

    def decide(self, number: int, plan: JobPlan) -> None:
        """Partition a job's tensors as a plan says, from boundary `number` on."""
        self._send(plan.job, lambda tracker: tracker.decide(number, plan))

    def tracker(self, job: int) -> Tracker:
        """Return the tracker of a job. Raises UnknownJobError."""
        return self._job(job).tracker

    # -- streams of agents

    def connect(
        self,
        host: str,
        job: int,
        state: pb.AgentState,
        round_: int,
        now: float,
        instance: str = "",
    ) -> tuple[MessageQueue, pb.ControllerMessage | None]:
        """Process an agent's registration.

        Return the queue of messages for it, and None; or an empty queue and the rejection.
        """
        entry = self._job(job)
        queue: MessageQueue = asyncio.Queue()
        messages = entry.tracker.register(host, now, state, round_, instance)
        if messages[0][1].HasField("refused"):
            entry.send(messages[1:])
            return queue, messages[0][1]
        replaced = entry.queues.get(host)
        if replaced is not None:
            replaced.put_nowait(None)
        entry.queues[host] = queue
        entry.send(messages)
        return queue, None

    def receive(self, host: str, job: int, message: pb.AgentMessage, now: float) -> None:
        """Process a message of a connected agent; ignored if the job has been removed."""
        if job in self._jobs:
            self._send(job, lambda tracker: tracker.receive(host, message, now))

    def disconnect(self, host: str, job: int, queue: MessageQueue, now: float) -> None:
        """Process the end of an agent's stream, unless a later one has replaced it."""
        entry = self._jobs.get(job)
        if entry is not None and entry.queues.get(host) is queue:
            del entry.queues[host]
            entry.send(entry.tracker.gone(host, now))

    def was_away(self, seconds: float, now: float) -> None:
        """See `Tracker.was_away`."""
        for entry in self._jobs.values():
            entry.tracker.was_away(seconds, now)

    def check(self, now: float) -> None:
        """Detect agents that timed out, and notify those whose job waits."""
        for job, entry in self._jobs.items():
            entry.send(entry.tracker.check(now))
            if self._waits(job):
                entry.send(entry.tracker.waiting())

    def end_streams(self) -> None:
        """End the streams of all agents; the jobs stay."""
        for entry in self._jobs.values():
            entry.end_streams()

    def _send(self, job: int, step: Callable[[Tracker], Outgoing]) -> None:
        entry = self._job(job)
        entry.send(step(entry.tracker))

    def _job(self, job: int) -> _Attendance:
        if job not in self._jobs:
            known = shorten(map(str, self._jobs)) or "none"
            raise UnknownJobError(f"there is no job {job}; jobs: {known}")
        return self._jobs[job]
