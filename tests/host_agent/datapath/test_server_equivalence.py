"""Random histories of a server: the compiled one does what the reference does, frame by frame."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.datapath.library import Flow, library, shared_output
from hopsum.host_agent.server import Server
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import (
    VALUE_REDUCTIONS,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    Reduction,
    Width,
    carries_lanes,
    frame_template,
    ipv4_checksum,
)
from hopsum.simulation import flows
from tests.oracles.reference_check_lanes import ReferenceCheckLanes
from tests.oracles.reference_server import ReferenceServer
from tests.support.protocol_world import LANES, star_plan, tree_plan
from tests.support.search import examples

KEY = bytes(range(32))
TWO_LEVELS = {"w0": "s0", "w1": "s0", "w2": "s1", "w3": "s1", "w4": "s2", "ps": "s2"}
Made = tuple[JobPlan, Network]


def two_levels(**changes: object) -> Made:
    """Two switches that sum two workers each, and one worker at the server's switch."""
    return tree_plan(TWO_LEVELS, {"s0": "s2", "s1": "s2"}, ("s0", "s1"), **changes)  # type: ignore[arg-type]


def rooted(**changes: object) -> Made:
    """The server is at the last worker's host."""
    access = {"w0": "s0", "w1": "s0", "w2": "s1", "w3": "s1"}
    return tree_plan(access, {"s0": "s1"}, ("s0",), server="w3", **changes)  # type: ignore[arg-type]


PLANS: dict[str, Callable[[], Made]] = {
    "alone": lambda: star_plan(1, window=1, results=Results.REPLICATED),
    "star": lambda: star_plan(3, window=2),
    "star, replicated": lambda: star_plan(3, window=4, results=Results.REPLICATED),
    "one child": lambda: star_plan(3, window=4, aggregates=("s0",), results=Results.REPLICATED),
    "one child, unicast": lambda: star_plan(2, window=1, aggregates=("s0",)),
    "two levels": lambda: two_levels(window=2),
    "two levels, replicated": lambda: two_levels(window=4, results=Results.REPLICATED),
    "singles": lambda: star_plan(4, window=2, singles=True),
    "root": lambda: rooted(window=2, results=Results.REPLICATED),
    "integrity": lambda: star_plan(3, window=2, integrity=True, results=Results.REPLICATED),
    "integrity, alone": lambda: star_plan(1, window=1, integrity=True),
    "integrity, one child": lambda: star_plan(
        2, window=1, aggregates=("s0",), integrity=True, results=Results.REPLICATED
    ),
    "integrity, two levels": lambda: two_levels(window=2, integrity=True),
    "integrity, singles": lambda: star_plan(3, window=2, singles=True, integrity=True),
}
FIRST = (0, 2**31 - 8, 2**32 - 8)
"""Where fragment numbers begin: they and their distances pass 2^31 and 2^32."""
STEPS = (1,) * 60 + (2, 2, 3, 9, 40)
"""From one number on a link to the next."""
MARKS = (0, 0, 0, 0x60, 0xE0, URGENT, 0xE0 | URGENT)


@lru_cache(maxsize=1 << 14)
def values_of(fragment: int, worker: int) -> NDArray[np.int32]:
    """Lanes of a worker; some sums of them wrap around."""
    rng = np.random.default_rng([fragment, worker])
    most = 2**31 - 1 if fragment % 5 == 0 else 2**27
    return rng.integers(-most, most + 1, LANES).astype(np.int32)


