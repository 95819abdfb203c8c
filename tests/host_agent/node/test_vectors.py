"""Bit vectors on their way between two jobs of one host."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hopsum.coordination.failure import CoordinationError
from hopsum.coordination.operators import Operator
from hopsum.coordination.tree import balanced_tree
from hopsum.host_agent.node.vectors import SwitchedVectors, VectorQueue, VectorQueues
from hopsum.host_agent.segment import Tensor
from tests.support.machine import loopback, until
from tests.support.waiting_coordinator import WaitingCoordinator

OPERATORS = [Operator(f"g{number}", (4,), "float32") for number in range(40)]


def ignore() -> None:
    """No thread waits."""


def group(queues: list[VectorQueue]) -> list[WaitingCoordinator]:
    """A coordinator for each queue, started."""
    tree = balanced_tree([f"p{rank}" for rank in range(len(queues))])
    addresses = [(address, 9800) for address in loopback(len(queues))]
    coordinators = [
        WaitingCoordinator(replace(tree, ring=()), rank, addresses, reduction=queue.reduction)
        for rank, queue in enumerate(queues)
    ]
    for coordinator, queue in zip(coordinators, queues, strict=True):
        queue.combined = coordinator.combined
        coordinator.start()
    return coordinators


def combine(sources: list[SwitchedVectors], words: list[int]) -> None:
    """Play the switches: the bitwise and of all vectors, once there is one of each."""
    vectors: list[Tensor] = []
    for source in sources:
        following = source.next(0.0)
        assert following is not None
        vectors.append(following[1])
    combined = np.bitwise_and.reduce(vectors)
    words.append(len(combined))
    for source in sources:
        source.finish("", combined, 0.0)


def test_vectors_go_to_the_other_job_and_come_back_combined() -> None:
    waiting = [0] * 3
    """Vectors of each rank that have not been combined."""

    def count(rank: int) -> None:
        waiting[rank] += 1

    queues = [VectorQueue(partial(count, rank)) for rank in range(3)]
    coordinators = group(queues)
    sources = [SwitchedVectors(queue) for queue in queues]
    words: list[int] = []
    orders: list[list[str]] = [[], [], []]

    def train(rank: int) -> None:
        random = np.random.default_rng(rank)
        for iteration in (1, 2, 3):
            coordinators[rank].begin_iteration(iteration)
            for place in random.permutation(len(OPERATORS)):
                coordinators[rank].ready(OPERATORS[place])
            for _ in OPERATORS:
                orders[rank].append(coordinators[rank].next_start().name)
        coordinators[rank].leave()
        until(lambda: coordinators[rank].done, "the others' leaves")
        queues[rank].end()

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if all(waiting) and not any(queue.ended for queue in queues):
            for rank in range(3):
                waiting[rank] -= 1
            combine(sources, words)
        threads[0].join(0.001)
    assert all(source.over for source in sources)
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == sorted(operator.name for operator in OPERATORS * 3)
    # 40 operators are two words, and the iteration two more; two iterations go by vectors.
    assert set(words) == {4}
    assert len(words) >= 2
    assert [source.workload.outcome().cycles for source in sources] == [len(words)] * 3
    for coordinator, source in zip(coordinators, sources, strict=True):
        source.close("the job is over")
        coordinator.close()


def test_without_the_other_job_the_coordination_ends() -> None:
    woken: list[str] = []
    queues = VectorQueues(lambda: woken.append("vectors"))
    queue = queues.of(9)
    assert queues.of(9) is queue
    (coordinator,) = group([queue])
    queue.broken = coordinator.close
    coordinator.begin_iteration(1)
    coordinator.ready(OPERATORS[0])
    assert coordinator.next_start() == OPERATORS[0]
    coordinator.begin_iteration(2)
    coordinator.ready(OPERATORS[0])
    source = SwitchedVectors(queue)
    until(lambda: bool(woken), "the vector's wake-up")
    assert source.next(0.0) is not None
    assert source.next(0.0) is None and not source.over
    source.close("the job is over")
    assert source.next(0.0) is None and source.over
    with pytest.raises(CoordinationError, match="has been closed"):
        coordinator.next_start()
    queues.drop(9)
    assert queues.of(9) is not queue


def test_the_end_is_not_a_break() -> None:
    queue = VectorQueue(ignore)
    breaks: list[str] = []
    queue.broken = lambda: breaks.append("broken")
    queue.end()
    SwitchedVectors(queue).close("the job is over")
    assert breaks == []
