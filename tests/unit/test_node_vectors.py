"""Bit vectors on their way between two jobs of one host."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from coordination.failure import CoordinationError
from coordination.operators import Operator
from coordination.tree import balanced_tree
from host_agent.io.coordination import Coordinator
from host_agent.node.vectors import SwitchedVectors, VectorQueue, VectorQueues
from host_agent.segment import Tensor
from tests.machine import PATIENCE, loopback

OPERATORS = [Operator(f"g{number}", (4,), "float32") for number in range(40)]


def group(queues: list[VectorQueue]) -> list[Coordinator]:
    """A coordinator for each queue, started."""
    tree = balanced_tree([f"p{rank}" for rank in range(len(queues))])
    addresses = [(address, 9800) for address in loopback(len(queues))]
    coordinators = [
        Coordinator(replace(tree, ring=()), rank, addresses, reduction=queue.reduction)
        for rank, queue in enumerate(queues)
    ]
    for coordinator, queue in zip(coordinators, queues, strict=True):
        queue.combined = coordinator.combined
        coordinator.start()
    return coordinators


class Switches:
    """Play the switches: the bitwise and of all vectors, as long as there are any."""

    def __init__(self, sources: list[SwitchedVectors]) -> None:
        self.words: list[int] = []
        self._vectors: list[Tensor] = [np.zeros(0)] * len(sources)
        self._barrier = threading.Barrier(len(sources), timeout=PATIENCE)
        self.threads = [
            threading.Thread(target=self._serve, args=(rank, source), daemon=True)
            for rank, source in enumerate(sources)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, rank: int, source: SwitchedVectors) -> None:
        following = source.first()
        while following is not None:
            name, self._vectors[rank] = following
            self._barrier.wait()
            combined = np.bitwise_and.reduce(self._vectors)
            if rank == 0:
                self.words.append(len(combined))
            self._barrier.wait()
            following = source.after(name, combined)


def test_vectors_go_to_the_other_job_and_come_back_combined() -> None:
    queues = [VectorQueue() for _ in range(3)]
    coordinators = group(queues)
    sources = [SwitchedVectors(queue) for queue in queues]
    switches = Switches(sources)
    orders: list[list[str]] = [[], [], []]

    def train(rank: int) -> None:
        random = np.random.default_rng(rank)
        for iteration in (1, 2, 3):
            coordinators[rank].begin_iteration(iteration)
            for place in random.permutation(len(OPERATORS)):
                coordinators[rank].ready(OPERATORS[place])
            for _ in OPERATORS:
                orders[rank].append(coordinators[rank].next_start(PATIENCE).name)
        coordinators[rank].leave()
        coordinators[rank].wait_done()
        queues[rank].end()

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in (*threads, *switches.threads):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == sorted(operator.name for operator in OPERATORS * 3)
    # 40 operators are two words, and the iteration two more; two iterations go by vectors.
    assert set(switches.words) == {4}
    assert len(switches.words) >= 2
    assert [source.workload.outcome() for source in sources] == [
        {"cycles": len(switches.words)}
    ] * 3
    for coordinator, source in zip(coordinators, sources, strict=True):
        source.close()
        coordinator.close()


def test_without_the_other_job_the_coordination_ends() -> None:
    queues = VectorQueues()
    queue = queues.of(9)
    assert queues.of(9) is queue
    (coordinator,) = group([queue])
    queue.broken = coordinator.close
    coordinator.begin_iteration(1)
    coordinator.ready(OPERATORS[0])
    assert coordinator.next_start(PATIENCE) == OPERATORS[0]
    coordinator.begin_iteration(2)
    coordinator.ready(OPERATORS[0])
    source = SwitchedVectors(queue)
    assert source.first() is not None
    source.close()
    assert source.first() is None
    with pytest.raises(CoordinationError, match="has been closed"):
        coordinator.next_start(PATIENCE)
    queues.drop(9)
    assert queues.of(9) is not queue


def test_the_end_is_not_a_break() -> None:
    queue = VectorQueue()
    breaks: list[str] = []
    queue.broken = lambda: breaks.append("broken")
    queue.end()
    SwitchedVectors(queue).close()
    assert breaks == []