class History:
    """What may happen to a server, from a seed."""

    def __init__(self, made: Made, seed: int) -> None:
        self.plan, self.network = made
        self.random = random.Random(seed)
        self.front = self.random.choice(FIRST)
        self.sequences: dict[int, int] = {}
        self.sent: deque[Frames] = deque(maxlen=40)
        self.results: deque[Frames] = deque(maxlen=10)
        self.asked: deque[tuple[int, int]] = deque(maxlen=10)
        """Single contributions that the server asks for."""
        self._checks: dict[int, ReferenceCheckLanes] = {}

    @property
    def checks(self) -> ReferenceCheckLanes:
        """Of this plan's workers."""
        workers = len(self.plan.workers)
        if workers not in self._checks:
            self._checks[workers] = ReferenceCheckLanes(workers, KEY, 0, LANES)
        return self._checks[workers]

    def chance(self, of: float) -> bool:
        """Whether it happens."""
        return self.random.random() < of

    def fragment(self) -> int:
        """One that is in flight, or was, or far away."""
        window = self.plan.in_flight
        self.front += self.chance(0.003)
        ahead = self.random.randrange(window)
        if self.chance(0.1):
            ahead = self.random.randint(-2 * window - 1, 2 * window)
        if self.chance(0.01):
            ahead = self.random.choice((1 << 31, (1 << 31) - 1, 1 << 20))
        return (self.front + ahead) & 0xFFFFFFFF

    def observe(self, frame: bytes) -> None:
        """Note what a server sends."""
        if frame[42] & 0xF not in (Kind.RESULT, Kind.REPLICATED):
            return
        fragment, worker = int.from_bytes(frame[58:62], "big"), int.from_bytes(frame[52:54], "big")
        if frame[43] & Flag.BYPASS:
            self.asked.append((fragment, worker))
            return
        self.results.append(np.frombuffer(frame, np.uint8)[None])
        if fragment == self.front & 0xFFFFFFFF:
            self.front += 1

    def reduction(self, fragment: int) -> Reduction:
        """That of a fragment, mostly."""
        if self.plan.integrity and self.chance(0.99):
            return Reduction.SUM
        choice = fragment if self.chance(0.97) else self.random.randrange(100)
        return list(Reduction)[choice * 7 % len(Reduction)]

    def width(self, fragment: int, reduction: Reduction) -> Width:
        """That of a fragment's values, mostly."""
        if self.plan.integrity or reduction not in VALUE_REDUCTIONS:
            return Width.WIDTH_32
        choice = fragment if self.chance(0.97) else self.random.randrange(100)
        return list(Width)[choice % len(Width)]

    def lanes(self, fragment: int, workers: list[int]) -> np.ndarray:
        """The sum of what workers contribute to a fragment."""
        total = np.zeros(LANES, np.int32)
        for worker in workers:
            own = values_of(fragment, worker)
            if self.plan.integrity:
                needed = bool((fragment + worker) % 2)
                own = np.int32(self.checks.protected(own.tolist(), fragment, worker, needed=needed))
            total += own
        if self.plan.integrity and self.chance(0.06):
            at = self.random.randrange(LANES)
            total[at] ^= np.int32(1 << self.random.randrange(31))
        return total

    def frame(
        self, header: Header, stack: tuple[Hop, ...], lanes: np.ndarray, tos: int = 0
    ) -> Frames:
        """One frame from a worker or switch to the server."""
        plan, hosts = self.plan, self.network.hosts
        source, own = (
            Address(hosts[name].mac_bytes, hosts[name].ip_bytes)
            for name in (plan.workers[0], plan.trees[0].server)
        )
        up = header.kind is Kind.CONTRIBUTION or bool(stack)
        count = plan.lanes if carries_lanes(header.reduction, up=up) else 0
        row = frame_template(source, own, header, stack, count, tos)
        if count:
            row[-4 * LANES :] = lanes.astype(">i4").view(np.uint8)
        return row[None, :]

    def contribution(self) -> Frames:
        """A sum of a child, a single, a total, or what looks like one of these."""
        plan, tree = self.plan, self.plan.trees[0]
        workers = len(plan.workers)
        fragment, worker = self.fragment(), self.random.randrange(workers)
        answers = bool(self.asked) and self.chance(0.6)
        if answers:
            fragment, worker = self.asked.pop()
            worker = min(worker, workers - 1)
        [child] = [i for i, group in enumerate(tree.server_children) if worker in group]
        group = list(tree.server_children[child])
        flags, sequence, weight = Flag(0), 0, len(group)
        if tree.singles:
            flags |= Flag.BYPASS
            group, weight, child = [worker], 1, 0
        elif answers or self.chance(0.1):
            flags |= Flag.BYPASS
            group, weight = [worker], 1
        if self.chance(0.02):
            flags |= Flag.BYPASS
            group, weight = list(range(workers)), workers
        direct = tree.direct(worker)
        if direct or (not flags and self.chance(0.8)):
            flags |= Flag.SEQUENCED if not direct or self.chance(0.1) else 0
            sequence, flags = self.numbered(worker if direct else workers + child, flags)
        lanes = self.lanes(fragment, group)
        for flag, chance in (
            (Flag.ECN, 0.1),
            (Flag.OVERFLOW, 0.03),
            (Flag.STALE, 0.05),
            (Flag.BYPASS, 0.01),
        ):
            flags |= flag if self.chance(chance) else 0
        if self.chance(0.03):
            worker = self.random.randrange(workers + 3)
        if self.chance(0.03):
            weight = self.random.choice((0, 1, workers, workers + 1, 0xFFFF))
        if self.chance(0.02):
            child = self.random.choice((0, 1, 5, 511))
        reduction = self.reduction(fragment)
        header = Header(
            Kind.CONTRIBUTION,
            plan.job,
            0,
            self.epoch(),
            fragment,
            flags=int(flags),
            worker=worker,
            weight=weight,
            reduction=reduction,
            width=self.width(fragment, reduction),
            exponent=self.random.choice((0, 0, 120, 255)),
            sequence=sequence & 0xFFFF,
        )
        return self.frame(header, (Hop(child=child),), lanes, self.random.choice(MARKS))

    def numbered(self, sender: int, flags: Flag) -> tuple[int, Flag]:
        """A sender's next number, mostly; flags of a repair if it is one."""
        newest = self.sequences.get(sender, -1)
        number = newest + self.random.choice(STEPS)
        if self.chance(0.06):
            number -= self.random.randint(1, 70)
            flags |= Flag.REPAIR if self.chance(0.7) else 0
        elif self.chance(0.01):
            number += self.random.choice((100, 30000, 33000))
        self.sequences[sender] = max(number, newest)
        return number, flags

    def epoch(self) -> int:
        """This one, mostly."""
        change = 0 if self.chance(0.97) else self.random.choice((-1, 1, 2, -32000, 32000))
        return max(1, (self.plan.epoch + change) & 0xFFFF)

    def question(self) -> Frames:
        """For a number of a result."""
        header = Header(
            Kind.CONTRIBUTION,
            self.plan.job,
            0,
            self.epoch(),
            0,
            flags=int(Flag.STALE | Flag.BYPASS),
            worker=self.random.randrange(len(self.plan.workers) + 1),
            weight=1,
            reduction=Reduction.NONE,
            sequence=self.random.randrange(60),
        )
        return self.frame(header, (Hop(),), np.zeros(0, np.int32), URGENT)

    def request(self) -> Frames:
        """A neighbour's, for a number of a result."""
        header = Header(
            Kind.REQUEST,
            self.plan.job,
            0,
            self.epoch(),
            self.fragment(),
            flags=int(Flag.SEQUENCED),
            weight=1,
            reduction=self.random.choice(list(Reduction)),
            sequence=self.random.choice((self.random.randrange(60), self.random.randrange(2**16))),
        )
        return self.frame(header, (), np.ones(LANES, np.int32), URGENT)

    def total(self) -> Frames:
        """A result that the server has sent, handed over to it, or to one that has not."""
        if not self.results:
            return self.contribution()
        lanes = 4 * self.plan.lanes
        done = self.random.choice(self.results)[0]
        header = Header(
            Kind.CONTRIBUTION,
            self.plan.job,
            0,
            self.plan.epoch,
            int.from_bytes(done[58:62].tobytes(), "big"),
            flags=int(Flag.BYPASS) | (int(done[43]) & Flag.OVERFLOW),
            worker=self.random.randrange(len(self.plan.workers)),
            weight=len(self.plan.workers),
            exponent=int(done[45]),
        )
        values = np.zeros(LANES, np.int32)
        if len(done) >= 62 + lanes:
            values = done[-lanes:].view(">i4").astype(np.int32)
        return self.frame(header, (Hop(),), values)

    def mutated(self, frame: Frames) -> Frames:
        """The frame with some bytes changed, or cut, or longer."""
        changed = frame.copy()
        for _ in range(self.random.choice((1, 1, 1, 2, 8))):
            at = self.random.randrange(changed.shape[1])
            if self.chance(0.7):
                at = self.random.randrange(10, min(70, changed.shape[1]))
            changed[0, at] = self.random.randrange(256)
        if self.chance(0.2):
            changed[0, 24:26] = 0
            checksum = ipv4_checksum(changed[0, 14:34].tobytes())
            changed[0, 24:26] = checksum >> 8, checksum & 0xFF
        if self.chance(0.2):
            size = self.random.choice((1, 41, 44, 49, 50, 57, 58, 61, 62, 65, 66, 190, 194, 198))
            changed = np.resize(changed, (1, size))
        return changed

    def arrival(self) -> Frames:
        """Any frame, (1, length)."""
        if self.sent and self.chance(0.15):
            frame = self.random.choice(self.sent)
        else:
            made = self.random.choices(
                (self.contribution, self.question, self.request, self.total), (90, 3, 5, 2)
            )
            frame = made[0]()
        self.sent.append(frame)
        return self.mutated(frame) if self.chance(0.05) else frame

    def next_plan(self) -> JobPlan:
        """One of a later epoch, mostly: other results, or a worker less."""
        plan = self.plan
        epoch = (plan.epoch + self.random.choice((1, 1, 1, 2, 5, 0, -1))) & 0xFFFF or 1
        results = self.random.choice((plan.results, *Results))
        return replace(plan, epoch=epoch, results=results)


