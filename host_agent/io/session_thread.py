"""Keeps the stream of a session (`hopsum.host_agent.session`) open over gRPC, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Generic, Protocol, TypeVar

import grpc

from hopsum.host_agent.backoff import Backoff
from hopsum.host_agent.io.wakeup import Wakeup
from hopsum.protocol.channel import ControllerError, Tls, addresses_in, in_words, open_channel

LOGGER = logging.getLogger("hopsum-agent")

Out = TypeVar("Out")
In = TypeVar("In")
_In = TypeVar("_In", contravariant=True)

_CLOSING_SECONDS = 5.0


class Session(Protocol[Out, _In]):
    """The interface of a session for a transport; see `hopsum.host_agent.session`."""

    address: str
    host: str
    wake: Callable[[], None]
    news: Callable[[], None]

    @property
    def heartbeat(self) -> float | None:
        """Seconds of silence after which to `beat`."""

    @property
    def over(self) -> bool:
        """Whether no further stream is needed."""

    def connected(self) -> None:
        """Start a stream."""

    def disconnected(self) -> None:
        """End a stream."""

    def take_output(self) -> list[Out]:
        """Return the messages to send."""

    def beat(self) -> None:
        """Send a heartbeat."""

    def receive(self, message: _In, /) -> None:
        """Process a message of the controller."""


class SessionThread(Generic[Out, In]):
    """Connects, and reconnects after each loss (`Backoff`), until the session is over.

    There is no timeout: jobs sum without a controller, and another one may take them over.

    Where the session has several addresses, it goes on to the next, and pauses after the last.
    `call`: opens the stream on a channel, for the messages given. `changed` guards the session, and
    is notified of its news; `fileno` is readable when there are some.
    """

    def __init__(
        self,
        session: Session[Out, In],
        call: Callable[[grpc.Channel, Iterator[Out]], Any],
        tls: Tls | None,
    ) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.closed = False
        self._session = session
        self._addresses = addresses_in(session.address)
        self._call = call
        self._tls = tls
        self._backoff = Backoff(session.host, time.monotonic())
        self._output = threading.Condition(lock)
        self._closing = threading.Event()
        self._wakeup = Wakeup()
        self._streams = 0
        self._stream: Any = None
        self._abandoned = False
        """Whether streams are cancelled, also those that begin."""
        self._thread = threading.Thread(target=self._run, name="controller client", daemon=True)
        session.wake = self._output.notify_all
        session.news = self._news

    def start(self) -> None:
        """Start connecting."""
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when the session has events."""
        return self._wakeup.fileno()

    def heard(self) -> None:
        """Acknowledge the events; `fileno` is no longer readable."""
        self._wakeup.clear()

    def close(self, patience: float = _CLOSING_SECONDS) -> None:
        """End the stream; pending messages have `patience` seconds to be sent."""
        with self.changed:
            if self.closed:
                return
            self.closed = True
            self._closing.set()
            self._output.notify_all()
        if self._thread.ident is not None:
            self._thread.join(patience)
            with self.changed:
                self._abandoned = True
                stream = self._stream
            if stream is not None:
                stream.cancel()
            # A thread that is left inside a call can keep the process from exiting.
            self._thread.join(_CLOSING_SECONDS)
        self._wakeup.close()

    def _news(self) -> None:
        self.changed.notify_all()
        self._wakeup.set()

    def _run(self) -> None:
        logged: dict[str, str] = {}
        for address in cycle(self._addresses):
            if address == self._addresses[0]:
                self._backoff.attempt(time.monotonic())
            ended = False
            try:
                self._attend(address)
                ended = True
                why = "the controller ended the stream"
            except grpc.RpcError as error:
                why = in_words(error)
            except ControllerError as error:
                # A certificate is being replaced, say.
                why = str(error)
            why = f"controller at {address}: {why}"
            with self.changed:
                self._end_stream()
                # What is to be sent when it is closed waits for the controller that leads.
                tried = ended or address == self._addresses[-1]
                if self._session.over or (self.closed and tried):
                    return
            if why != logged.get(address):
                LOGGER.warning("%s; trying again", why)
            logged[address] = why
            if address == self._addresses[-1]:
                self._closing.wait(self._backoff.pause(time.monotonic()))

    def _attend(self, address: str) -> None:
        with open_channel(address, self._tls) as channel:
            with self.changed:
                self._session.connected()
            call = self._call(channel, self._messages(self._streams))
            with self.changed:
                self._stream = call
                abandoned = self._abandoned
            if abandoned:
                call.cancel()
            for message in call:
                with self.changed:
                    self._backoff.heard(time.monotonic())
                    self._session.receive(message)

    def _end_stream(self) -> None:
        self._stream = None
        self._streams += 1
        self._session.disconnected()
        self._output.notify_all()

    def _messages(self, stream: int) -> Iterator[Out]:
        while True:
            with self._output:
                # Another stream may have begun: messages belong there.
                if stream != self._streams:
                    return
                messages = self._session.take_output()
                if not messages:
                    if self.closed:
                        return
                    if not self._output.wait(self._session.heartbeat):
                        self._session.beat()
            yield from messages
