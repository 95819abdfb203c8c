"""gRPC in virtual time: the generated stubs and servicers, without sockets and threads.

`Exchange` is the network between processes: a server listens at an address, a channel connects a
named client to it, and `wire` is the connection between the two, which can be partitioned. A
process that ends (`Server.crash`, `Exchange.end_client`) resets its connections. Calls behave like
those of `grpc.aio`, as far as the controller, its agents and finsy use them.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import Message

from hopsum.simulation.events import EventQueue
from hopsum.simulation.wire import Wire, WireOptions

LOGGER = logging.getLogger("hopsum.rpc")

CONNECT_SECONDS = 20.0
"""Seconds for which gRPC tries to connect before calls that do not wait fail, by default."""

Code = grpc.StatusCode
Metadata = tuple[tuple[str, str | bytes], ...]
Parse = Callable[[bytes], Any]
Trace = Callable[[str], None]


class Exchange:
    """The processes of a control network and the wires between them.

    `trace` receives every message as a line; two equal runs have equal traces.
    """

    def __init__(
        self,
        queue: EventQueue,
        seed: int = 0,
        options: WireOptions | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.queue = queue
        self._seed = seed
        self._options = options or WireOptions()
        self._trace = trace
        self._servers: dict[str, Server] = {}
        self._wires: dict[tuple[str, str], Wire] = {}
        self._connections: dict[str, list[_Connection]] = {}

    def wire(self, client: str, address: str) -> Wire:
        """Return the wire between a client and the server at an address."""
        ends = (client, address)
        if ends not in self._wires:
            self._wires[ends] = Wire(self.queue, self._options, f"{self._seed}/{client}/{address}")
        return self._wires[ends]

    def listen(self, address: str, server: Server) -> None:
        """Bind a server to an address, replacing any other."""
        self._servers[address] = server

    def close(self, address: str) -> None:
        """Unbind an address."""
        self._servers.pop(address, None)

    def channel(self, client: str, address: str, keepalive: Keepalive | None = None) -> Channel:
        """Return a client's channel to the server that listens at an address when first used."""
        return Channel(self, client, address, keepalive)

    def end_client(self, client: str) -> None:
        """Reset all connections of a client, whose process has ended."""
        for connection in self._connections.pop(client, []):
            connection.leave()

    def reset(self, client: str, address: str) -> None:
        """Reset the connections between two processes; both get an error."""
        for connection in self._connections.get(client, []):
            if connection.address == address:
                connection.reset()

    def connect(self, client: str, address: str, keepalive: Keepalive | None = None) -> _Connection:
        """Start connecting."""
        known = self._connections.setdefault(client, [])
        known[:] = [connection for connection in known if connection.client_up]
        known.append(_Connection(self, client, address, keepalive))
        return known[-1]

    def server(self, address: str) -> Server | None:
        """Return the server at an address."""
        return self._servers.get(address)

    def record(self, source: str, target: str, what: str, content: bytes = b"") -> None:
        """Write a line of the trace."""
        if self._trace is not None:
            self._trace(
                f"{self.queue.now:.9f} {source} > {target} {what} {len(content)} "
                f"{zlib.crc32(content):08x}"
            )


def _bytes(message: Message) -> bytes:
    """Serialize a message with sorted maps: gRPC's own serializers use a random order."""
    return message.SerializeToString(deterministic=True)


# -- Connections


