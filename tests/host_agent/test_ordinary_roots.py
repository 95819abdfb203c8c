"""Flows of trees rooted at workers: the same as without them, and taken where nothing is lost."""

from __future__ import annotations

from itertools import groupby
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.collectives.operation import Ranges
from hopsum.collectives.plan import JobPlan
from hopsum.host_agent import ordinary
from hopsum.host_agent.codec import REDUCTION_AT, TREE_AT, Frames, flags_of, tos_of
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.root_worker import RootWorker
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import LANE_REDUCTIONS, Flag, Reduction
from tests.support import flows
from tests.support.agent_snapshots import Snapshot, snapshot_of_server, snapshot_of_stream
from tests.support.protocol_world import LANES, at_server, at_worker, make_network, make_tree
from tests.support.search import examples

pytestmark = pytest.mark.skipif(ordinary.library() is None, reason="no C compiler")

_DESTINATION = slice(0, 6)
"""MAC address of a frame."""


def rooted_plan(workers: int, window: int) -> tuple[JobPlan, Network]:
    """Two trees rooted at each worker, at a switch that sums nothing."""
    names = [f"w{i}" for i in range(workers)]
    network = make_network(dict.fromkeys(names, "s0"), ["s0"])
    trees = tuple(
        make_tree(network, names, {}, (), tree=tree, server=name, window=2 * window)
        for tree, name in enumerate([*names, *names])
    )
    return JobPlan(1, 1, tuple(names), trees, LANES, 2 * window), network


class Hosts:
    """The workers of a job, frames between them, and the calls that all make in the same order."""

    def __init__(
        self, seed: int, *, as_flow: bool, faulty: bool | None = None, room: int = 512
    ) -> None:
        """`room`: for the frames that a flow sends at once."""
        self.as_flow = as_flow
        self.room = room
        self.by_flow = self.received = 0
        """Frames that flows have taken, of those received."""
        self.random = random = Random(seed)
        self.generator = np.random.default_rng(seed)
        count = random.choice([2, 3])
        self.plan, network = rooted_plan(count, random.choice([4, 16, 64]))
        self.faulty = random.random() < 0.5 if faulty is None else faulty
        options = WorkerOptions(deadline=1e3)
        self.workers = [RootWorker(self.plan, i, network, options) for i in range(count)]
        self.place = {
            network.hosts[name].mac_bytes: place for place, name in enumerate(self.plan.workers)
        }
        trees = range(len(self.plan.trees))
        self.way: dict[tuple[int, int, int], list[Frames]] = {
            (place, tree, source): []
            for place in range(count)
            for tree in trees
            for source in range(count)
        }
        """Frames on their way to a host, by tree and source: batches are of one source."""
        self.fates = {key: Random(f"{seed} {key}") for key in self.way}
        self.sent: dict[tuple[int, int], list[bytes]] = {
            (place, tree): [] for place in range(count) for tree in trees
        }
        self.out: list[list[Frames]] = [[] for _ in self.workers]
        """Frames that answer those received."""
        self.snapshots: list[Snapshot] = []
        self.now = 0.0
        self.calls: list[list[tuple[int, NDArray[Any], NDArray[Any]]]] = [[] for _ in self.workers]
        """Of each worker: number, result, and what it should be."""

    def ranges(self, elements: int) -> Ranges:
        """A part of a tensor for each tree of one set, and none for the other."""
        count = len(self.workers)
        cuts = sorted(self.random.choices(range(elements + 1), k=count - 1))
        parts = [*zip([0, *cuts], [*cuts, elements], strict=True)]
        none = [(0, 0)] * count
        return parts + none if self.random.random() < 0.5 else none + parts

    def call(self) -> None:
        """Every worker makes the next call."""
        random, count = self.random, len(self.workers)
        elements = random.choice([1, 40, LANES * 20, LANES * 90])
        kind = random.choice(["all", "copy", "to root", "floats", "floats to root"])
        dtype = np.float32 if "floats" in kind else np.int32
        values: list[NDArray[Any]] = [
            self.generator.integers(-1000, 1000, elements).astype(dtype) for _ in self.workers
        ]
        ranges = None if kind == "all" and random.random() < 0.5 else self.ranges(elements)
        reduction = Reduction.SUM
        if dtype == np.int32:
            reduction = random.choice(LANE_REDUCTIONS)
        combined = {
            Reduction.SUM: np.add,
            Reduction.AND: np.bitwise_and,
            Reduction.MAX: np.maximum,
            Reduction.XOR: np.bitwise_xor,
        }[reduction].reduce(values)
        for place, worker in enumerate(self.workers):
            result = np.array(values[place])
            expected = combined
            if kind == "copy":
                assert ranges is not None
                parts = (
                    ranges[:count] if any(stop for _, stop in ranges[:count]) else ranges[count:]
                )
                expected = np.concatenate(
                    [values[root][start:stop] for root, (start, stop) in enumerate(parts)]
                )
            elif kind.endswith("to root"):
                assert ranges is not None
                start, stop = max(ranges[place], ranges[place + count])
                expected = np.array(values[place])
                expected[start:stop] = combined[start:stop]
            wanted = reduction
            if kind == "copy":
                wanted = Reduction.BROADCAST
            elif kind.endswith("to root"):
                wanted = reduction.to_root
            number = worker.submit(
                values[place], self.now, out=result, reduction=wanted, ranges=ranges
            )
            self.calls[place].append((number, result, expected))

    def run(self) -> None:
        waiting = self.random.choice([1, 3, 6])
        for step in range(4000):
            if waiting and self.random.random() < 0.2:
                self.call()
                waiting -= 1
            if not waiting and all(worker.idle for worker in self.workers):
                break
            self.now += self.random.choice([0.0001, 0.001])
            for place, worker in enumerate(self.workers):
                self.send(place, self.out[place] + worker.take_output())
                self.out[place] = []
                for key in [key for key in self.way if key[0] == place]:
                    self.deliver(*key)
                if self.as_flow:
                    flows.expire(worker, self.now)
                worker.tick(self.now)
            if not any(self.way.values()):
                due = [each for worker in self.workers if (each := worker.deadline) is not None]
                self.now = max(self.now, min(due, default=0.0))
            if not step % 16:
                self.snapshots += map(self.snapshot, self.workers)
        assert not waiting and all(worker.idle for worker in self.workers)
        self.snapshots += map(self.snapshot, self.workers)
        for place, calls in enumerate(self.calls):
            for number, result, expected in calls:
                self.workers[place].result(number)
                np.testing.assert_allclose(result, expected, atol=0.01)
                if result.dtype == np.int32:
                    np.testing.assert_array_equal(result, expected)

    def send(self, source: int, batches: list[Frames]) -> None:
        """Put frames on their way, where some are lost, come twice, or are marked.

        Urgent ones overtake others, as in a port's queue.
        """
        for batch in sorted(batches, key=lambda batch: not tos_of(batch)[0] & URGENT):
            for row in batch:
                tree = int(row[TREE_AT])
                self.sent[source, tree].append(row.tobytes())
                to = row[_DESTINATION].tobytes()
                others = [place for place in range(len(self.workers)) if place != source]
                for place in others if to[0] & 1 else [self.place[to]]:
                    fate = self.fates[place, tree, source]
                    if self.faulty and fate.random() < 0.02:
                        continue
                    frame = row[None].copy()
                    if fate.random() < 0.03:
                        flags_of(frame)[...] |= np.uint8(Flag.ECN)
                    root = self.plan.trees[tree].server == self.plan.workers[place]
                    passed = at_server(frame) if root else at_worker(frame)
                    self.way[place, tree, source] += [passed] * (
                        2 if self.faulty and fate.random() < 0.02 else 1
                    )

    def deliver(self, *key: int) -> None:
        """A host receives some frames of a tree from another, in batches of one kind."""
        fate, way = self.fates[key], self.way[key]
        count = min(len(way), fate.choice([0, 1, 2, 7, 200]))
        if self.faulty and fate.random() < 0.05:
            fate.shuffle(way)
        taken, self.way[key] = way[:count], way[count:]
        for _, batch in groupby(taken, lambda each: (each.shape, int(each[0, REDUCTION_AT]))):
            self.receive(key[0], np.concatenate([*batch]))

    def receive(self, place: int, batch: Frames) -> None:
        worker = self.workers[place]
        self.received += len(batch)
        output: list[Frames] = []
        if self.as_flow:
            self.by_flow += flows.receive(worker, batch, self.now, output, self.room)
        else:
            worker.receive(batch, self.now)
            output = worker.take_output()
        self.out[place] += output

    def snapshot(self, worker: Any) -> Snapshot:
        """What a worker's streams and servers keep."""
        found: Snapshot = {}
        parts = [(f"stream {tree} ", snapshot_of_stream(s)) for tree, s in worker._streams.items()]
        parts += [(f"server {s.tree.tree} ", snapshot_of_server(s)) for s in worker.servers]
        for prefix, part in parts:
            found |= {prefix + name: value for name, value in part.items()}
        return found


