"""Packets in and out, digests and idle-timeout notices."""

from __future__ import annotations

from typing import Any

import pytest
from finsy.proto import p4d, p4r
from hypothesis import given
from hypothesis import strategies as st

from p4switch.ir import Annotation, Bits, FieldType, Header, Struct
from p4switch.p4runtime.digests import Digests
from p4switch.p4runtime.idle import IdleEntries
from p4switch.p4runtime.names import DigestType
from p4switch.p4runtime.packets import ControllerHeader
from p4switch.p4runtime.stream import LARGEST_BACKLOG, LARGEST_QUEUE, Outbox
from p4switch.p4runtime.string_types import StringTypes
from tests.support.p4runtime_world import (
    CallError,
    Client,
    World,
    encoded,
    frame,
    running,
    served,
)

started = pytest.fixture(running)
world = pytest.fixture(served)
Started = tuple[World, Client]

INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED = 3, 7, 9, 12
SECOND_NS = 1_000_000_000
SECOND_US = 1_000_000


def packet_out(port: int, payload: bytes, pad: int = 0) -> p4r.PacketOut:
    message = p4r.PacketOut(payload=payload)
    message.metadata.add(metadata_id=1, value=port.to_bytes(2, "big"))
    message.metadata.add(metadata_id=2, value=bytes([pad]))
    return message


def wait_for_sent(client: Client, world: World) -> None:
    """Return when all stream messages sent before have been handled."""
    client.arbitrate()


# --- packets -----------------------------------------------------------------------------------


def test_a_packet_out_leaves_where_its_metadata_say(started: Started) -> None:
    world, client = started
    client.send(packet=packet_out(0x1A5, b"hello"))
    wait_for_sent(client, world)
    assert world.plane.sent == [(0x1A5, b"hello")]


def test_metadata_may_come_in_any_order(started: Started) -> None:
    world, client = started
    message = packet_out(3, b"hello")
    message.metadata.reverse()
    client.send(packet=message)
    wait_for_sent(client, world)
    assert world.plane.sent == [(3, b"hello")]


def test_a_packet_for_the_controller_arrives_with_its_metadata(started: Started) -> None:
    world, client = started
    action = client.action("to_controller", reason=0x55)
    client.insert(client.entry("exact_table", action, exact={"destination": 1}))
    packet = frame(1, 2, 3, b"payload")
    world.plane.process([(0x101, packet)])
    received = client.receive("packet")
    assert received.payload == packet
    assert {m.metadata_id: m.value for m in received.metadata} == {1: b"\1\1", 2: b"\x55"}


def test_only_primaries_receive_packets(started: Started) -> None:
    world, client = started
    backup, other_role = world.client(election_id=0), world.client(role="other")
    backup.arbitrate()
    other_role.arbitrate()
    action = client.action("to_controller", reason=1)
    client.modify(client.entry("exact_table", action, is_default_action=True))
    world.plane.process([(1, frame(1, 2, 3))])
    client.receive("packet")
    other_role.receive("packet")
    backup.arbitrate()


@pytest.mark.parametrize(
    ("ids", "values"),
    [
        ([1], [b"\1"]),
        ([1, 2, 3], [b"\1"] * 3),
        ([1, 1], [b"\1"] * 2),
        ([], []),
        ([1, 2], [b"\x02\0", b"\0"]),
        ([1, 2], [b"", b"\0"]),
    ],
)
def test_invalid_metadata_is_reported_with_the_packet(
    started: Started, ids: list[int], values: list[bytes]
) -> None:
    world, client = started
    message = p4r.PacketOut(payload=b"x")
    for number, value in zip(ids, values, strict=True):
        message.metadata.add(metadata_id=number, value=value)
    client.send(packet=message)
    error = client.receive("error")
    assert error.canonical_code == INVALID_ARGUMENT
    assert error.packet_out.packet_out == message
    assert world.plane.sent == []


def test_a_backup_cannot_send_packets(started: Started) -> None:
    world, _ = started
    backup = world.client(election_id=0)
    backup.arbitrate()
    backup.send(packet=packet_out(1, b"x"))
    assert backup.receive("error").canonical_code == PERMISSION_DENIED
    assert world.plane.sent == []


def test_an_empty_message_is_reported_and_the_stream_goes_on(started: Started) -> None:
    _, client = started
    client.send()
    error = client.receive("error")
    assert (error.canonical_code, error.WhichOneof("details")) == (UNIMPLEMENTED, "other")
    assert client.arbitrate().status.code == 0


