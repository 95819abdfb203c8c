"""The pass in C over ordinary results: the same as numpy's way, and taken nearly always."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.collectives.plan import Results
from hopsum.host_agent import ordinary
from hopsum.host_agent.codec import Frames, flags_of, reduction_byte, reductions_of
from hopsum.host_agent.congestion import StreamPath
from hopsum.host_agent.fast_path import FastPath
from hopsum.host_agent.segment import Remark
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.protocol.wire import LANE_REDUCTIONS, Flag, Reduction
from tests.support import flows
from tests.support.agent_snapshots import Snapshot, snapshot_of_stream
from tests.support.protocol_world import (
    LANES,
    at_server,
    at_worker,
    star_plan,
)
from tests.support.search import examples

pytestmark = pytest.mark.skipif(ordinary.library() is None, reason="no C compiler")


def snapshot(run: Run) -> Snapshot:
    """What stream and server keep."""
    return snapshot_of_stream(run.worker._all[0]) | {"server": run.server.state_bytes()}


class Run:
    """A worker and its server, with results that come in batches, late, twice or never."""

    def __init__(self, seed: int, *, as_flow: bool = False) -> None:
        self.as_flow = as_flow
        self.by_flow = self.expired = 0
        """Results that a flow has taken, and timers it has seen to."""
        self.random = random = Random(seed)
        self.workers = random.choice([1, 2, 300])
        window = random.choice([4, 32, 64])
        results = random.choice([Results.UNICAST, Results.REPLICATED])
        self.plan, network = star_plan(1, window=window, results=results)
        options = WorkerOptions(
            deadline=1e3,
            scale_workers=self.workers,
            first_fragment=random.choice([0, (1 << 32) - window * 4 + 3]),
        )
        self.worker = Worker(self.plan, 0, network, options)
        self.server = Server(self.plan, 0, network)
        self.faulty = random.random() < 0.6
        # Numbers on the link, of 16 bits, that soon begin anew.
        start = random.choice([0, (1 << 16) - 40])
        stream: Any = self.worker._all[0]
        if random.random() < 0.5:
            stream._flight.congestion.move(StreamPath(0.002, 1.4), random.choice([3, 17, 512]))
        stream._links.sent.next = self.server.state.sent.next = start
        stream._links.arrivals[0].newest = start - 1
        self.tensors = [self.tensor() for _ in range(random.randrange(1, 4))]
        self.way: list[Frames] = []
        self.sent: list[bytes] = []
        self.snapshots: list[Snapshot] = []
        self.remarks: list[Remark | None] = []
        self.out: list[Frames] = []
        """Frames that a flow has sent."""
        self.now = 0.0

    def tensor(self) -> NDArray[Any]:
        elements = self.random.randrange(1, 150 * LANES)
        generator = np.random.default_rng(self.random.getrandbits(32))
        if self.random.random() < 0.3:
            limit = (1 << 31) // self.workers
            return generator.integers(-limit, limit, elements, dtype=np.int32)
        values = generator.standard_normal(elements, dtype=np.float32)
        # Some fragments are so small or so large that their factors are special.
        scales = generator.choice(self.random.choice([[0], [-140, 0, 118], [-3, 4]]), 301)
        # Largest below a power of two: with many workers these are clipped.
        peaks = generator.choice(np.float32([8, -8]), elements // LANES + 1)
        values[:: 3 * LANES] = np.nextafter(peaks, np.float32(0))[::3][: len(values[:: 3 * LANES])]
        values *= np.ldexp(np.float32(1), np.repeat(scales, LANES)[:elements])
        return values

    def exchange(self) -> None:
        """The worker's frames to the server, and what it answers on its way."""
        for batch in self.out + self.worker.take_output():
            self.sent += [frame.tobytes() for frame in batch]
            marked = [self.random.random() < 0.05 for _ in batch]
            flags_of(batch)[marked] |= np.uint8(Flag.ECN)
            keep = [not self.faulty or self.random.random() > 0.02 for _ in batch]
            if any(keep):
                self.server.receive(at_server(batch[keep]), self.now)
        self.out.clear()
        for batch in self.server.take_output():
            for row in at_worker(batch):
                if not self.faulty or self.random.random() > 0.02:
                    frame = row[None].copy()
                    if self.random.random() < 0.05:
                        flags_of(frame)[...] |= np.uint8(Flag.ECN)
                    self.way.append(frame)
                    if self.faulty and self.random.random() < 0.02:
                        self.way.append(frame)

    def run(self) -> None:
        outs = [np.empty_like(tensor) for tensor in self.tensors]
        calls = []
        waiting = list(zip(self.tensors, outs, strict=True))
        for step in range(3000):
            if waiting and self.random.random() < 0.3:
                tensor, out = waiting.pop(0)
                reduction = self.random.choice(
                    LANE_REDUCTIONS if tensor.dtype == np.int32 else [Reduction.SUM]
                )
                remark = None
                if tensor.dtype == np.int32 and self.random.random() < 0.5:
                    remark = Remark(self.random.choice([0, 7, 255]))
                calls.append(
                    self.worker.submit(
                        tensor, self.now, out=out, reduction=reduction, remark=remark
                    )
                )
                self.remarks.append(remark)
            if not waiting and self.worker.idle:
                break
            self.exchange()
            self.now += self.random.choice([0.0001, 0.001, 0.01])
            count = min(len(self.way), self.random.choice([0, 1, 2, 7, 30, 200]))
            if self.faulty and self.random.random() < 0.1:
                self.random.shuffle(self.way)
            taken, self.way = self.way[:count], self.way[count:]
            self.receive(taken)
            deadline = self.worker.deadline
            if not self.way and deadline is not None:
                self.now = max(self.now, deadline)
            if self.as_flow:
                self.expired += flows.expire(self.worker, self.now)
            self.worker.tick(self.now)
            if not step % 16:
                self.snapshots.append(snapshot(self))
        self.snapshots.append(snapshot(self))
        assert not waiting and self.worker.idle
        for call, remark in zip(calls, self.remarks, strict=True):
            self.worker.result(call)
            assert remark is None or remark.maximum == remark.own
        self.outs = outs

    def receive(self, frames: list[Frames]) -> None:
        """Batches of one length, as ports give them."""
        start = 0
        for end in range(1, len(frames) + 1):
            if end == len(frames) or frames[end].shape != frames[start].shape:
                self.receive_batch(np.concatenate(frames[start:end]))
                start = end

    def receive_batch(self, batch: Frames) -> None:
        if not self.as_flow:
            self.worker.receive(batch, self.now)
            return
        self.by_flow += flows.receive(self.worker, batch, self.now, self.out)


