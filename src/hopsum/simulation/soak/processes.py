"""Ranks of jobs of kind `process`: when each calls, and how its calls have ended."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.host_agent.process_calls import ALL, BARRIER, FAULTS, PASSED, SUM, TYPES
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.host import VirtualHost
from hopsum.simulation.processes import Message, Process
from hopsum.simulation.soak.rank_calls import (
    Call,
    CallOutcome,
    Refusal,
    call_of,
    difference,
    expected,
    script,
    values_of,
)
from hopsum.simulation.soak.schedule import JobEntry, RankFault, RankFaultKind

PAUSES = (2e-5, 2e-4, 3e-3)
"""Seconds that ranks of a job take to act on what they hear, at most."""
MOST_BYTES = 1 << 14
"""Bytes of a memory: the longest tensor of a job."""
_LEAVES = "leaves"


@dataclass
class RankHistory:
    """What a rank has met: ends by the number of its call, and how it ended itself."""

    ends: dict[int, CallOutcome] = field(default_factory=dict)
    connected: bool = False
    over: str = ""
    """Why it is over: it has left, it has died, or what its agent said."""


class Ranks:
    """The ranks of a run's jobs, on the hosts of a cluster."""

    def __init__(self, cluster: VirtualCluster, entries: Sequence[JobEntry]) -> None:
        self._cluster = cluster
        self._entries = {entry.name: entry for entry in entries if entry.all_ranks}
        self.histories: dict[int, list[RankHistory]] = {}
        """Of each job's ranks."""
        self._jobs: dict[int, JobEntry] = {}
        self._going: list[_Rank] = []

    def attend(self, controller: Cluster, refused: Collection[str]) -> None:
        """Start the ranks of jobs that have been accepted, where an agent runs.

        One that is being installed without a plan may not be in the journal yet. If the controller
        crashes then, its submitter has no answer, and its number becomes another job's.
        Those that still wait for the start of a job that is over, or that was `refused` after all,
        give up. A real rank has a timeout for that.
        """
        over = {job.number for job in controller.jobs if job.state.over}
        # One that was not taken at first has another number.
        numbers = {job.spec.name: job.number for job in controller.jobs}
        for each in self._going:
            another = numbers.get(each.name, each.job) != each.job
            gone = each.name in refused and each.name not in numbers
            if another or each.job in over or gone:
                each.give_up()
        for job in controller.jobs:
            entry = self._entries.get(job.spec.name)
            accepted = job.plan is not None or job.state is JobState.QUEUED
            if entry is None or job.state.over or not accepted:
                continue
            if self._jobs.get(job.number) != entry:
                # The number may have been that of a job that was refused.
                self._jobs[job.number] = entry
                self.histories[job.number] = [RankHistory() for _ in entry.all_ranks]
            histories = self.histories[job.number]
            for rank, (name, history) in enumerate(zip(entry.all_ranks, histories, strict=True)):
                host = self._cluster.hosts.get(name)
                if host is not None and not history.connected:
                    self._going.append(
                        _Rank(job.number, rank, entry, history, self._cluster, host.agent)
                    )

    def close(self) -> None:
        """End all that are still there."""
        for rank in self._going:
            rank.close()

    def calls(self) -> Counter[str]:
        """Return how many calls ended how, and how many flows have taken."""
        found = Counter({"taken by flows": self._cluster.common.calls_by_flows})
        for job, histories in self.histories.items():
            for number in [each for history in histories for each in history.ends]:
                due = expected(self._jobs[job], number)
                found[f"refused: {due.why}" if isinstance(due, Refusal) else "answered"] += 1
        return +found

    def died(self, job: Job) -> bool:
        """Return whether one of a job's ranks has died, or its memory went with its agent."""
        return any(each.over == RankFaultKind.DIES for each in self.histories.get(job.number, ()))

    def wrong(self) -> Iterator[str]:
        """Describe wrong results of ranks."""
        for job, histories in sorted(self.histories.items()):
            entry = self._jobs[job]
            first: dict[int, tuple[int, CallOutcome]] = {}
            for rank, history in enumerate(histories):
                for number, end in sorted(history.ends.items()):
                    where = f"job {job}, rank {rank}, call {number}"
                    if difference_ := difference(entry, number, rank, end):
                        yield f"{where}: {difference_}"
                        continue
                    other, alike = first.setdefault(number, (rank, end))
                    if not _same(entry, number, end, alike):
                        yield f"{where}: not the same as at rank {other}"

    def incomplete(self, job: Job) -> Iterator[str]:
        """Describe calls of a finished job that have not ended, and ranks that have not left."""
        entry = self._jobs[job.number]
        for rank, history in enumerate(self.histories[job.number]):
            made = [n for n in range(entry.rounds) if call_of(entry, rank, n) is not None]
            missing = set(made) - history.ends.keys()
            if missing or history.over != _LEAVES:
                yield (
                    f"job {job.number} finished, and rank {rank} lacks the ends of calls "
                    f"{sorted(missing)}: {history.over or 'it is there'}"
                )

    def leaks(self) -> Iterator[str]:
        """Describe what agents keep of processes, once all jobs are over."""
        for name, host in self._cluster.hosts.items():
            door = host.agent.door
            if door is not None and door.socket.connected:
                yield f"{name} has {door.socket.connected} processes"
            left = (
                []
                if door is None
                else [
                    job for job in door.socket.attended if not door.socket.attendance(job).abandoned
                ]
            )
            if left:
                yield f"{name} has attendances of jobs {left}"

    def content(self) -> Iterator[bytes]:
        """Yield all that a history has of ranks."""
        for job, histories in sorted(self.histories.items()):
            for rank, history in enumerate(histories):
                yield f"{job} {rank} {history.over}".encode()
                for number, end in history.ends.items():
                    yield f"{number} {end.why}".encode()
                    yield b"" if end.result is None else end.result.tobytes()


