from __future__ import annotations

import os
import select

import pytest

from hopsum.host_agent.io.wakeup import Wakeup


def readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def test_a_wakeup_is_readable_from_set_to_clear() -> None:
    wakeup = Wakeup()
    assert not readable(wakeup.fileno())
    wakeup.set()
    wakeup.set()
    assert readable(wakeup.fileno())
    wakeup.clear()
    assert not readable(wakeup.fileno())
    wakeup.clear()
    wakeup.close()


def test_a_file_that_gets_the_number_next_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup = Wakeup()
    touched: list[int] = []
    number = wakeup.fileno()
    wakeup.close()
    monkeypatch.setattr(os, "eventfd_write", lambda descriptor, value: touched.append(descriptor))
    monkeypatch.setattr(os, "eventfd_read", touched.append)
    monkeypatch.setattr(os, "close", touched.append)
    wakeup.set()
    wakeup.clear()
    wakeup.close()
    assert number not in touched


def test_only_changes_reach_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent clears its wakeups at every turn, and hardly ever has one been set."""
    wakeup = Wakeup()
    calls: list[str] = []
    read, write = os.eventfd_read, os.eventfd_write

    def counted_read(descriptor: int) -> int:
        calls.append("read")
        return read(descriptor)

    def counted_write(descriptor: int, value: int) -> None:
        calls.append("write")
        write(descriptor, value)

    monkeypatch.setattr(os, "eventfd_read", counted_read)
    monkeypatch.setattr(os, "eventfd_write", counted_write)
    wakeup.clear()
    wakeup.set()
    wakeup.set()
    wakeup.clear()
    wakeup.clear()
    wakeup.set()
    assert calls == ["write", "read", "write"]
    wakeup.close()
