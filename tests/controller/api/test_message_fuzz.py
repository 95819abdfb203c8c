"""Messages of random content at the controller: every call is answered, and jobs go on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.cli.job_commands import make_submission
from hopsum.cli.soak_command import make_data_plane
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.simulation.cluster import ClusterOptions, VirtualCluster
from hopsum.simulation.events import EventQueue
from hopsum.simulation.loop import run_virtual
from hopsum.simulation.rpc import as_channel
from tests.support.search import examples

WORDS = (
    "h1", "h2", "h3", "ps", "s1", "a", "in-network", "ring", "embedding", "multi-hop", "random",
    "tree", "", "\0", "x" * 5000, "\N{SNOWMAN}", "../../etc", "-1", "1",
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 7, 255, 65535, 65536, (1 << 31) - 1)
CALLS = dict(pb.DESCRIPTOR.services_by_name["Controller"].methods_by_name.items())
UNARY = [name for name in CALLS if name not in ("Serve", "Attend")]
DEEPEST = 6
MOST = 4
"""Of a repeated field."""


def fill(message: Message, rng: random.Random, depth: int = 0) -> None:
    """Give a message's fields values, most of them such that they might be meant."""
    descriptor: Descriptor = message.DESCRIPTOR  # type: ignore[assignment]
    for field in descriptor.fields:
        if rng.random() < 0.4 or depth > DEEPEST:
            continue
        _fill_field(message, field, rng, depth)


def _fill_field(message: Message, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    mapped = field.message_type is not None and field.message_type.GetOptions().map_entry
    if mapped:
        values = getattr(message, field.name)
        key, value = field.message_type.fields
        for _ in range(rng.randint(0, MOST)):
            if value.message_type is not None:
                fill(values[_value(key, rng)], rng, depth + 1)
            else:
                values[_value(key, rng)] = _value(value, rng)
    elif field.is_repeated:
        values = getattr(message, field.name)
        for _ in range(rng.randint(0, MOST)):
            if field.message_type is not None:
                fill(values.add(), rng, depth + 1)
            else:
                values.append(_value(field, rng))
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        fill(part, rng, depth + 1)
    else:
        setattr(message, field.name, _value(field, rng))


def _value(field: FieldDescriptor, rng: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return rng.randbytes(rng.choice([0, 1, 40]))
            return rng.choice(WORDS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice([value.number for value in field.enum_type.values] + [99])
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice([0.0, 1.0, -1.0, 1e-9, 1e300, float("nan"), float("inf")])
        case FieldDescriptor.CPPTYPE_UINT64 | FieldDescriptor.CPPTYPE_UINT32:
            most = 64 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else 32
            return rng.choice([*NUMBERS, rng.getrandbits(most), (1 << most) - 1])
        case _:
            return rng.choice([*NUMBERS, -1, -(1 << 31)])


def of_type(name: str, rng: random.Random) -> Message:
    message: Message = getattr(pb, name)()
    fill(message, rng)
    return message


def run(test: Callable[[VirtualCluster], Awaitable[None]]) -> None:
    queue = EventQueue()
    network = load_network("star:3", link_rate=1e6, latency=1e-4, slots=256)
    data_plane = make_data_plane()
    settings = ClusterSettings(lanes=32, journal=Path("jobs"))
    options = ClusterOptions(data_plane.pipeline(32, 256, 10), data_plane.load, settings)
    cluster = VirtualCluster(network, options, queue)

    async def main() -> None:
        async with cluster:
            await cluster.until(
                lambda: (
                    cluster.controller is not None
                    and len(cluster.controller.nodes.attached) == len(network.hosts)
                ),
                "the agents",
            )
            await test(cluster)

    run_virtual(main(), queue)


async def ends_well(cluster: VirtualCluster) -> None:
    """A job is still summed, once those that were accepted are cancelled."""
    assert cluster.controller is not None
    people: Any = cluster.people
    for job in [*cluster.controller.jobs]:
        await people.Cancel(pb.JobQuery(job=job.number))
    submission = make_submission("sound", "h1,h2", "ps", rounds=2, elements=64)
    await people.Submit(submission)

    def over() -> bool:
        return cluster.controller is not None and (
            cluster.controller.jobs.find(name="sound").state.over
        )

    await cluster.until(over, "a sound job", 120.0)
    assert cluster.controller.jobs.find(name="sound").state is JobState.FINISHED


@pytest.mark.slow
@settings(max_examples=examples(4, of=200), deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_calls_are_answered(seed: int) -> None:
    rng = random.Random(seed)

    async def test(cluster: VirtualCluster) -> None:
        people: Any = cluster.people
        for _ in range(60):
            name = rng.choice(["Submit", "Submit", *UNARY])
            message = of_type(CALLS[name].input_type.name, rng)
            try:
                await getattr(people, name)(message, timeout=30.0)
            except grpc.aio.AioRpcError as error:
                assert error.code() is not grpc.StatusCode.UNKNOWN, f"{name}: {error.details()}"
                assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, name
                assert error.details(), name
                assert len(error.details() or "") < 20_000, name
        await ends_well(cluster)

    run(test)


@pytest.mark.slow
@settings(max_examples=examples(4, of=200), deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_streams_are_answered(seed: int, caplog_of_errors: list[logging.LogRecord]) -> None:
    """From agents that send anything in any order, for known and unknown hosts."""
    rng = random.Random(seed)

    async def hold(stub: Any, kind: str) -> None:
        call = getattr(stub, "Attend" if kind == "AgentMessage" else "Serve")()
        for _ in range(rng.randint(1, 12)):
            try:
                await call.write(of_type(kind, rng))
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                return
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.5]))
        call.cancel()

    async def test(cluster: VirtualCluster) -> None:
        channels = [cluster.exchange.channel(f"stranger {n}", "controller") for n in range(4)]
        stubs: list[Any] = [pb_grpc.ControllerStub(as_channel(channel)) for channel in channels]
        people: Any = cluster.people
        await people.Submit(make_submission("a", "h1,h2", "ps", rounds=50, elements=64))
        for _ in range(15):
            kind = rng.choice(["AgentMessage", "NodeMessage"])
            await asyncio.gather(*(hold(stub, kind) for stub in stubs))
        await ends_well(cluster)

    run(test)
    assert [record.getMessage() for record in caplog_of_errors] == []


@pytest.fixture(scope="module")
def caplog_of_errors() -> Any:
    """Log records with an exception."""
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                found.append(record)

    handler = Keep(logging.ERROR)
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)
