"""Opening of channels to switches, for the driver and for finsy.

finsy opens its own (`finsy.p4client.grpc_channel`) and has no argument for it. So that name is
bound to a function that asks the task it runs in: a simulation gives channels that are no sockets.
What else of finsy needs a workaround stands here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import finsy as fy
import finsy.p4client
import grpc

from hopsum.protocol.channel import Tls, client_credentials

Connect = Callable[[str], grpc.aio.Channel]
"""Opens a channel to the P4Runtime server at an address."""

METADATA_BYTES = 64 << 10
"""Maximum size of trailing metadata: it has one error per update of a batch."""
FIRST_PAUSE = 0.1
LAST_PAUSE = 0.5
"""Seconds between attempts to connect: jobs wait for their switch, so they do not grow further."""

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", METADATA_BYTES),
    # gRPC refuses calls at once between its attempts, so the driver alone cannot try sooner.
    ("grpc.initial_reconnect_backoff_ms", round(FIRST_PAUSE * 1000)),
    ("grpc.max_reconnect_backoff_ms", round(LAST_PAUSE * 1000)),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel without limits on message size, to a private socket."""
    return grpc.aio.insecure_channel(address, options=OPTIONS)


def over_tls(tls: Tls) -> Connect:
    """Return a function that opens channels with TLS, except to Unix sockets. ControllerError for
    files."""
    credentials = client_credentials(tls)

    def connect(address: str) -> grpc.aio.Channel:
        if address.startswith("unix:"):
            return open_channel(address)
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)

    return connect


_CONNECT: ContextVar[Connect] = ContextVar("connect", default=open_channel)


def connect_by(connect: Connect) -> None:
    """Let finsy open channels this way in this task, and in tasks that it starts later."""
    _CONNECT.set(connect)


def _channel(address: str, **_: object) -> grpc.aio.Channel:
    return _CONNECT.get()(address)


finsy.p4client.grpc_channel = _channel  # type: ignore[attr-defined]


def make_switch(name: str, address: str, options: fy.SwitchOptions) -> fy.Switch:
    """Return finsy's object for a switch, with workarounds for two faults of finsy 0.30.

    As it connects, finsy starts tasks that assert that the connection is open: they must run before
    the end of a stream that ends early is noticed, or a lost switch is reported as a defect.
    """
    switch: Any = fy.Switch(name, address, options)
    receive = switch._receive_until_closed  # noqa: SLF001

    async def run_tasks_and_receive() -> None:
        await asyncio.sleep(0)
        await receive()

    switch._receive_until_closed = run_tasks_and_receive  # noqa: SLF001
    # finsy listens to its ports without the switch, which then emits no events of them.
    switch.ports.listen = partial(switch.ports.listen, switch)
    return cast(fy.Switch, switch)


@contextlib.asynccontextmanager
async def connected(switch: fy.Switch) -> AsyncIterator[None]:
    """Connect to a switch. Raises TimeoutError if it stops answering meanwhile.

    finsy cancels all its tasks for a switch when one of them fails, and awaits one that it has
    cancelled: what it raises would end the caller's task.
    """
    task = asyncio.current_task()
    assert task is not None
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(switch)
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            raise TimeoutError("no answer while connecting") from None
        yield