def receive_internally(server: Server, frame: Frames, now: float) -> list[bytes]:
    """Give a server a frame (1, length) of its own host's worker; return what it sends."""
    output = shared_output(server.most_output)
    at, stride = frame.ctypes.data, frame.strides[0]
    into = output.begin(whole=False)
    library().server_receive(server.address, at, 1, frame.shape[1], stride, now, True, into)
    return [row.tobytes() for batch in output.take() for row in batch]


def outputs(server: Server | ReferenceServer) -> list[bytes]:
    """What a server sends, frame by frame, in order."""
    return [row.tobytes() for batch in server.take_output() for row in batch]


def compare(made: Made, seed: int, steps: int) -> Counter[str]:
    """Let both go through a history; return what they counted."""
    history = History(made, seed)
    key = KEY if history.plan.integrity else None
    ours = Server(history.plan, 0, history.network, key)
    reference = ReferenceServer(history.plan, 0, history.network, key)
    now, total = 0.0, Counter[str]()
    for step in range(steps):
        now += 0.001 * history.random.random()
        internally: list[bytes] = []
        where = f"seed {seed}, step {step}"
        if history.chance(0.002):
            history.plan = replace(history.plan, epoch=history.plan.epoch % 0xFFFF + 1)
            history.sequences.clear()
            total.update(ours.statistics.counts())
            ours = Server(history.plan, 0, history.network, key)
            reference = ReferenceServer(history.plan, 0, history.network, key)
        elif history.chance(0.004):
            plan = history.next_plan()
            for server in (ours, reference):
                server.adopt(plan)
            if reference.plan is plan:
                history.plan = plan
                history.sequences.clear()
        elif history.chance(0.01):
            before = ours.state_bytes()
            ours = copy.deepcopy(ours)
            assert ours.state_bytes() == before
        else:
            frame = history.arrival()
            before_bytes = frame.tobytes()
            internal = made[0].trees[0].server.startswith("w") and history.chance(0.3)
            if internal and frame.shape[1] > 62:
                internally = receive_internally(ours, frame, now)
                reference.receive_whole(frame, now)
            else:
                for server in (ours, reference):
                    server.receive(frame, now)
            assert frame.tobytes() == before_bytes, where
        sent = internally + outputs(ours)
        assert sent == outputs(reference), where
        assert ours.statistics.counts() == reference.statistics.counts(), where
        assert ours.missing() == reference.missing(), where
        for each in sent:
            history.observe(each)
    return total + Counter(ours.statistics.counts())


