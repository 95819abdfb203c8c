"""Schedules over TCP as a job's exchange: marks of the job's level, and bytes it is known by."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.schedule import Schedule
from hopsum.host_agent.node.exchange import ScheduleExchange, like
from hopsum.host_agent.node.real import RealEnvironment
from hopsum.network.loaders import load_network
from hopsum.protocol.tos import tos_of_level
from tests.support.machine import on_loopback, until

HOSTS = ("h1", "h2")
ELEMENTS = 1000


class Sockets(list[socket.socket]):
    """The TCP sockets that this process has open."""

    def marks(self) -> set[int]:
        return {
            sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) for sock in self if sock.fileno() >= 0
        }


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Sockets:
    """Those that connect, or are accepted, from here on."""
    found = Sockets()
    connect, accept = socket.create_connection, socket.socket.accept

    def connecting(*arguments: Any, **options: Any) -> socket.socket:
        found.append(connect(*arguments, **options))
        return found[-1]

    def accepting(server: socket.socket) -> tuple[socket.socket, Any]:
        sock, address = accept(server)
        found.append(sock)
        return sock, address

    monkeypatch.setattr(socket, "create_connection", connecting)
    monkeypatch.setattr(socket.socket, "accept", accepting)
    return found


def schedule(elements: int) -> Schedule:
    return replace(ring_all_reduce(len(HOSTS), elements), names=HOSTS)


class Pair:
    """Two hosts' exchanges over the loopback."""

    def __init__(self, tos: int) -> None:
        network = on_loopback(load_network("star:2"))
        self._environments: list[RealEnvironment] = []
        self.exchanges = [
            ScheduleExchange(schedule, network, host, [ELEMENTS], 1, 0, tos) for host in HOSTS
        ]

    def connect(self) -> None:
        """Let the two run against each other."""
        for exchange in self.exchanges:
            environment = RealEnvironment(HOSTS[0], lambda number: None, lambda number: None)
            self._environments.append(environment)
            exchange.connect(environment)

    def wait(self) -> None:
        """Return when nothing is in flight."""
        until(lambda: all(exchange.done() for exchange in self.exchanges), "the exchanges")

    def close(self) -> None:
        for exchange in self.exchanges:
            exchange.close()
        for environment in self._environments:
            environment.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(tos_of_level(0))
    yield made
    made.close()


def test_connections_carry_the_level_of_the_moment(pair: Pair, sockets: Sockets) -> None:
    pair.connect()
    pair.wait()
    assert len(sockets) == 4
    assert sockets.marks() == {tos_of_level(0)}
    for exchange in pair.exchanges:
        exchange.mark(tos_of_level(3))
    assert sockets.marks() == {tos_of_level(3)}


def test_a_level_that_comes_before_the_connections_is_theirs(pair: Pair, sockets: Sockets) -> None:
    for exchange in pair.exchanges:
        exchange.mark(tos_of_level(5))
    pair.connect()
    pair.wait()
    assert sockets.marks() == {tos_of_level(5)}
    pair.close()
    # A finished job may still be sent its level.
    for exchange in pair.exchanges:
        exchange.mark(tos_of_level(6))


def test_bytes_sent_are_those_of_the_schedule(pair: Pair) -> None:
    assert [exchange.sent_bytes for exchange in pair.exchanges] == [0, 0]
    pair.connect()
    pair.wait()
    for rounds in (1, 2):
        tensors = [np.full(ELEMENTS, rank + 1, np.int32) for rank in range(2)]
        sums = [like(tensor) for tensor in tensors]
        for exchange, tensor, out in zip(pair.exchanges, tensors, sums, strict=True):
            exchange.begin(tensor, out, 0.0)
        pair.wait()
        assert all((total == 3).all() for total in sums)
        # In a ring of two each sends all of it once.
        assert [e.sent_bytes for e in pair.exchanges] == [4 * ELEMENTS * rounds] * 2
