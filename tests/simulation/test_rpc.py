"""gRPC in virtual time: calls, latency, partitions, resets, processes that end or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.simulation.events import EventQueue
from hopsum.simulation.loop import run_virtual
from hopsum.simulation.rpc import CONNECT_SECONDS, Exchange, Server, as_channel, as_server
from hopsum.simulation.wire import RETRANSMISSION_SECONDS, Way, WireOptions

OPTIONS = WireOptions(latency=0.01, jitter=0.0)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Echo(pb_grpc.ControllerServicer):
    """Answers every message of a stream with a refusal that repeats what it says."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def Attend(
        self, request: AsyncIterator[pb.AgentMessage], context: Any
    ) -> AsyncIterator[pb.ControllerMessage]:
        try:
            async for message in request:
                if message.failed.reason == "abort":
                    await context.abort(grpc.StatusCode.NOT_FOUND, "as you wish")
                if message.failed.reason == "break":
                    raise ValueError("broken")
                yield pb.ControllerMessage(refused=pb.Refused(reason=message.failed.reason))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        return pb.StatusReply(jobs=[pb.JobStatus(job=7)])


class Two:
    """A server and a client."""

    def __init__(self, options: WireOptions = OPTIONS) -> None:
        self.lines: list[str] = []
        self.queue = EventQueue()
        self.exchange = Exchange(self.queue, 1, options, self.lines.append)
        self.echo = Echo()
        self.server = self.start()
        self.channel = self.exchange.channel("c", "s")
        self.stub = pb_grpc.ControllerStub(as_channel(self.channel))
        self.wire = self.exchange.wire("c", "s")

    def start(self) -> Server:
        server = Server(self.exchange, "s")
        pb_grpc.add_ControllerServicer_to_server(self.echo, as_server(server))
        server.start()
        return server

    def stream(self) -> Any:
        return self.stub.Attend()  # type: ignore[call-arg]


def run(test: Callable[[Two], Awaitable[None]], options: WireOptions = OPTIONS) -> Two:
    two = Two(options)

    async def main() -> None:
        await test(two)

    run_virtual(main(), two.queue)
    return two


def said(text: str) -> pb.AgentMessage:
    return pb.AgentMessage(failed=pb.Failed(reason=text))


