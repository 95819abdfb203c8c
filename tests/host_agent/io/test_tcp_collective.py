from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.collectives.algorithms.halving_doubling import halving_doubling_all_reduce
from hopsum.collectives.algorithms.level_wise import level_wise_all_reduce
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.trees import double_tree_all_reduce, server_all_reduce
from hopsum.collectives.choices import Collective
from hopsum.collectives.execution import Channel, Execution, channels
from hopsum.collectives.schedule import Ranges, Schedule, make_step
from hopsum.collectives.tree import Tree
from hopsum.host_agent.io import tcp_collective as module
from hopsum.host_agent.io.tcp_collective import _GREETING, BASE_PORT, PeerLost, TcpCollective
from tests.support.machine import PATIENCE, loopback
from tests.support.schedules import broadcast_from

RANKS = 3


def ring_member(rank: int, addresses: list[str], timeout: float = PATIENCE) -> TcpCollective:
    return TcpCollective(
        rank,
        addresses,
        targets=[Channel((rank + 1) % RANKS, 0)],
        sources=[Channel((rank - 1) % RANKS, 0)],
        timeout=timeout,
    )


FROM_1_TO_0 = broadcast_from(1, ["a", "b"], 1)


def connected(timeout: float) -> tuple[TcpCollective, TcpCollective]:
    """Ranks 0 and 1, of which the second may send to the first."""
    addresses = loopback(2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(
            TcpCollective, 0, addresses, targets=[], sources=[Channel(1, 0)], timeout=timeout
        )
        second = TcpCollective(1, addresses, targets=[Channel(0, 0)], sources=[])
        return first.result(PATIENCE), second


def test_rounds_of_a_ring_between_threads_are_exact() -> None:
    addresses = loopback(RANKS)
    rounds = [300_001, 0, 1, 5]
    tensors = [[np.full(n, rank + 1, np.int32) for n in rounds] for rank in range(RANKS)]
    errors: list[Exception] = []

    def member(rank: int) -> None:
        try:
            collective = ring_member(rank, addresses)
            for tensor in tensors[rank]:
                collective.run(Execution(ring_all_reduce(RANKS, len(tensor)), rank, tensor))
            collective.close()
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    for tensor in (t for per_rank in tensors for t in per_rank):
        assert (tensor == 6).all()


def run_between_threads(
    schedules: list[Schedule], tensors: list[list[NDArray[np.int32]]]
) -> list[Exception]:
    """Every node of the schedules as a thread; `tensors[node][round]` are changed in place."""
    nodes = schedules[0].nodes
    addresses = loopback(nodes)
    errors: list[Exception] = []

    def member(node: int) -> None:
        try:
            targets, sources = channels(schedules[0], node)
            collective = TcpCollective(
                node, addresses, targets=targets, sources=sources, timeout=PATIENCE
            )
            for schedule, tensor in zip(schedules, tensors[node], strict=True):
                collective.run(Execution(schedule, node, tensor))
            collective.close()
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=member, args=(node,)) for node in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return errors


