from __future__ import annotations

import os
import select

import pytest

from host_agent.io.wakeup import Wakeup


def readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def test_it_is_readable_from_set_to_clear() -> None:
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
