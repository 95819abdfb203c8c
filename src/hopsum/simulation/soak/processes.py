"""Ranks of jobs of kind `process`: what each calls, when, and what it must get.

A rank's calls follow from its job's entry alone: a pattern that is repeated, as in a training, so
that calls are guessed and in the end taken by flows, with some others among them. Faults of ranks
change single calls. Results are compared with those of numpy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.host_agent.node.calls import COPY as COPIED
from hopsum.host_agent.node.calls import CallSpec
from hopsum.host_agent.node.local_sums import GREATEST_CODE
from hopsum.host_agent.numbers import error_bound
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    COPY,
    FAULTS,
    MODULO,
    NARROW,
    PARTS,
    PASSED,
    REDUCTIONS,
    ROOT,
    SHORT,
    SUM,
    TYPES,
    CallPacket,
)
from hopsum.protocol.wire import Width
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.host import VirtualHost
from hopsum.simulation.processes import Message, Process, magnitude_of
from hopsum.simulation.soak.schedule import JobEntry, RankFault, RankFaultKind

OTHERWISE = 0.03
"""Probability that a call is not the pattern's."""
NARROW_CALLS = 0.3
"""Fraction of sums, maxima and minima whose values take fewer than 32 bits in packets."""
PAUSES = (2e-5, 2e-4, 3e-3)
"""Seconds that ranks of a job take to act on what they hear, at most."""
MOST_BYTES = 1 << 14
"""Bytes of a memory: the longest tensor of a job."""
_COMBINED_BY: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_REASONS = {
    "different": "the ranks make different calls",
    "lanes": "check lanes",
    "nan": "cannot be compared",
    "not finite": "only finite values",
    "overflow": "beyond int32",
}
_LEAVES = "leaves"


class Call(NamedTuple):
    """A rank's call, but for its values; `fault`: one of FAULTS that some of them have."""

    kind: int
    type: str = "int32"
    reduction: str = "sum"
    elements: int = 0
    target: int = ALL
    fault: str = ""

    @property
    def packet(self) -> CallPacket:
        """Its packet, without what depends on its values."""
        return CallPacket(
            self.kind,
            list(TYPES).index(self.type) if self.kind == SUM else 0,
            REDUCTIONS["int32"].index(self.reduction) if self.kind == SUM else 0,
            0,
            self.target,
            *[0] * 5,
        )


@lru_cache(64)
def script(entry: JobEntry) -> Sequence[Call]:
    """Return the calls of a job's ranks, apart from mishaps."""
    rng = random.Random(f"process/{entry.seed}")
    pattern = [_call(rng, entry) for _ in range(rng.choice([1, 1, 2, 3]))]
    strays = [rng.random() < OTHERWISE for _ in range(entry.rounds)]
    return [
        _call(rng, entry) if stray else pattern[number % len(pattern)]
        for number, stray in enumerate(strays)
    ]


