"""Random histories of a worker: the compiled stream does what the reference does, step by step."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import QUESTION, Flag, Kind, Reduction, Width
from tests.oracles.reference_worker import Flight, ReferenceWorker
from tests.support.protocol_world import LANES, frame, star_plan, tree_plan
from tests.support.search import examples

Made = tuple[JobPlan, Network]
TWO_LEVELS = {"w0": "s0", "w1": "s0", "w2": "s1", "w3": "s2", "ps": "s2"}


def with_rates(made: Made) -> Made:
    """Links have rates, so that queues are marked."""
    plan, network = made
    links = tuple(replace(link, bandwidth=1e7, latency=1e-3) for link in network.links)
    return plan, replace(network, links=links)


PLANS: dict[str, Callable[[], Made]] = {
    "alone": lambda: star_plan(1, window=1, results=Results.REPLICATED),
    "star": lambda: star_plan(3, window=4, aggregates=("s0",), results=Results.REPLICATED),
    "star, unicast": lambda: star_plan(3, window=4, aggregates=("s0",), results=Results.UNICAST),
    "star, with rates": lambda: with_rates(
        star_plan(5, window=16, aggregates=("s0",), results=Results.REPLICATED)
    ),
    "no sums": lambda: star_plan(3, window=8, results=Results.UNICAST),
    "no sums, replicated": lambda: star_plan(3, window=2, results=Results.REPLICATED),
    "singles": lambda: star_plan(4, window=4, singles=True, results=Results.UNICAST),
    "some sums": lambda: tree_plan(
        TWO_LEVELS, {"s0": "s2", "s1": "s2"}, ("s0",), window=4, results=Results.REPLICATED
    ),
}
NARROW = (
    (np.float32, Width.WIDTH_16),
    (np.float16, Width.WIDTH_16),
    (np.uint16, Width.WIDTH_16),
    (np.float16, Width.WIDTH_32),
    (np.uint16, Width.WIDTH_32),
    (np.int16, Width.WIDTH_16),
    (np.int8, Width.WIDTH_8),
)
"""Types of numpy, uint16 for bfloat16, and widths in packets."""
OF_INTEGERS = (Reduction.SUM, Reduction.SUM, Reduction.AND, Reduction.MAX, Reduction.XOR)


class History:
    """What may happen to a worker, from a seed; `flights`: what it has in flight."""

    def __init__(self, made: Made, seed: int) -> None:
        self.plan, self.network = made
        self.random = random.Random(seed)
        self.index = self.random.randrange(len(self.plan.workers))
        self.options = WorkerOptions(
            bypass_after=self.random.choice((1, 3, 6)),
            deadline=self.random.choice((1.0, 60.0)),
            first_fragment=self.random.choice((0, 0, 2**31 - 5, 2**32 - 5)),
        )
        self.number = -1
        self.seen: deque[Frames] = deque(maxlen=20)

    def chance(self, of: float) -> bool:
        """Whether it happens."""
        return self.random.random() < of

    def tensor(self) -> tuple[np.ndarray, Reduction, Width]:
        """A tensor, how it is summed, and how wide its values are in packets."""
        size = self.random.choice((1, LANES, 3 * LANES + 5, 20 * LANES, 60 * LANES))
        rng = np.random.default_rng(self.random.randrange(2**32))
        dtype, width = self.random.choice(NARROW)
        if self.chance(0.3):
            dtype, width = self.random.choice((np.int32, np.float32)), Width.WIDTH_32
        # Tails of a lane too.
        size += self.random.choice((0, 0, 1, 2)) + size * (width.per_lane - 1)
        if dtype in (np.int32, np.int16, np.int8):
            limit = 1 << (8 * np.dtype(dtype).itemsize - 1)
            reduction = self.random.choice(OF_INTEGERS)
            if width is not Width.WIDTH_32:
                reduction = self.random.choice((Reduction.SUM, Reduction.MAX))
            return rng.integers(-limit, limit, size).astype(dtype), reduction, width
        least, most = (-20, 10) if dtype == np.float16 else (-140, 100)
        scale = np.float32(2.0) ** self.random.choice((least, least + 14, -3, 0, most))
        values = rng.standard_normal(size).astype(np.float32) * scale
        if dtype == np.uint16:
            return (values.view(np.uint32) >> 16).astype(np.uint16), Reduction.SUM, width
        return values.astype(dtype), Reduction.SUM, width

    def frame(
        self, kind: Kind, fragment: int, stack: tuple = (), exponent: int = 0, **fields: int
    ) -> Frames:
        """One from the switch or server."""
        lanes = [self.random.randrange(-(2**31), 2**31) for _ in range(LANES)]
        return frame(
            *(self.plan, self.network, kind, fragment % 2**32, lanes, stack),
            exponent=exponent,
            **{"weight": len(self.plan.workers), "epoch": self.epoch(), **fields},
        )

    def epoch(self) -> int:
        """This one, mostly."""
        change = 0 if self.chance(0.97) else self.random.choice((-1, 1, 2, -32000, 32000))
        return max(1, (self.plan.epoch + change) & 0xFFFF)

    def result(self, flights: list[Flight]) -> Frames:
        """The result of what is in flight, or was, or will be."""
        by_fragment = {each.fragment: each for each in flights}
        fragment, exponent, reduction = self.random.randrange(100), 0, Reduction.SUM
        width = Width.WIDTH_32
        if by_fragment:
            fragment = self.random.choice((min(by_fragment), *by_fragment))
        if self.chance(0.05):
            fragment += self.random.randint(-9, 9)
        if fragment in by_fragment:
            flight = by_fragment[fragment]
            reduction, exponent, width = flight.reduction, flight.exponent, flight.width
            if flight.part.scaled:
                # The greatest of all workers: what is sent next is scaled by it.
                exponent = min(255, exponent + self.random.choice((0, 0, 1, 7)))
        if self.chance(0.02):
            reduction = self.random.choice(OF_INTEGERS)
            width = Width.WIDTH_32
        flags = Flag(0)
        for flag, chance in (
            (Flag.SEQUENCED, 0.8),
            (Flag.ECN, 0.1),
            (Flag.OVERFLOW, 0.001),
            (Flag.STALE, 0.01),
            (Flag.BYPASS, 0.01),
        ):
            flags |= flag if self.chance(chance) else 0
        self.number += self.random.choice((1,) * 40 + (2, 2, 3, 9, 40))
        sequence = self.number
        if self.chance(0.08):
            sequence -= self.random.randint(0, 70)
            flags |= Flag.REPAIR if self.chance(0.7) else 0
        kind = Kind.REPLICATED if self.plan.results is Results.REPLICATED else Kind.RESULT
        return self.frame(
            self.random.choice((Kind.RESULT, kind, kind, kind)),
            fragment,
            exponent=exponent,
            worker=self.random.randrange(len(self.plan.workers)),
            flags=int(flags),
            reduction=reduction,
            width=width,
            sequence=sequence & 0xFFFF,
            **({"weight": self.random.randrange(1, 9)} if self.chance(0.02) else {}),
        )

    def request(self, newest: int) -> Frames:
        """A neighbour's or the server's, for a number of a contribution."""
        number = (newest - self.random.choice((0, 1, 2, 5, 200, -1))) & 0xFFFF
        if self.chance(0.5):
            fields = {"flags": int(QUESTION), "reduction": Reduction.NONE, "sequence": number}
            return self.frame(Kind.RESULT, 0, **fields)
        stack = self.plan.trees[0].up[self.index]
        return self.frame(
            Kind.REQUEST, 0, stack, flags=int(Flag.SEQUENCED), sequence=number, weight=1
        )

    def mutated(self, arrived: Frames) -> Frames:
        """The frame with some bytes changed, or cut, or longer."""
        changed = arrived.copy()
        for _ in range(self.random.choice((1, 1, 2, 8))):
            changed[0, self.random.randrange(10, min(70, changed.shape[1]))] = (
                self.random.randrange(256)
            )
        if self.chance(0.2):
            changed = np.resize(changed, (1, self.random.choice((1, 41, 57, 61, 62, 66, 190))))
        return changed

    def arrival(self, reference: ReferenceWorker) -> Frames:
        """Any frame, (1, length)."""
        if self.seen and self.chance(0.08):
            arrived = self.random.choice(self.seen)
        elif self.chance(0.06):
            arrived = self.request(reference.numbers.next - 1)
        else:
            arrived = self.result(reference.flights())
        self.seen.append(arrived)
        # Results of floats are trusted to have an exponent that values fit.
        return self.mutated(arrived) if arrived[0, 45] == 0 and self.chance(0.04) else arrived

    def next_plan(self) -> JobPlan:
        """One of a later epoch, mostly."""
        epoch = (self.plan.epoch + self.random.choice((1, 1, 1, 2, 0, -1))) & 0xFFFF or 1
        return replace(self.plan, epoch=epoch, results=self.random.choice([*Results]))


def outputs(worker: Worker) -> list[bytes]:
    """What a worker sends, frame by frame, in order."""
    return [row.tobytes() for batch in worker.take_output() for row in batch]


def compare(made: Made, seed: int, steps: int) -> Counter[str]:
    """Let both go through a history; return what they counted, and failures."""
    history = History(made, seed)
    total: Counter[str] = Counter()

    def begin() -> tuple[Worker, ReferenceWorker]:
        given = history.plan, history.index, history.network, history.options
        return Worker(*given), ReferenceWorker(*given)

    ours, reference = begin()
    results: dict[int, np.ndarray] = {}
    now = 0.0
    for step in range(steps):
        where = f"seed {seed}, step {step}"
        if ours.failure is not None:
            total.update(ours.statistics.counts())
            total[str(reference.failure)] += 1
            ours, reference = begin()
            results.clear()
        due = reference.deadline
        woken = ours.deadline
        assert (inf if woken is None else woken) <= due, where
        if len(reference.parts) < 4 and history.chance(0.1):
            values, reduction, width = history.tensor()
            number = ours.submit(values, now, reduction=reduction, width=width)
            results[number] = reference.submit(values, now, reduction, width)
        elif due < inf and history.chance(0.12):
            now = max(now, due) + history.random.choice((0, 0, 1e-4, 0.5))
        elif history.chance(0.01):
            plan = history.next_plan()
            for worker in (ours, reference):
                worker.adopt(plan, now)
            if reference.plan is plan:
                history.plan, history.number = plan, -1
        elif history.chance(0.01):
            ours = copy.deepcopy(ours)
        else:
            now += 0.003 * history.random.random()
            arrived = history.arrival(reference)
            for worker in (ours, reference):
                worker.receive(arrived, now)
        for worker in (ours, reference):
            worker.tick(now)
        sent = outputs(ours)
        assert sent == reference.take_output(), where
        assert ours.statistics.counts() == reference.statistics.counts(), where
        assert (ours.failure is None) == (reference.failure is None), where
        while ours.failure is None and results and ours.done(number := next(iter(results))):
            np.testing.assert_array_equal(ours.result(number), results.pop(number), where)
            total["tensors"] += 1
        while reference.parts and reference.parts[0].is_done:
            reference.parts.popleft()
    return total + Counter(ours.statistics.counts())


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_histories_of_the_compiled_worker_are_those_of_the_reference(name: str) -> None:
    for seed in range(examples(1, of=20)):
        compare(PLANS[name](), seed, examples(300, of=3000))


@pytest.mark.slow
def test_the_histories_reach_all_counters() -> None:
    reached = sum(
        [compare(PLANS[name](), 1000 + seed, 400) for seed, name in enumerate(PLANS)], Counter()
    )
    counted = Worker(*star_plan(1)[:1], 0, star_plan(1)[1]).statistics.counts()
    checks = {"corrupt", "asked"}
    expected = {*counted, "tensors", "overflow", "no result"} - checks
    assert not [name for name in expected if not reached[name]], reached
