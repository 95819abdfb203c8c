from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from collectives.algorithms.ring import ring_all_reduce
from collectives.execution import Execution
from host_agent.tcp_collective import PeerLost, TcpCollective

RANKS = 3
ADDRESSES = [f"127.0.0.{10 + rank}" for rank in range(RANKS)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def ring_member(rank: int, port: int, timeout: float = 10) -> TcpCollective:
    return TcpCollective(
        rank,
        ADDRESSES,
        targets=[(rank + 1) % RANKS],
        sources=[(rank - 1) % RANKS],
        port=port,
        timeout=timeout,
    )


def test_rounds_of_a_ring_between_threads_are_exact() -> None:
    port = free_port()
    rounds = [300_001, 0, 1, 5]
    tensors = [[np.full(n, rank + 1, np.int32) for n in rounds] for rank in range(RANKS)]
    errors: list[Exception] = []

    def member(rank: int) -> None:
        try:
            collective = ring_member(rank, port)
            for tensor in tensors[rank]:
                collective.run(Execution(ring_all_reduce(RANKS, len(tensor)), rank, tensor))
            collective.close()
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    for tensor in (t for per_rank in tensors for t in per_rank):
        assert (tensor == 6).all()


def test_a_peer_that_never_comes_is_named() -> None:
    with pytest.raises(PeerLost, match=r"rank 1 at 127\.0\.0\.11:\d+ did not come up"):
        ring_member(0, free_port(), timeout=0.2)