async def code_of(work: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await work
    return error.value.code(), error.value.details() or ""


@pytest.mark.slow
def test_a_unary_call_takes_the_way_there_and_back() -> None:
    async def test(two: Two) -> None:
        reply = await two.stub.Status(pb.StatusRequest())
        assert reply.jobs[0].job == 7
        assert two.queue.now == pytest.approx(2 * OPTIONS.latency)

    run(test)


@pytest.mark.slow
def test_streams_keep_their_order() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        for number in range(20):
            await stream.write(said(str(number)))
        got = [(await stream.read()).refused.reason for _ in range(20)]
        assert got == [str(number) for number in range(20)]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert stream.done()

    run(test)
    run(test, WireOptions(0.01, 0.1, 0.3))


def test_errors_of_handlers() -> None:
    async def test(two: Two) -> None:
        for word, code, details in (
            ("abort", grpc.StatusCode.NOT_FOUND, "as you wish"),
            ("break", grpc.StatusCode.UNKNOWN, "broken"),
        ):
            stream = two.stream()
            await stream.write(said(word))
            found = await code_of(stream.read())
            assert found[0] is code
            assert details in found[1]
        unknown = two.channel.unary_unary("/x/Y", None, pb.StatusReply.FromString)
        assert (await code_of(unknown(pb.StatusRequest())))[0] is grpc.StatusCode.UNIMPLEMENTED

    run(test)


def test_connecting_without_a_listener() -> None:
    async def test(two: Two) -> None:
        two.server.crash()
        assert await code_of(two.stub.Status(pb.StatusRequest())) == (
            UNAVAILABLE,
            "s: connection refused",
        )

    run(test)


def test_a_server_that_ends_and_another_that_follows() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        await stream.write(said("a"))
        await stream.read()
        two.server.crash()
        assert await code_of(stream.read()) == (UNAVAILABLE, "s: connection reset")
        assert two.echo.cancelled == 1
        two.start()
        assert (await two.stub.Status(pb.StatusRequest())).jobs

    run(test)


def test_a_client_that_ends_is_noticed() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        await stream.write(said("a"))
        await stream.read()
        two.exchange.end_client("c")
        await asyncio.sleep(1.0)
        assert two.echo.cancelled == 1

    run(test)


def test_a_call_that_is_cancelled_ends_its_handler() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        await stream.write(said("a"))
        await stream.read()
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream.read()
        await asyncio.sleep(1.0)
        assert two.echo.cancelled == 1

    run(test)


def test_a_partition_only_delays() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        await stream.write(said("a"))
        await stream.read()
        two.wire.part()
        await stream.write(said("b"))
        await asyncio.sleep(100.0)
        assert not stream.done()
        two.wire.join()
        assert (await stream.read()).refused.reason == "b"

    run(test)


def test_a_partition_hides_the_end_of_a_process() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        await stream.write(said("a"))
        await stream.read()
        two.wire.part()
        two.server.crash()
        await asyncio.sleep(100.0)
        assert not stream.done()
        two.wire.join()
        assert (await code_of(stream.read()))[0] is UNAVAILABLE

    run(test)


@pytest.mark.parametrize("how", ["partition", "hang"])
def test_connecting_takes_no_longer_than_grpc_would_let_it(how: str) -> None:
    async def test(two: Two) -> None:
        if how == "partition":
            two.wire.part()
        else:
            two.server.hang()
        assert await code_of(two.stub.Status(pb.StatusRequest())) == (
            UNAVAILABLE,
            "s: connection timed out",
        )
        assert two.queue.now == CONNECT_SECONDS
        two.wire.join()
        two.server.resume()
        assert (await two.stub.Status(pb.StatusRequest())).jobs

    run(test)


def test_a_process_that_hangs_answers_when_it_goes_on() -> None:
    async def test(two: Two) -> None:
        await two.stub.Status(pb.StatusRequest())
        two.server.hang()
        found = await code_of(two.stub.Status(pb.StatusRequest(), timeout=3.0))
        assert found[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        late = asyncio.ensure_future(two.stub.Status(pb.StatusRequest()))
        await asyncio.sleep(50.0)
        two.server.resume()
        assert (await late).jobs

    run(test)


def test_a_reset_ends_calls_at_both_ends() -> None:
    async def test(two: Two) -> None:
        stream = two.stream()
        await stream.write(said("a"))
        await stream.read()
        two.exchange.reset("c", "s")
        assert (await code_of(stream.read()))[0] is UNAVAILABLE
        await asyncio.sleep(0)
        assert two.echo.cancelled == 1

    run(test)


@pytest.mark.slow
def test_lost_packets_are_delays_that_repeat() -> None:
    async def test(two: Two) -> None:
        for _ in range(20):
            await two.stub.Status(pb.StatusRequest())

    options = WireOptions(0.01, 0.005, 0.5)
    one, other = run(test, options), run(test, options)
    assert one.lines == other.lines
    assert one.queue.now == other.queue.now > 20 * RETRANSMISSION_SECONDS


def test_bytes_take_time_and_keep_their_order_through_a_partition() -> None:
    queue = EventQueue()
    way = Way(queue, WireOptions(latency=0.5, jitter=0.0, seconds_a_byte=0.25))
    arrived: list[tuple[str, float]] = []

    def send(name: str, size: int) -> None:
        way.send(lambda: arrived.append((name, queue.now)), size)

    send("long", 8)
    send("short", 0)
    while queue.run():
        pass
    assert arrived == [("long", 2.5), ("short", 2.5)]
    way.part()
    send("held", 4)
    way.join()
    while queue.run():
        pass
    assert arrived[2:] == [("held", 4.0)]
