"""Limits of reads, and of clients that take nothing of an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc

from p4switch.p4runtime import server as server_module
from p4switch.p4runtime.reads import ReadLimits
from tests.support.machine import PATIENCE, until
from tests.support.p4runtime_world import Client, running

METADATA_BYTES = 1 << 15
"""Of an entry: a message of them is more than gRPC sends to a client that takes nothing."""
MESSAGES, ENTITIES = 3, 16
"""Of an answer, and of each of these messages: gRPC's client takes one by itself, and has room for
a part of another."""


@pytest.fixture(autouse=True)
def _small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4switch.p4runtime.service.ENTITIES_A_MESSAGE", ENTITIES)


class Context:
    """The server's side of a call."""

    def __init__(self) -> None:
        self.cancelled = False
        self.refused: tuple[grpc.StatusCode, str] | None = None

    def cancel(self) -> None:
        self.cancelled = True

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.refused = code, details
        raise RuntimeError(details)


class Reads:
    """Reads within limits, by a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limits = ReadLimits(most=2, patience=10.0, clock=lambda: self.now)

    def begin(self, context: Context) -> Iterator[int]:
        def answer(request: Any, context: Any) -> Iterator[int]:
            yield from range(3)

        return self.limits.limited(answer)(None, context)  # type: ignore[arg-type]

    def stalled(self, now: float, context: Context) -> bool:
        self.now = now
        self.limits.cancel_stalled()
        return context.cancelled


def test_so_many_reads_and_no_more() -> None:
    reads = Reads()
    contexts = [Context() for _ in range(4)]
    first, second, third, fourth = map(reads.begin, contexts)
    assert [next(first), next(second)] == [0, 0]
    with pytest.raises(RuntimeError, match="2 reads are in progress already"):
        next(third)
    assert contexts[2].refused is not None
    assert contexts[2].refused[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert list(first) == [1, 2]
    assert list(fourth) == [0, 1, 2]


def test_a_read_that_its_client_leaves_makes_room() -> None:
    reads = Reads()
    for _ in range(5):
        read = reads.begin(Context())
        next(read)
        del read


def test_a_client_that_takes_nothing_is_cancelled_and_a_slow_one_is_not() -> None:
    reads = Reads()
    stalled, slow = Context(), Context()
    answers = [reads.begin(stalled), reads.begin(slow)]
    for answer in answers:
        next(answer)
    assert not reads.stalled(9.0, stalled)
    next(answers[1])
    assert reads.stalled(11.0, stalled)
    assert not slow.cancelled
    assert reads.stalled(20.0, slow)


def test_a_read_is_not_cancelled_while_its_answer_is_computed() -> None:
    reads = Reads()
    context = Context()

    def answer(request: Any, context_: Any) -> Iterator[int]:
        for _ in range(2):
            assert not reads.stalled(reads.now + 100.0, context)
            yield 0

    assert list(reads.limits.limited(answer)(None, context)) == [0, 0]  # type: ignore[arg-type]


@contextlib.contextmanager
def unread(client: Client, count: int) -> Iterator[list[Any]]:
    """Begin reads of large answers, each by a client of its own that takes nothing."""
    entry = client.entry("exact_table", client.action("drop"), exact={"destination": 1})
    entry.table_entry.metadata = bytes(METADATA_BYTES)
    client.insert(entry)
    table = p4r.Entity(table_entry=p4r.TableEntry(table_id=entry.table_entry.table_id))
    entities = [table] * (MESSAGES * ENTITIES)
    request = p4r.ReadRequest(device_id=client.device_id, entities=entities)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(count):
            channel = stack.enter_context(grpc.insecure_channel(client.address, options))
            calls.append(p4r_grpc.P4RuntimeStub(channel).Read(request, timeout=PATIENCE))
        for call in calls:
            call.initial_metadata()  # It is being served.
        yield calls


@pytest.mark.slow
def test_unread_reads_leave_room_for_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ReadLimits", lambda: ReadLimits(patience=2 * PATIENCE))
    for world, client in running():
        with unread(client, 50) as calls:
            assert client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=PATIENCE)
            other = client.entry("exact_table", client.action("drop"), exact={"destination": 2})
            client.insert(other)
            world.server.close()
            for call in calls:
                with pytest.raises(grpc.RpcError):
                    list(call)


def test_a_read_whose_client_takes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ReadLimits(patience=0.1)
    monkeypatch.setattr(server_module, "ReadLimits", lambda: limits)
    for _, client in running():
        with unread(client, 1) as (call,):
            until(lambda: not limits.in_progress, "the end of the read")
            with pytest.raises(grpc.RpcError) as ended:
                list(call)
            assert ended.value.code() is grpc.StatusCode.CANCELLED