def _same(entry: JobEntry, number: int, one: CallOutcome, other: CallOutcome) -> bool:
    """Return whether ends that two ranks have of a call are the same, where they must be."""
    if one.result is None or other.result is None:
        return one.why == other.why
    call = script(entry)[number]
    return (call.kind == SUM and call.target != ALL) or np.array_equal(
        one.result.view(np.uint8), other.result.view(np.uint8)
    )


class _Rank:
    """A rank of a job, from its connection to its end."""

    def __init__(
        self,
        job: int,
        rank: int,
        entry: JobEntry,
        history: RankHistory,
        cluster: VirtualCluster,
        host: VirtualHost,
    ) -> None:
        self.job, self.name = job, entry.name
        self._rank, self._entry, self._history = rank, entry, history
        self._cluster, self._queue = cluster, cluster.queue
        self._host = host
        self._rng = random.Random(f"rank/{entry.seed}/{rank}")
        self._pause = random.Random(f"pause/{entry.seed}").choice(PAUSES)
        self._awake = self._started = False
        self._next = 0
        self._memories = [*range(entry.outstanding)]
        """Memories that no call is in."""
        self._open: dict[int, tuple[int, Call]] = {}
        """Calls under way, and their memories."""
        history.connected = True
        self._process: Process | None = Process(host.connect(self._wake))
        self._wake()

    def _wake(self) -> None:
        """Schedule `_take` for the messages that have arrived."""
        if not self._awake:
            self._awake = True
            self._queue.at(self._queue.now + self._pause * self._rng.random(), self._hear)

    def _hear(self) -> None:
        self._awake = False
        if self._process is None:
            return
        said = False
        for message in self._process.hear():
            said |= self._take(message)
        if self._started and self._process is not None:
            said |= self._go_on()
        if said:
            self._tell()

    def _tell(self) -> None:
        """Let the agent hear, unless it has ended meanwhile."""
        running = self._cluster.hosts.get(self._host.name)
        if running is not None and running.agent is self._host:
            self._host.hear()

    def _take(self, message: Message) -> bool:
        """Process a message; return whether the agent has something to hear."""
        assert self._process is not None
        match message["kind"]:
            case "hello":
                self._process.say({"kind": "attend", "job": self.job, "rank": self._rank})
                for _ in self._memories:
                    self._process.share(MOST_BYTES)
                return True
            case "started":
                self._started = True
            case "done":
                memory, call = self._open.pop(message["call"])
                dtype = TYPES[call.type if call.kind == SUM else "int32"]
                values = self._process.memories[memory][: dtype.itemsize * call.elements]
                self._history.ends[message["call"]] = CallOutcome(np.array(values).view(dtype))
                self._memories.append(memory)
            case "failed":
                memory, _ = self._open.pop(message["call"])
                why = f"{message['why']} {message['whose']}"
                self._history.ends[message["call"]] = CallOutcome(why=why)
                self._memories.append(memory)
            case "ended":
                self._history.over = self._history.over or message["why"]
            case "closed":
                self._history.over = self._history.over or "its agent is gone"
                self.close()
                return True
        return False

    def _go_on(self) -> bool:
        """Make the calls that are next; return whether there was anything to say."""
        assert self._process is not None
        said = False
        while not self._history.over:
            if RankFault(self._rank, self._next, RankFaultKind.DIES) in self._entry.mishaps:
                self._history.over = RankFaultKind.DIES
                self.close()
                return True
            call = None
            if self._next < self._entry.rounds:
                call = call_of(self._entry, self._rank, self._next)
            if call is None:
                if self._open:
                    break
                self._history.over = _LEAVES
                self._process.say({"kind": "leave"})
                return True
            if not self._memories:
                break
            self._call(call)
            said = True
        return said

    def _call(self, call: Call) -> None:
        assert self._process is not None
        number, self._next = self._next, self._next + 1
        memory = self._memories.pop(0)
        self._open[number] = memory, call
        if call.kind == BARRIER:
            self._process.barrier()
            return
        values = values_of(self._entry, self._rank, number)
        packet = call.packet._replace(memory=memory)
        if call.fault:
            wrong = 0 if call.fault == PASSED else int(np.flatnonzero(~np.isfinite(values))[0])
            packet = packet._replace(fault=FAULTS.index(call.fault) + 1, element=wrong)
        self._process.call(packet, values)

    def give_up(self) -> None:
        """End if this waits for the start of its job."""
        if self._process is not None and not self._started:
            self._history.over = self._history.over or "it has waited long enough"
            self.close()
            self._tell()

    def close(self) -> None:
        """End, without a word."""
        if self._process is not None:
            process, self._process = self._process, None
            door = self._host.door
            assert door is not None
            door.disconnect(process.socket)
