"""Keeps the stream of a session (`hopsum.host_agent.session`) open in virtual time.

The counterpart, over `hopsum.simulation.rpc`, of the thread `hopsum.host_agent.io.session_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from hopsum.host_agent.backoff import Backoff
from hopsum.host_agent.session import AgentSession, NodeSession
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.liveness import CONNECT_TIMEOUT, PING_SECONDS, PING_TIMEOUT
from hopsum.simulation.rpc import Channel, Exchange, Keepalive, as_channel

KEEPALIVE = Keepalive(PING_SECONDS, PING_TIMEOUT, CONNECT_TIMEOUT)
CLOSING_SECONDS = 5.0
"""Timeout in seconds for sending the last messages."""


class SessionStream:
    """A session's stream from its host; `changed` is called when the session has events."""

    def __init__(
        self, exchange: Exchange, session: NodeSession | AgentSession, changed: Callable[[], None]
    ) -> None:
        self._exchange = exchange
        self._session: Any = session
        self._changed = changed
        self._of_job = isinstance(session, AgentSession)
        self._call: Any = None
        self._closed = asyncio.Event()
        self._beat: asyncio.TimerHandle | None = None
        session.wake = self._send
        session.news = changed
        name = f"{session.host}: {type(session).__name__}"
        loop = asyncio.get_running_loop()
        self._backoff = Backoff(session.host, loop.time())
        self._task = loop.create_task(self._run(), name=name)

    def close(self) -> None:
        """End the stream once its messages have been sent: one that is down is tried once more."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._call is not None:
            self._send()
            self._call.send_no_more()
        asyncio.get_running_loop().call_later(CLOSING_SECONDS, self._task.cancel)

    def kill(self) -> None:
        """End immediately, as the process does."""
        self._closed.set()
        self._task.cancel()

    async def _run(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            session = self._session
            self._backoff.attempt(time())
            await self._attend(self._exchange.channel(session.host, session.address, KEEPALIVE))
            if self._closed.is_set() or self._session.over:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._backoff.pause(time()))

    async def _attend(self, channel: Channel) -> None:
        """Serve one stream to its end."""
        controller = pb_grpc.ControllerStub(as_channel(channel))
        stub: Any = controller.Attend if self._of_job else controller.Serve
        async with channel:
            self._call = stub()
            self._session.connected()
            if self._closed.is_set():
                self._call.send_no_more()
            try:
                async for message in self._call:
                    self._backoff.heard(asyncio.get_running_loop().time())
                    self._session.receive(message)
            except grpc.aio.AioRpcError:
                pass
            finally:
                self._call = None
                if self._beat is not None:
                    self._beat.cancel()
                self._session.disconnected()

    def _send(self) -> None:
        if self._call is None or self._call.done():
            return
        for message in self._session.take_output():
            self._call.send(message)
        if self._beat is not None:
            self._beat.cancel()
        if self._session.heartbeat is not None:
            loop = asyncio.get_running_loop()
            self._beat = loop.call_later(self._session.heartbeat, self._session.beat)
