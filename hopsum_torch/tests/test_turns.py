"""Threads that take turns at reading what comes for any of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from hopsum_torch import turns
from hopsum_torch.turns import Turns

SECONDS = 30.0


class Source:
    """Messages, which are numbers, and who has read each; None: no more will come."""

    def __init__(self) -> None:
        self.messages: queue.Queue[int | None] = queue.Queue()
        self.read_by: dict[int, str] = {}
        self._reading = threading.Lock()
        self.begun = threading.Event()
        """Set when a thread has begun to read."""
        self.turns = Turns(self.read, "background")

    def read(self, seconds: float) -> bool:
        assert self._reading.acquire(blocking=False), "one thread at a time"
        self.begun.set()
        try:
            message = self.messages.get(seconds > 0, min(seconds, SECONDS))
        except queue.Empty:
            return False
        finally:
            self._reading.release()
        if message is None:
            raise EOFError
        self.read_by[message] = threading.current_thread().name
        return True

    def wait(self, number: int, seconds: float = SECONDS) -> bool:
        return self.turns.until(lambda: number in self.read_by, seconds)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setattr(turns, "SWEEP_SECONDS", SECONDS)
    made = Source()
    yield made
    made.messages.put(None)
    made.turns.until(lambda: False)
    made.turns.read_for(lambda: True)
    made.turns.thread.join(SECONDS)
    assert not made.turns.thread.is_alive()


def test_a_thread_that_waits_reads_by_itself(source: Source) -> None:
    for number in range(50):
        source.messages.put(number)
        assert source.wait(number)
    assert set(source.read_by.values()) == {threading.current_thread().name}


def test_all_that_wait_get_what_is_theirs(source: Source) -> None:
    """Whoever reads it, and though the first that comes is the last one's."""
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(source.wait, number) for number in range(8)]
        for number in reversed(range(8)):
            source.messages.put(number)
            assert waiting[number].result(SECONDS)


def test_a_wait_ends_in_time(source: Source) -> None:
    assert not source.wait(1, 0.02)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(source.wait, 1)
        assert source.begun.wait(SECONDS)
        assert not source.wait(2, 0.02)
        source.messages.put(1)
        assert other.result(SECONDS)


def test_without_time_what_has_come_is_read(source: Source) -> None:
    for number in range(3):
        source.messages.put(number)
    assert source.wait(2, 0.0)
    assert not source.wait(3, 0.0)


def test_the_background_reads_for_those_that_are_to_be_called(source: Source) -> None:
    done = threading.Event()
    source.turns.read_for(lambda: 2 in source.read_by and (done.set() or True))
    for number in range(3):
        source.messages.put(number)
    assert done.wait(SECONDS)
    assert source.read_by[2] == "background"


def test_what_nobody_waits_for_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SWEEP_SECONDS", 0.01)
    source = Source()
    source.messages.put(1)
    source.messages.put(None)
    source.turns.thread.join(SECONDS)
    assert source.read_by == {1: "background"}


def test_the_end_ends_all_waits(source: Source) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(source.wait, number) for number in range(3)]
        source.messages.put(None)
        assert not any(each.result(SECONDS) for each in waiting)
    assert not source.wait(5)


def test_what_the_background_reads_for_expires(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it already reads for another that has no deadline."""
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.01)
    source.turns.read_for(lambda: 2 in source.read_by)
    assert source.begun.wait(SECONDS)
    expired = threading.Event()
    source.turns.read_for(lambda: 1 in source.read_by, time.monotonic() + 0.02, expired.set)
    assert expired.wait(SECONDS)
    expired.clear()
    # Once, and not what has come.
    source.turns.read_for(lambda: 3 in source.read_by, time.monotonic(), lambda: None)
    source.messages.put(4)
    assert source.wait(4)
    source.turns.read_for(lambda: 4 in source.read_by, time.monotonic() + 0.02, expired.set)
    assert not expired.wait(0.1)