def _call(rng: random.Random, entry: JobEntry) -> Call:
    ranks = len(entry.all_ranks)
    target = rng.choice([ALL, ALL, ALL, PARTS, ROOT + rng.randrange(ranks)])
    elements = max(1, rng.choice([entry.elements, entry.elements, entry.elements // 7]))
    if target == PARTS:
        elements = -(-elements // ranks) * ranks
    kind = rng.choices([SUM, COPY, BARRIER], [80, 10, 10])[0]
    if kind == BARRIER:
        return Call(BARRIER)
    if kind == COPY:
        return Call(COPY, elements=elements, target=target if target != ALL else ROOT)
    dtype = rng.choice(["float32", "int32"])
    reduction = rng.choice(["sum", "sum", "sum", rng.choice(REDUCTIONS[dtype])])
    # Of their own, so that all else of a seed stays as it was.
    own = random.Random(f"types/{entry.seed}/{dtype}/{elements}/{target}")
    if reduction == "sum" and own.random() < NARROW_CALLS:
        dtype = NARROW if dtype == "float32" else MODULO
    elif dtype == "int32" and reduction in REDUCTIONS[SHORT] and own.random() < NARROW_CALLS:
        dtype = SHORT
    return Call(SUM, dtype, reduction, elements, target)


def call_of(entry: JobEntry, rank: int, number: int) -> Call | None:
    """Return what a rank calls; None: it has left."""
    call = script(entry)[number]
    for mishap in entry.mishaps:
        if mishap.rank != rank:
            continue
        if mishap.what is RankFaultKind.LEAVES and mishap.call <= number:
            return None
        if mishap.call != number or call.kind == BARRIER:
            continue
        match mishap.what:
            case RankFaultKind.DIFFERS:
                call = call._replace(elements=call.elements + len(entry.all_ranks))
            case RankFaultKind.NAN if _is_sum(call, "float32", "sum", "max", "min"):
                call = call._replace(fault="nan")
            case RankFaultKind.INFINITY if _is_sum(call, "float32", "sum"):
                call = call._replace(fault="inf")
            case RankFaultKind.PASSES if _is_sum(call, "float32", "sum"):
                call = call._replace(fault=PASSED)
    return call


def _is_sum(call: Call, dtype: str, *reductions: str) -> bool:
    return call.kind == SUM and call.type == dtype and call.reduction in reductions


def values_of(entry: JobEntry, rank: int, number: int) -> NDArray[Any]:
    """Return the values of a rank's call."""
    call = call_of(entry, rank, number)
    assert call is not None
    generator = np.random.default_rng([entry.seed, rank, number])
    if call.kind == COPY or call.reduction in ("and", "or", "xor"):
        return generator.integers(-(1 << 31), 1 << 31, call.elements).astype(np.int32)
    if call.type == SHORT:
        return generator.integers(-(1 << 15), 1 << 15, call.elements).astype(np.int16)
    if call.type == MODULO:
        return generator.integers(-(1 << 7), 1 << 7, call.elements).astype(np.int8)
    if call.type == "int32":
        limit = 1 << (31 if call.reduction != "sum" else 20)
        values = generator.integers(-limit, limit, call.elements).astype(np.int32)
        great = RankFault(rank, number, RankFaultKind.OVERFLOWS)
        if call.reduction == "sum" and great in entry.mishaps:
            values[generator.integers(call.elements)] = (1 << 31) - 1
        return values
    floats = generator.standard_normal(call.elements).astype(np.float32)
    if call.fault:
        chosen = [np.nan] if call.fault == "nan" else [np.inf]
        if call.fault == PASSED:
            chosen = [np.nan, np.inf, -np.inf]
        floats[generator.integers(call.elements)] = generator.choice(chosen)
    return floats


class Refusal(NamedTuple):
    """Why all ranks' calls must fail: a key of `_REASONS`."""

    why: str


@dataclass(frozen=True, slots=True)
class ExpectedResult:
    """What a call gives its ranks: values (float64 of sums of float32), which may be off by some.

    `call`: of all of them.
    """

    call: Call
    values: NDArray[Any]
    bound: NDArray[np.float64] | None = None


@lru_cache(128)
def expected(entry: JobEntry, number: int) -> ExpectedResult | Refusal:
    """Return what a call gives all ranks, in the elements that are theirs."""
    calls = [call_of(entry, rank, number) for rank in range(len(entry.all_ranks))]
    alike = {None if call is None else call._replace(fault="") for call in calls}
    first = calls[0]
    if len(alike) > 1 or first is None:
        return Refusal("different")
    if entry.integrity and (first.kind == COPY or first.reduction != "sum"):
        return Refusal("lanes")
    if {call.fault for call in calls if call is not None} & {*FAULTS[:3]}:
        return Refusal("not finite" if first.reduction == "sum" else "nan")
    first = first._replace(fault="")
    if first.kind == BARRIER:
        return ExpectedResult(first, np.zeros(0))
    given = [values_of(entry, rank, number) for rank in range(len(calls))]
    if first.kind == COPY:
        whole = np.zeros_like(given[0])
        for rank, values in enumerate(given):
            start, stop = _share(first, rank, len(given))
            whole[start:stop] = values[start:stop]
        return ExpectedResult(first, whole)
    if first.reduction != "sum":
        reduced: NDArray[Any] = _COMBINED_BY[first.reduction].reduce(given)
        return ExpectedResult(first, reduced)
    if first.type in ("int32", MODULO):
        total: NDArray[np.int64] = np.array(given, np.int64).sum(axis=0)
        if first.type == MODULO:
            return ExpectedResult(first, total.astype(np.int8))
        if (total != total.astype(np.int32)).any():
            return Refusal("overflow")
        return ExpectedResult(first, total.astype(np.int32))
    return ExpectedResult(first, *_sum_of_floats(entry, given, narrow=first.type == NARROW))


def _sum_of_floats(
    entry: JobEntry, given: Sequence[NDArray[np.float32]], *, narrow: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return an exact sum, and by how much a result may be off: of hosts, and before of a host."""
    with np.errstate(invalid="ignore"):
        total: NDArray[np.float64] = np.sum(np.array(given, np.float64), axis=0)
    finite = np.where(np.isfinite(given), given, 0).astype(np.float64)
    most = max(Counter(entry.all_ranks).values())
    code = max(magnitude_of(values) for values in given) + (most - 1).bit_length()
    width = Width.WIDTH_16 if narrow else Width.WIDTH_32
    exponent = min(code, GREATEST_CODE - 1)
    bound = error_bound(exponent, len(given), finite.sum(axis=0), width=width)
    return total, bound + (most - 1) * 2.0**-24 * np.abs(finite).sum(axis=0)


def _share(call: Call, rank: int, ranks: int) -> tuple[int, int]:
    return CallSpec(COPIED, call.elements, call.target).share(rank, ranks)


def difference(entry: JobEntry, number: int, rank: int, end: CallOutcome) -> str:
    """Return how the end of a rank's call differs from what it must be; empty: not at all."""
    due = expected(entry, number)
    if isinstance(due, Refusal):
        wrong = end.result is not None or _REASONS[due.why] not in end.why
        return f"{end}, and {due.why} was expected" if wrong else ""
    if end.result is None:
        return f"failed: {end.why}"
    start, stop = 0, due.call.elements
    if due.call.kind == SUM:
        start, stop = _share(due.call, rank, len(entry.all_ranks))
    result, values = end.result[start:stop], due.values[start:stop]
    if due.bound is None:
        wrong = ~((result == values) | (np.isnan(values) & np.isnan(result)))
    else:
        finite = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            near = np.abs(result.astype(np.float64) - values) <= due.bound[start:stop]
        same = (result == values) | (np.isnan(values) & np.isnan(result))
        wrong = ~np.where(finite, near, same)
    return f"{wrong.sum()} of {stop - start} elements are wrong" if wrong.any() else ""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a rank's call ended: with a result in its memory, or why without."""

    result: NDArray[Any] | None = None
    why: str = ""

    def __str__(self) -> str:
        return "it has a result" if self.result is not None else f"failed: {self.why}"


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