@pytest.mark.slow
@settings(max_examples=examples(25, of=600))
@given(st.integers(0, 1 << 32))
def test_flows_do_what_worker_and_servers_do_to_the_last_bit(seed: int) -> None:
    by_flow, without = Hosts(seed, as_flow=True), Hosts(seed, as_flow=False)
    by_flow.run()
    without.run()
    assert by_flow.sent == without.sent
    for mine, other in zip(by_flow.snapshots, without.snapshots, strict=True):
        assert mine == other
    for mine, other in zip(by_flow.calls, without.calls, strict=True):
        for (_, result, _), (_, same, _) in zip(mine, other, strict=True):
            assert result.tobytes() == same.tobytes()


@pytest.mark.slow
def test_nearly_all_frames_are_taken_by_flows_where_nothing_is_lost() -> None:
    taken = received = 0
    for seed in range(12):
        hosts = Hosts(seed, as_flow=True, faulty=False)
        hosts.run()
        taken += hosts.by_flow
        received += hosts.received
    assert received > 1000
    assert taken > 0.8 * received


@pytest.mark.slow
def test_what_finds_no_room_is_left_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    leave = ordinary.OrdinaryRoot.leave

    def noted(root: ordinary.OrdinaryRoot) -> ordinary.RootHandover:
        found = leave(root)
        left.append(len(found.contributions))
        return found

    monkeypatch.setattr(ordinary.OrdinaryRoot, "leave", noted)
    for seed in range(8):
        for room in (3, 20):
            hosts = Hosts(seed, as_flow=True, faulty=False, room=room)
            hosts.run()
            # Neither stream nor server has seen a gap.
            servers = [server for worker in hosts.workers for server in worker.servers]
            assert not any(each.statistics.requests for each in (*hosts.workers, *servers))
    assert any(left)