def test_without_a_pipeline_a_packet_out_fails(world: World) -> None:
    client = world.client()
    client.arbitrate()
    client.send(packet=packet_out(1, b"x"))
    assert client.receive("error").canonical_code == FAILED_PRECONDITION


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=8), st.data())
def test_headers_of_any_widths_go_both_ways(
    fields: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Fields are packed without gaps; those that are hidden from P4Info are zero."""
    kinds = tuple(
        FieldType(f"f{i}", Bits(width), (Annotation("hidden"),) if is_hidden else ())
        for i, (width, is_hidden) in enumerate(fields)
    )
    header = ControllerHeader(Header("h", kinds), StringTypes())
    metadata = []
    bits = ""
    for number, (width, is_hidden) in enumerate(fields, start=1):
        value = 0 if is_hidden else data.draw(st.integers(0, (1 << width) - 1))
        bits += f"{value:0{width}b}"
        if not is_hidden:
            metadata.append(p4r.PacketMetadata(metadata_id=number, value=encoded(value)))
    packed = header.pack(metadata)
    assert "".join(f"{byte:08b}" for byte in packed) == bits + "0" * (-len(bits) % 8)
    unpacked = header.unpack(packed + b"payload")
    assert unpacked == p4r.PacketIn(payload=b"payload", metadata=metadata)
    assert header.unpack(packed[:-1]) is None or not packed


# --- digests -----------------------------------------------------------------------------------


def configure(client: Client, **config: int) -> None:
    entry = p4r.DigestEntry(
        digest_id=client.id("learn_t"),
        config=p4r.DigestEntry.Config(**config),  # type: ignore[arg-type]
    )
    client.insert(p4r.Entity(digest_entry=entry))
    client.modify(client.entry("exact_table", client.action("learn"), is_default_action=True))


def learned(message: p4r.DigestList) -> list[tuple[bytes, bytes]]:
    return [(d.struct.members[0].bitstring, d.struct.members[1].bitstring) for d in message.data]


def test_a_digest_goes_to_the_controller(started: Started) -> None:
    world, client = started
    configure(client, max_list_size=1)
    world.plane.process([(0x103, frame(1, 0xABCDEF, 3))])
    message = client.receive("digest")
    assert message.digest_id == client.id("learn_t")
    expected = p4d.P4Data()
    expected.struct.members.add(bitstring=b"\xab\xcd\xef")
    expected.struct.members.add(bitstring=b"\1\3")
    assert list(message.data) == [expected]


def test_digests_wait_for_a_full_list_without_duplicates(started: Started) -> None:
    world, client = started
    configure(client, max_list_size=2, max_timeout_ns=1000 * SECOND_NS)
    packets = [(1, frame(1, source, 3)) for source in (5, 5, 5, 6, 7)]
    world.plane.process(packets)
    assert learned(client.receive("digest")) == [(b"\5", b"\1"), (b"\6", b"\1")]
    world.plane.process([(1, frame(1, 8, 3))])
    assert learned(client.receive("digest")) == [(b"\7", b"\1"), (b"\x08", b"\1")]


def test_a_digest_is_sent_when_its_time_is_up(started: Started) -> None:
    world, client = started
    configure(client, max_list_size=100, max_timeout_ns=20_000_000)
    world.plane.process([(1, frame(1, 5, 3))])
    assert learned(client.receive("digest")) == [(b"\5", b"\1")]


def test_unacknowledged_digests_are_not_sent_again(started: Started) -> None:
    world, client = started
    configure(client, max_list_size=1, ack_timeout_ns=1000 * SECOND_NS)
    world.plane.process([(1, frame(1, 5, 3)), (1, frame(1, 5, 3))])
    first = client.receive("digest")
    world.plane.process([(1, frame(1, 5, 3)), (1, frame(1, 6, 3))])
    assert learned(client.receive("digest")) == [(b"\6", b"\1")]
    ack = p4r.DigestListAck(digest_id=first.digest_id, list_id=first.list_id)
    client.send(digest_ack=ack)
    wait_for_sent(client, world)
    world.plane.process([(1, frame(1, 5, 3))])
    assert learned(client.receive("digest")) == [(b"\5", b"\1")]


def test_digests_are_sent_again_once_the_time_for_their_acknowledgement_is_up() -> None:
    kind = Struct("learn_t", (FieldType("port", Bits(8)),))
    digests = Digests({7: DigestType("learn_t", kind, "learn")})
    config = p4r.DigestEntry.Config(max_list_size=1, ack_timeout_ns=SECOND_NS)
    digests.insert(p4r.DigestEntry(digest_id=7, config=config))
    sent = []
    for now in (0, SECOND_NS - 1, 2 * SECOND_NS):
        digests.add("learn", (5,), now)
        sent += [(now, message.list_id) for message in digests.due(now)]
    assert sent == [(0, 1), (2 * SECOND_NS, 2)]


def test_digests_without_a_subscription(started: Started) -> None:
    world, client = started
    client.modify(client.entry("exact_table", client.action("learn"), is_default_action=True))
    world.plane.process([(1, frame(1, 5, 3))])
    client.arbitrate()


def test_an_unknown_acknowledgement_is_reported(started: Started) -> None:
    _, client = started
    client.send(digest_ack=p4r.DigestListAck(digest_id=5, list_id=1))
    error = client.receive("error")
    assert error.canonical_code == INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack.digest_id == 5


def test_digest_entries_are_entities(started: Started) -> None:
    _, client = started
    entry = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=client.id("learn_t")))
    every = p4r.Entity(digest_entry=p4r.DigestEntry())
    assert client.read(every) == []
    client.insert(entry)
    entry.digest_entry.config.max_list_size = 4
    client.modify(entry)
    assert client.read(every) == [entry]
    client.delete(entry)
    assert client.read(every) == []


# --- idle timeouts -----------------------------------------------------------------------------


def idle_entry(client: Client, **rest: Any) -> p4r.Entity:
    return client.entry(
        "lpm_table",
        client.action("counted_forward", port=2),
        lpm={"destination": (0xAB << 40, 8)},
        idle_timeout_ns=5 * SECOND_NS,
        **rest,
    )


def test_an_idle_entry_is_reported_once_per_timeout(started: Started) -> None:
    world, client = started
    world.plane.clock_us = 100 * SECOND_US
    entry = idle_entry(client, metadata=b"mine")
    client.insert(entry)
    world.plane.clock_us += 5 * SECOND_US
    notice = client.receive("idle_timeout_notification")
    assert list(notice.table_entry) == [entry.table_entry]
    world.plane.clock_us += 5 * SECOND_US
    client.receive("idle_timeout_notification")


def test_idle_entries_are_reported_once_per_timeout(started: Started) -> None:
    world, client = started
    client.insert(idle_entry(client))
    assert world.plane.engine is not None
    engine = world.plane.engine
    idle = IdleEntries(engine, lambda table, entry: p4r.TableEntry(priority=1))
    seconds = [4, 5, 6, 9, 10, 11, 15]
    reported = [idle.due(second * SECOND_US) is not None for second in seconds]
    assert reported == [False, True, False, False, True, False, True]


def test_an_entry_that_matches_is_not_idle(started: Started) -> None:
    world, client = started
    client.insert(idle_entry(client))
    world.plane.clock_us += 4 * SECOND_US
    world.plane.process([(1, frame(0xAB << 40, 1, 2))])
    world.plane.clock_us += 4 * SECOND_US
    asked = client.entry("lpm_table", time_since_last_hit=p4r.TableEntry.IdleTimeout())
    [entity] = client.read(asked)
    assert entity.table_entry.time_since_last_hit.elapsed_ns == 4 * SECOND_NS
    client.arbitrate()
    world.plane.clock_us += SECOND_US
    client.receive("idle_timeout_notification")


# --- clients that do not read ------------------------------------------------------------------


def test_an_outbox_that_nobody_reads_ends() -> None:
    outbox = Outbox()
    message = p4r.StreamMessageResponse()
    for _ in range(LARGEST_BACKLOG + 1):
        outbox.offer(message)
    assert (outbox.dropped, outbox.error) == (1, None)
    for _ in range(LARGEST_QUEUE):
        outbox.put(message)
    outbox.offer(message)
    assert outbox.error is not None
    assert str(outbox.error) == "the client does not read"
    assert outbox.error.code == "RESOURCE_EXHAUSTED"
    assert len(list(outbox)) == LARGEST_QUEUE
    outbox.put(message)
    assert list(outbox) == []


def test_the_stream_of_a_client_that_does_not_read_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p4switch.p4runtime.stream.LARGEST_QUEUE", 16)
    client = world.client()
    asked = 20_000
    answered = 0
    for _ in range(asked):
        client.send(arbitration=p4r.MasterArbitrationUpdate(device_id=client.device_id))
    with pytest.raises(CallError, match="RESOURCE_EXHAUSTED: the client does not read"):
        while answered < asked:
            client.receive("arbitration")
            answered += 1
    assert 0 < answered < asked
