"""Requests as bytes, as from grpcurl or a client with other definitions: each gets a clean status.

After each of them the switch still answers a proper client, whose entries have stayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import U128, p4r
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.machine import PATIENCE
from tests.support.p4runtime_world import DEVICE, Client, World, multicast, running
from tests.support.search import examples

started = pytest.fixture(running, scope="module")
Started = tuple[World, Client]

SERVICE = "p4.v1.P4Runtime"
UNARY = ["Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Capabilities"]
STREAMING = ["Read", "StreamChannel"]
UNKNOWN_FIELDS = bytes.fromhex("f8ff01 05fa ff01 03 616263")
"""Field 4095, as a number and as three bytes."""
TRUNCATED = b"\x1a\x7f\x01"
"""Field 3 with 127 bytes, of which one is there."""
GARBAGE = b"\xff" * 40

WRITE = p4r.WriteRequest(device_id=DEVICE, election_id=U128.encode(1))
READ = p4r.ReadRequest(device_id=DEVICE)
ARBITRATION = p4r.StreamMessageRequest(
    arbitration=p4r.MasterArbitrationUpdate(device_id=DEVICE, election_id=U128.encode(9))
)


def status(address: str, method: str, *requests: bytes, service: str = SERVICE) -> str:
    """Call a method with requests as they are; return the code of its status."""
    with grpc.insecure_channel(address) as channel:
        path = f"/{service}/{method}"
        call: Callable[..., Any]
        sent: bytes | Iterable[bytes]
        if method == "StreamChannel":
            call, sent = channel.stream_stream(path), iter(requests)
        else:
            call = (channel.unary_stream if method == "Read" else channel.unary_unary)(path)
            (sent,) = requests
        try:
            answer = call(sent, timeout=PATIENCE)
            for _ in answer if isinstance(answer, grpc.Call) else ():
                pass
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            return error.code().name
    return "OK"


def with_unknown(message: Message) -> bytes:
    return message.SerializeToString() + UNKNOWN_FIELDS


@pytest.fixture(autouse=True)
def _lives_on(started: Started) -> Iterator[None]:
    _, client = started
    client.insert(multicast(1, (1, 0)))
    yield
    assert client.read(multicast(0)) == [multicast(1, (1, 0))]
    client.delete(multicast(1))


@pytest.mark.parametrize("method", UNARY + STREAMING)
@pytest.mark.parametrize("request_bytes", [TRUNCATED, GARBAGE], ids=["truncated", "garbage"])
def test_what_is_no_message_is_refused(started: Started, method: str, request_bytes: bytes) -> None:
    world, _ = started
    # gRPC ends a call whose message it cannot read with INTERNAL.
    expected = ("INTERNAL", "UNKNOWN")
    assert status(world.address, method, request_bytes) in expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("Write", "NOT_FOUND"),  # Device 0.
        ("Read", "NOT_FOUND"),
        ("SetForwardingPipelineConfig", "NOT_FOUND"),
        ("GetForwardingPipelineConfig", "NOT_FOUND"),
        ("Capabilities", "OK"),
        ("StreamChannel", "OK"),  # An error message on the stream, which then ends.
    ],
)
def test_an_empty_message_is_a_message(started: Started, method: str, expected: str) -> None:
    world, _ = started
    assert status(world.address, method, b"") == expected


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Write", WRITE),
        ("Read", READ),
        ("GetForwardingPipelineConfig", p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE)),
        ("Capabilities", p4r.CapabilitiesRequest()),
        ("StreamChannel", ARBITRATION),
    ],
)
def test_fields_of_later_versions_are_ignored(
    started: Started, method: str, message: Message
) -> None:
    world, client = started
    assert status(world.address, method, with_unknown(message)) == "OK"
    if method == "StreamChannel":  # It was primary for a moment.
        assert client.receive("arbitration").status.code != 0
        assert client.receive("arbitration").status.code == 0


def test_entities_of_later_versions_are_no_entities(started: Started) -> None:
    world, _ = started
    read = p4r.ReadRequest(device_id=DEVICE)
    read.entities.add().MergeFromString(UNKNOWN_FIELDS)
    assert status(world.address, "Read", read.SerializeToString()) == "INVALID_ARGUMENT"
    write = p4r.WriteRequest(device_id=DEVICE, election_id=U128.encode(1))
    write.updates.add(type=p4r.Update.INSERT).entity.MergeFromString(UNKNOWN_FIELDS)
    assert status(world.address, "Write", write.SerializeToString()) == "UNKNOWN"


def test_numbers_beyond_an_enumeration_are_refused(started: Started) -> None:
    world, _ = started
    update = b"\x22\x04\x08\x63\x12\x00"  # updates { type: 99 entity { } }
    assert status(world.address, "Write", WRITE.SerializeToString() + update) == "UNKNOWN"
    atomicity = b"\x28\x63"
    assert status(world.address, "Write", WRITE.SerializeToString() + atomicity) == "UNIMPLEMENTED"
    action = p4r.SetForwardingPipelineConfigRequest(
        device_id=DEVICE, election_id=U128.encode(1)
    ).SerializeToString()
    for number in (b"", b"\x20\x63"):
        name = "SetForwardingPipelineConfig"
        assert status(world.address, name, action + number) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("service", "method"),
    [
        (SERVICE, "Delete"),
        (SERVICE, ""),
        ("p4.v2.P4Runtime", "Write"),
        ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo"),
    ],
)
def test_there_are_no_other_methods(started: Started, service: str, method: str) -> None:
    world, _ = started
    assert status(world.address, method, b"", service=service) == "UNIMPLEMENTED"


def test_a_call_without_a_message_has_a_status(started: Started) -> None:
    world, _ = started
    with grpc.insecure_channel(world.address) as channel:
        call = channel.stream_unary(f"/{SERVICE}/Capabilities")
        with pytest.raises(grpc.RpcError):
            call(iter([]), timeout=PATIENCE)


def test_a_message_beyond_the_limit_is_refused(started: Started) -> None:
    world, _ = started
    large = WRITE.SerializeToString() + b"\xfa\xff\x01" + b"\x80\x80\x80\x21" + bytes(33 << 21)
    assert status(world.address, "Write", large) == "RESOURCE_EXHAUSTED"


@pytest.mark.slow
@settings(max_examples=examples(40, of=200))
@given(st.data())
def test_damaged_writes_have_a_status(started: Started, data: st.DataObject) -> None:
    """The server answers a request with corrupted bytes with a status, and keeps running."""
    world, client = started
    request = p4r.WriteRequest(device_id=DEVICE, election_id=U128.encode(1))
    entry = client.entry("exact_table", client.action("forward", port=2), exact={"destination": 7})
    request.updates.add(type=p4r.Update.INSERT, entity=entry)
    damaged = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    code = status(world.address, "Write", bytes(damaged))
    assert code in ("OK", "UNKNOWN", "INTERNAL", "NOT_FOUND", "PERMISSION_DENIED", "UNIMPLEMENTED")
    for left in client.read(client.entry("exact_table")):
        client.delete(left)