class _Connection:
    """A TCP connection. Either end may be up while the other is down."""

    def __init__(
        self, exchange: Exchange, client: str, address: str, keepalive: Keepalive | None
    ) -> None:
        self.exchange = exchange
        self.client = client
        self.address = address
        self.wire = exchange.wire(client, address)
        self.client_up = True
        self.server_up = False
        self.known = False
        """Whether the client knows that it is connected."""
        self.client_calls: list[_ClientCall] = []
        self.server_calls: list[_ServerCall] = []
        self._server: Server | None = None
        self._keepalive = keepalive
        self._heard = exchange.queue.now
        patience = CONNECT_SECONDS if keepalive is None else keepalive.connect
        self._timeout = asyncio.get_running_loop().call_later(patience, self._no_answer)
        self.wire.up.send(self._accept)

    def _accept(self) -> None:
        if not self.client_up:
            # It has given up, and its first packet is not retransmitted.
            return
        server = self.exchange.server(self.address)
        if server is None:
            self.wire.down.send(lambda: self._lost("connection refused"))
            return
        self._server = server
        self.server_up = True
        server.connections.append(self)
        # The kernel accepts it; HTTP/2 starts with the process's first message.
        server.do(lambda _: self.to_client(self._connected))

    def _connected(self) -> None:
        self.known = True
        self._timeout.cancel()
        if self._keepalive is not None:
            self._ping_later(self._keepalive)

    def _ping_later(self, keepalive: Keepalive) -> None:
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(keepalive.idle, self._ping, keepalive, self._heard)

    def _ping(self, keepalive: Keepalive, heard: float) -> None:
        """Ask for a sign of life if nothing has arrived since the last look."""
        if self._heard != heard:
            self._ping_later(keepalive)
            return
        self.to_server(lambda _: self.to_client(lambda: None))
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(keepalive.timeout, self._judge, keepalive, heard)

    def _judge(self, keepalive: Keepalive, heard: float) -> None:
        """Give the connection up if nothing has arrived since a ping."""
        if self._heard != heard:
            self._ping_later(keepalive)
            return
        gave_up = self.exchange.queue.now

        def end() -> None:
            # TCP retransmits its last segment after twice the time each: if the path was away, that
            # arrives after those of later connections.
            queue = self.exchange.queue
            queue.at(2 * queue.now - gave_up, self._abandoned)

        self.wire.up.send(end)
        self._lost("ping timeout")

    def _no_answer(self) -> None:
        if not self.known:
            self._lost("connection timed out")

    def to_server(self, action: Callable[[Server], object]) -> None:
        """Schedule an action at the server; if that has ended, reset the connection."""

        def arrive() -> None:
            if self.server_up and self._server is not None:
                self._server.do(lambda server: action(server) if self.server_up else None)
            elif self.client_up:
                self.wire.down.send(lambda: self._lost("connection reset"))

        self.wire.up.send(arrive)

    def to_client(self, action: Callable[[], None]) -> None:
        """Schedule an action at the client; if that has ended, reset the connection."""

        def arrive() -> None:
            if self.client_up:
                self._heard = self.exchange.queue.now
                action()
            else:
                self.wire.up.send(self._abandoned)

        self.wire.down.send(arrive)

    def _lost(self, why: str) -> None:
        """Notify the client that the connection is lost."""
        self.client_up = False
        self._timeout.cancel()
        for call in self.client_calls[:]:
            call.end(Code.UNAVAILABLE, f"{self.address}: {why}")

    def _abandoned(self) -> None:
        """Notify the server that the connection is lost."""
        self.server_up = False
        if self._server is not None and self in self._server.connections:
            self._server.connections.remove(self)
        for call in self.server_calls[:]:
            call.cancel()

    def leave(self) -> None:
        """End the connection as when the client's process ends or closes it."""
        if self.client_up:
            self.client_up = False
            self._timeout.cancel()
            self.wire.up.send(self._abandoned)

    def drop(self) -> None:
        """End the connection as when the server's process ends."""
        self._abandoned()
        self.wire.down.send(lambda: self._lost("connection reset"))

    def reset(self) -> None:
        """Break the connection on the path between the two."""
        self._abandoned()
        self._lost("connection reset")


# -- The server


class AbortError(Exception):
    """A handler has ended its call with an error."""


class Server:
    """Serves calls at an address with the handlers that `add_..Servicer_to_server` adds."""

    def __init__(self, exchange: Exchange, address: str) -> None:
        self.address = address
        self.connections: list[_Connection] = []
        self.handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self.exchange = exchange
        self.context = contextvars.copy_context()
        """That of the process."""
        self._waiting: list[Callable[[Server], object]] | None = None

    def add_generic_rpc_handlers(self, handlers: Iterable[object]) -> None:
        """Do nothing: see `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Serve a service's calls."""
        for method, handler in handlers.items():
            self.handlers[f"/{service}/{method}"] = handler

    def start(self) -> None:
        """Listen."""
        self.exchange.listen(self.address, self)

    def crash(self) -> None:
        """End like a killed process: its connections are reset."""
        self.exchange.close(self.address)
        for connection in self.connections[:]:
            connection.drop()

    def hang(self) -> None:
        """Hang with open connections until `resume`."""
        self._waiting = self._waiting or []

    def resume(self) -> None:
        """Process everything received while hanging."""
        waiting, self._waiting = self._waiting, None
        for action in waiting or ():
            action(self)

    def do(self, action: Callable[[Server], object]) -> None:
        """Process a message from a connection."""
        if self._waiting is not None:
            self._waiting.append(action)
        else:
            action(self)