@pytest.mark.parametrize(
    "make",
    [
        lambda elements: halving_doubling_all_reduce(5, elements),
        lambda elements: double_tree_all_reduce(["a", "b", "c", "d", "e"], elements),
        lambda elements: server_all_reduce(["a", "b", "c"], elements, ["x", "y"]),
        lambda elements: level_wise_all_reduce(
            Tree("s", {"p": "s", "a": "p", "b": "p", "q": "s", "c": "q", "d": "q", "e": "q"}),
            ["a", "b", "c", "d", "e"],
            elements,
        ),
    ],
)
def test_schedules_between_threads_are_exact(
    make: Callable[[int], Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So little that bytes have to wait in the kernel.
    monkeypatch.setattr("hopsum.collectives.execution.WAITING_BYTES", 1000)
    schedules = [make(elements) for elements in (200_003, 4, 1000)]
    ranks = schedules[0].ranks
    tensors = [
        [
            np.full(s.elements, node + 1 if node < ranks else 0, np.int32)
            * (1 + np.arange(s.elements, dtype=np.int32))
            for s in schedules
        ]
        for node in range(schedules[0].nodes)
    ]
    assert not run_between_threads(schedules, tensors)
    for number, schedule in enumerate(schedules):
        expected = ranks * (ranks + 1) // 2 * (1 + np.arange(schedule.elements))
        for node in range(ranks):
            np.testing.assert_array_equal(tensors[node][number], expected)


def test_data_unblocked_by_another_channel_is_sent_at_once() -> None:
    """Node 0 may add what 2 sent only after it has sent to 1, and only then has something for 3."""
    steps = (
        make_step([4, 0], [0, 3], [0, 4], [4, 8], combine=True),
        make_step([0, 2], [1, 0], 0, 4, combine=True, after=(0,)),
        make_step(0, 3, 0, 4, combine=True, after=(1,)),
    )
    nothing = Ranges.of([])
    schedule = Schedule("test", Collective.REDUCE, 5, 8, steps, nothing, nothing)
    addresses = loopback(5)
    came = threading.Event()
    tensors = [np.full(8, 10**node, np.int32) for node in range(5)]
    errors: list[Exception] = []

    def member(node: int) -> None:
        try:
            targets, sources = channels(schedule, node)
            collective = TcpCollective(
                node, addresses, targets=targets, sources=sources, timeout=PATIENCE
            )
            execution = Execution(schedule, node, tensors[node])
            if node == 4:
                assert came.wait(PATIENCE)
            waits = node == 0
            collective.run(
                execution,
                lambda: came.set() if waits and not execution.wanted(Channel(2, 0)) else None,
            )
            collective.close()
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=member, args=(node,)) for node in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    assert tensors[1].tolist() == [10011] * 4 + [10] * 4
    assert tensors[3].tolist() == [11101] * 4 + [1001] * 4


def test_a_timeout_begins_anew_while_the_network_is_known_to_be_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collective, silent = connected(timeout=8.0)
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    news = [102.0, 109.0]

    def select(_: object, timeout: float) -> list[object]:
        """No progress; two messages say that none is possible."""
        nonlocal now
        end = now + timeout
        while news and news[0] < end:
            now = news.pop(0)
            collective.postpone()
        now = end
        return []

    monkeypatch.setattr(module.selectors.DefaultSelector, "select", select)
    with pytest.raises(PeerLost, match="rank 0: no progress for 8 s"):
        collective.run(Execution(FROM_1_TO_0, 0, np.zeros(1, np.int32)))
    assert now == 109.0 + 8.0
    for each in (collective, silent):
        each.close()


def test_a_channel_without_a_connection_is_refused() -> None:
    collective = TcpCollective(0, loopback(RANKS), targets=[], sources=[])
    with pytest.raises(ValueError, match=r"rank 0: the schedule uses channels .*no connection"):
        collective.run(Execution(ring_all_reduce(RANKS, 6), 0, np.zeros(6, np.int32)))
    collective.close()


def test_connections_of_another_collective_are_refused() -> None:
    addresses = loopback(2)
    met: dict[int, TcpCollective] = {}

    def receiver() -> None:
        sources = [Channel(1, 0)]
        met[0] = TcpCollective(0, addresses, targets=[], sources=sources, whose=7)

    def sender(whose: int) -> None:
        targets = [Channel(0, 0)]
        met[whose] = TcpCollective(1, addresses, targets=targets, sources=[], whose=whose)

    listening = threading.Thread(target=receiver)
    listening.start()
    # The stranger, as rank 1 too, comes first.
    sender(8)
    sender(7)
    listening.join(PATIENCE)
    step = make_step([1], [0], 0, 100, combine=True)
    one = Ranges.whole([0], 100)
    schedule = Schedule("sum", Collective.REDUCE, 2, 100, (step,), Ranges.whole(range(2), 100), one)
    values = np.ones(100, np.int32)
    met[7].run(Execution(schedule, 1, values))
    total = np.ones(100, np.int32)
    met[0].run(Execution(schedule, 0, total))
    assert (total == 2).all()
    for collective in met.values():
        collective.close()


def test_foreign_connections_neither_take_a_place_nor_delay_others() -> None:
    """A connection from an address that is not the peer's is rejected for any rank that it claims.

    Nor does one hurt that says nothing, half a greeting, or goes at once.
    """
    here, peer, elsewhere = loopback(3)
    addresses = [here, peer]
    met: dict[int, TcpCollective] = {}
    server = socket.create_server((here, BASE_PORT))

    def receiver() -> None:
        met[0] = TcpCollective(
            0, addresses, targets=[], sources=[Channel(1, 0)], server=server, whose=7
        )

    def stranger(source: str) -> socket.socket:
        return socket.create_connection((here, BASE_PORT), PATIENCE, (source, 0))

    listening = threading.Thread(target=receiver)
    with contextlib.ExitStack() as stack:
        forger = stack.enter_context(stranger(elsewhere))
        silent = [stack.enter_context(stranger(source)) for source in (elsewhere, peer)]
        half = stack.enter_context(stranger(peer))
        half.sendall(_GREETING.pack(7, 1, 0)[:5])
        reset = stranger(peer)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        listening.start()
        forger.sendall(_GREETING.pack(7, 1, 0))
        for turned_away in (forger, silent[0]):
            with contextlib.suppress(ConnectionResetError):
                assert turned_away.recv(1) == b""
        met[1] = TcpCollective(1, addresses, targets=[Channel(0, 0)], sources=[], whose=7)
        listening.join(PATIENCE)
    received = np.zeros(1, np.int32)
    met[1].run(Execution(FROM_1_TO_0, 1, np.full(1, 5, np.int32)))
    met[0].run(Execution(FROM_1_TO_0, 0, received))
    assert received == [5]
    for collective in met.values():
        collective.close()


def test_connections_that_have_not_said_whose_they_are_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More are turned away, until some of them have gone; none of them is read."""
    monkeypatch.setattr(module, "MOST_GREETING", 4)
    here, peer = loopback(2)
    met: dict[int, TcpCollective] = {}
    server = socket.create_server((here, BASE_PORT))

    def receiver() -> None:
        met[0] = TcpCollective(
            0, [here, peer], targets=[], sources=[Channel(1, 0)], server=server, whose=7
        )

    listening = threading.Thread(target=receiver)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((here, BASE_PORT), PATIENCE, (peer, 0)))
            for _ in range(6)
        ]
        listening.start()
        for turned_away in silent[4:]:
            with contextlib.suppress(ConnectionResetError):
                assert turned_away.recv(1) == b""
        silent[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[0].recv(1)
        silent[0].close()
        met[1] = TcpCollective(1, [here, peer], targets=[Channel(0, 0)], sources=[], whose=7)
        listening.join(PATIENCE)
    received = np.zeros(1, np.int32)
    met[1].run(Execution(FROM_1_TO_0, 1, np.full(1, 5, np.int32)))
    met[0].run(Execution(FROM_1_TO_0, 0, received))
    assert received == [5]
    for collective in met.values():
        collective.close()


def test_a_missing_peer_is_named() -> None:
    addresses = loopback(RANKS)
    with pytest.raises(
        PeerLost, match=rf"rank 1 at {re.escape(addresses[1])}:\d+ accepted no connection"
    ):
        ring_member(0, addresses, timeout=0.2)
