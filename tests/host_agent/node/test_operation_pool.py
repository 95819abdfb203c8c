from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hopsum.host_agent.node.operation_pool import NICENESS, OperationPool, TaskResult
from tests.support.machine import PATIENCE as WAIT


@pytest.fixture
def pool() -> Iterator[OperationPool]:
    made = OperationPool()
    yield made
    made.close()


def collect(pool: OperationPool, count: int) -> list[TaskResult]:
    done: list[TaskResult] = []
    poll = select.poll()
    poll.register(pool.fileno(), select.POLLIN)
    while len(done) < count:
        assert poll.poll(1000 * WAIT), f"only {len(done)} of {count} completed"
        done += pool.completed()
    return done


def blocked(pool: OperationPool, job: int = 9) -> tuple[threading.Event, threading.Event]:
    """Keep the only thread of the pool busy: (it has begun, let it end)."""
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait(WAIT)

    pool.put(job, work)
    assert begun.wait(WAIT)
    return begun, end


def test_values_and_errors_come_back_under_their_numbers(pool: OperationPool) -> None:
    def fails() -> None:
        raise ValueError("no")

    numbers = [pool.put(1, lambda: 42), pool.put(2, fails)]
    good, bad = collect(pool, 2)
    assert (good.number, good.job, good.value, good.error) == (numbers[0], 1, 42, None)
    assert (bad.number, bad.job) == (numbers[1], 2)
    assert str(bad.error) == "no"


def test_a_pool_whose_completions_are_dropped_is_not_readable(pool: OperationPool) -> None:
    """Else its loop would wake at once, again and again, until another task completes."""
    poll = select.poll()
    poll.register(pool.fileno(), select.POLLIN)
    pool.put(1, lambda: None)
    pool.put(2, lambda: None)
    _, end = blocked(pool)
    assert poll.poll(0)
    pool.drop(1)
    assert poll.poll(0)
    pool.drop(2)
    assert not poll.poll(0)
    assert pool.completed() == []
    end.set()


def test_urgent_tasks_go_first_and_equal_ones_in_order(pool: OperationPool) -> None:
    _, end = blocked(pool)
    order: list[str] = []

    def note(name: str) -> Callable[[], Any]:
        return lambda: order.append(name)

    pool.set_level(3, 2)
    pool.set_level(2, 1)
    for name, job in (("late", 3), ("first", 1), ("later", 3), ("second", 2), ("last", 4)):
        pool.put(job, note(name))
    # Those that wait already follow their job's level.
    pool.set_level(4, 5)
    end.set()
    collect(pool, 6)
    assert order == ["first", "second", "late", "later", "last"]


def test_nothing_is_heard_of_a_job_that_was_dropped(pool: OperationPool) -> None:
    _, end = blocked(pool, job=1)
    ran: list[int] = []
    pool.put(1, lambda: ran.append(1))
    kept = pool.put(2, lambda: ran.append(2))
    pool.drop(1)
    end.set()
    assert [done.number for done in collect(pool, 1)] == [kept]
    assert ran == [2]
    assert pool.completed() == []


def test_the_descriptor_is_quiet_when_all_is_taken(pool: OperationPool) -> None:
    pool.put(1, lambda: None)
    collect(pool, 1)
    poll = select.poll()
    poll.register(pool.fileno(), select.POLLIN)
    assert poll.poll(0) == []


def test_operations_run_behind_the_loop_that_moves_packets(pool: OperationPool) -> None:
    """What one host computes must not delay packets of other hosts on the same machine."""

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    pool.put(1, niceness)
    [done] = collect(pool, 1)
    assert NICENESS > 0 and done.value == min(19, niceness() + NICENESS)