class _Context:
    """A handler's view of its call; handlers may or may not await `abort`."""

    def __init__(self) -> None:
        self.code = Code.OK
        self.details = ""
        self.trailing: Metadata = ()

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return no certificates."""
        return {}

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the trailing metadata."""
        self.trailing = tuple(metadata)

    def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with an error."""
        self.code, self.details = code, details
        raise AbortError(details)


class _ServerCall:
    """A call at its server."""

    def __init__(self, connection: _Connection, at_client: _ClientCall, server: Server) -> None:
        self._connection = connection
        self._client = at_client
        self._path = at_client.path
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._server = server
        connection.server_calls.append(self)
        self._task = asyncio.get_running_loop().create_task(
            self._run(),
            name=f"{connection.client}: {self._path}",
            context=server.context.copy(),
        )

    def take(self, request: bytes | None) -> None:
        """Process a request; None: end of requests."""
        self._requests.put_nowait(request)

    def cancel(self) -> None:
        """Cancel: no answer is wanted."""
        self._forget()
        self._task.cancel()

    def _forget(self) -> None:
        if self in self._connection.server_calls:
            self._connection.server_calls.remove(self)

    def _reply(self, content: bytes) -> None:
        call, connection = self._client, self._connection
        connection.exchange.record(connection.address, connection.client, self._path, content)
        connection.to_client(lambda: call.take(content))

    async def _run(self) -> None:
        handler = self._server.handlers.get(self._path)
        context = _Context()
        if handler is None:
            context.code, context.details = Code.UNIMPLEMENTED, "Method not found!"
        else:
            try:
                await self._answer(handler, context)
            except AbortError:
                pass
            except Exception as error:
                LOGGER.exception("%s failed", self._path)
                context.code = Code.UNKNOWN
                context.details = f"Unexpected {type(error)}: {error}"
        self._forget()
        call, connection = self._client, self._connection
        connection.exchange.record(
            connection.address, connection.client, f"{self._path} {context.code.name}"
        )
        connection.to_client(lambda: call.end(context.code, context.details, context.trailing))

    async def _answer(self, handler: Any, context: _Context) -> None:
        function = (
            handler.stream_stream
            or handler.stream_unary
            or handler.unary_stream
            or handler.unary_unary
        )
        requests = self._messages(handler.request_deserializer)
        answer = function(requests if handler.request_streaming else await anext(requests), context)
        if not handler.response_streaming:
            answer = await answer if inspect.isawaitable(answer) else answer
            self._reply(_bytes(answer))
        elif isinstance(answer, AsyncIterator):
            async for message in answer:
                self._reply(_bytes(message))
        else:
            for message in answer:
                self._reply(_bytes(message))

    async def _messages(self, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while (content := await self._requests.get()) is not None:
            yield parse(content)


# -- The client


class _ClientCall:
    """A call at its client, like any kind of call of `grpc.aio`."""

    def __init__(
        self,
        channel: Channel,
        path: str,
        parse: Parse,
        timeout: float | None,
    ) -> None:
        self.path = path
        self._parse = parse
        self._connection = connection = channel.connection()
        self._came: deque[bytes] = deque()
        self._ended: tuple[grpc.StatusCode, str, Metadata] | None = None
        self._changed = asyncio.Event()
        self._at_server: _ServerCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout, self._expire)
        connection.client_calls.append(self)

        def begin(server: Server) -> None:
            self._at_server = _ServerCall(connection, self, server)

        connection.to_server(begin)

    # -- receiving

    def take(self, content: bytes) -> None:
        """Process a response."""
        if self._ended is None:
            self._came.append(content)
            self._changed.set()

    def end(self, code: grpc.StatusCode, details: str = "", trailing: Metadata = ()) -> None:
        """Process the end of the call."""
        if self._ended is not None:
            return
        self._ended = code, details, trailing
        if self._timer is not None:
            self._timer.cancel()
        if self in self._connection.client_calls:
            self._connection.client_calls.remove(self)
        self._changed.set()

    def _expire(self) -> None:
        self._abandon(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _abandon(self, code: grpc.StatusCode, details: str) -> None:
        if self._ended is None:
            self.end(code, details)
            self._at_other_end(lambda call: call.cancel())

    def _at_other_end(self, action: Callable[[_ServerCall], None]) -> None:
        self._connection.to_server(lambda _: action(self._at_server) if self._at_server else None)

    # -- the callers' interface

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._ended is not None

    def cancel(self) -> bool:
        """Cancel the call and its waiters."""
        pending = self._ended is None
        self._abandon(Code.CANCELLED, "Locally cancelled by application!")
        return pending

    async def write(self, message: Any) -> None:
        """Send a request."""
        self._raise_error()
        self.send(message)

    def send(self, message: Any) -> None:
        """Send a request, if the call has not ended."""
        content = _bytes(message)
        connection = self._connection
        connection.exchange.record(connection.client, connection.address, self.path, content)
        self._at_other_end(lambda call: call.take(content))

    async def done_writing(self) -> None:
        """Send no more requests."""
        self.send_no_more()

    def send_no_more(self) -> None:
        """Send no more requests."""
        self._at_other_end(lambda call: call.take(None))

    async def read(self) -> Any:
        """Return the next response, or `grpc.aio.EOF`; raises AioRpcError."""
        while not self._came and self._ended is None:
            self._changed.clear()
            await self._changed.wait()
        if self._came:
            return self._parse(self._came.popleft())
        self._raise_error()
        return grpc.aio.EOF

    def _raise_error(self) -> None:
        if self._ended is None or self._ended[0] is Code.OK:
            return
        code, details, trailing = self._ended
        if code is Code.CANCELLED:
            raise asyncio.CancelledError(details)
        raise grpc.aio.AioRpcError(
            code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details
        )

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def only(self) -> Any:
        """Return the one response; cancels the call if its caller is."""
        try:
            answer = await self.read()
            # The status follows the response.
            await self.read()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return answer

    def __await__(self) -> Any:
        return self.only().__await__()


@dataclass(frozen=True, slots=True)
class Keepalive:
    """When a client gives up: seconds without a message before a ping, without its answer, and
    without a connection.
    """

    idle: float
    timeout: float
    connect: float


@dataclass
class Channel:
    """A client's channel to an address; connects on use, and reconnects after a loss."""

    exchange: Exchange
    client: str
    address: str
    keepalive: Keepalive | None = None
    _connection: _Connection | None = field(default=None, init=False)

    def connection(self) -> _Connection:
        """Return the connection in use."""
        if self._connection is None or not self._connection.client_up:
            self._connection = self.exchange.connect(self.client, self.address, self.keepalive)
        return self._connection

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End pending calls and the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            for call in connection.client_calls[:]:
                call.cancel()
            connection.leave()

    def unary_unary(
        self, path: str, request_serializer: object, response_deserializer: Parse, **_: object
    ) -> Callable[..., _ClientCall]:
        """For generated stubs."""

        def call(request: Message, timeout: float | None = None, **_: object) -> _ClientCall:
            made = _ClientCall(self, path, response_deserializer, timeout)
            made.send(request)
            return made

        return call

    unary_stream = unary_unary

    def stream_stream(
        self, path: str, request_serializer: object, response_deserializer: Parse, **_: object
    ) -> Callable[..., _ClientCall]:
        """For generated stubs."""

        def call(timeout: float | None = None, **_: object) -> _ClientCall:
            return _ClientCall(self, path, response_deserializer, timeout)

        return call

    stream_unary = stream_stream


def as_channel(channel: Channel) -> grpc.aio.Channel:
    """Return the channel with the type that stubs declare."""
    return cast(grpc.aio.Channel, channel)


def as_server(server: Server) -> grpc.aio.Server:
    """Return the server with the type that `add_..Servicer_to_server` declares."""
    return cast(grpc.aio.Server, server)