@pytest.mark.parametrize("name", PLANS)
def test_histories_of_the_compiled_server_are_those_of_the_reference(name: str) -> None:
    for seed in range(examples(1, of=10)):
        compare(PLANS[name](), seed, examples(400, of=3000))


@pytest.mark.parametrize("name", PLANS)
def test_batches_and_flows_do_what_frames_one_by_one_do(name: str) -> None:
    made = PLANS[name]()
    history = History(made, 7)
    key = KEY if history.plan.integrity else None
    one, batches, flow = (Server(history.plan, 0, history.network, key) for _ in range(3))
    for step in range(25):
        arrivals = [history.arrival() for _ in range(history.random.choice((1, 2, 9, 30)))]
        sent: list[bytes] = []
        for _, group in groupby(arrivals, key=lambda frame: frame.shape):
            frames = np.concatenate([*group])
            for row in frames:
                one.receive(row[None], float(step))
            batches.receive(np.asfortranarray(frames) if step % 2 else frames, float(step))
            sent += by_flow(flow, frames, float(step))
        expected = outputs(one)
        assert outputs(batches) == expected
        assert sent == expected
        assert one.state_bytes() == batches.state_bytes() == flow.state_bytes()
        assert one.statistics.counts() == batches.statistics.counts() == flow.statistics.counts()
        for each in expected:
            history.observe(each)


def by_flow(server: Server, frames: Frames, now: float) -> list[bytes]:
    """What a server sends if a port gives it frames (n, length); it leaves none."""
    [address] = server.enter()
    assert Flow.from_address(address).key == server.plan.job << 8
    sent = flows.receive(address, frames, now)
    server.leave(now)
    return [row.tobytes() for batch in sent for row in batch]


def test_the_histories_reach_all_counters() -> None:
    reached = sum(
        [compare(PLANS[name](), 1000 + seed, 300) for seed, name in enumerate(PLANS)], Counter()
    )
    counted = Server(*star_plan(1)[:1], 0, star_plan(1)[1]).statistics.counts()
    assert not [name for name in counted if not reached[name]]