@pytest.mark.slow
@settings(max_examples=examples(40, of=1000))
@given(st.integers(0, 1 << 32))
def test_the_pass_does_what_numpy_does_to_the_last_bit(seed: int) -> None:
    by_pass, as_flow, by_numpy = Run(seed), Run(seed, as_flow=True), Run(seed)
    by_pass.run()
    as_flow.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordinary, "library", lambda: None)
        by_numpy.run()
    for run in (by_pass, as_flow):
        assert run.sent == by_numpy.sent
        for mine, other in zip(run.snapshots, by_numpy.snapshots, strict=True):
            assert mine == other
        for mine, other, tensor in zip(run.outs, by_numpy.outs, run.tensors, strict=True):
            assert mine.tobytes() == other.tobytes()
            if tensor.dtype == np.int32:
                np.testing.assert_array_equal(mine, tensor)


def test_a_result_that_comes_twice_in_a_batch_fills_no_gap() -> None:
    """Of three in flight the first comes twice and the third once: the second is still missing."""
    plan, network = star_plan(1, window=4, results=Results.UNICAST)
    worker, server = Worker(plan, 0, network), Server(plan, 0, network)
    worker.submit(np.arange(3 * LANES, dtype=np.int32), 0.0)
    [batch] = worker.take_output()
    server.receive(at_server(batch), 0.0)
    [results] = map(at_worker, server.take_output())
    worker.receive(results[[0, 0, 2]], 0.0)
    assert worker.statistics.accepted == 2
    assert not worker.idle
    worker.receive(results[[1]], 0.0)
    assert worker.idle


def test_a_result_of_another_reduction_is_not_taken() -> None:
    plan, network = star_plan(1, window=4, results=Results.UNICAST)
    worker, server = Worker(plan, 0, network), Server(plan, 0, network)
    worker.submit(np.arange(LANES, dtype=np.int32), 0.0, reduction=Reduction.MAX)
    [batch] = worker.take_output()
    server.receive(at_server(batch), 0.0)
    [result] = map(at_worker, server.take_output())
    forged = result.copy()
    reductions_of(forged)[...] = reduction_byte(Reduction.XOR)
    worker.receive(forged, 0.0)
    assert worker.statistics.accepted == 0
    worker.receive(result, 0.0)
    assert worker.idle


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1.0, 3e38])
@pytest.mark.parametrize("marked", [False, True])
def test_nearly_all_batches_are_ordinary_where_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, marked: bool, scale: float
) -> None:
    """Fragments of any magnitude: many gradients of a model are often zero."""
    took: list[bool] = []
    sent: list[bool] = []

    def count(kind: Any, name: str, found: list[bool]) -> None:
        method = getattr(kind, name)

        def counted(*batch: Any) -> Any:
            done = method(*batch)
            found.append(done is not None and done is not False)
            return done

        monkeypatch.setattr(kind, name, counted)

    count(FastPath, "take", took)
    count(FastPath, "send", sent)
    for results in Results:
        plan, network = star_plan(1, window=64, results=results)
        worker, server = Worker(plan, 0, network), Server(plan, 0, network)
        stream: Any = worker._all[0]
        if marked:
            stream._flight.congestion.move(StreamPath(0.002, 1.4), 512)
        tensor = np.linspace(-1, 1, 100 * LANES, dtype=np.float32) * np.float32(scale)
        worker.submit(tensor, 0.0)
        while batches := worker.take_output():
            for batch in batches:
                server.receive(at_server(batch), 0.0)
            for batch in map(at_worker, server.take_output()):
                if marked and len(batch) > 1:
                    flags_of(batch)[...] |= np.uint8(Flag.ECN)
                for start in range(0, len(batch), 5):
                    worker.receive(batch[start : start + 5], 0.0)
        assert worker.idle
        assert stream._flight.congestion.limited == marked
    assert all(took) and all(sent)
    assert len(took) > 40
