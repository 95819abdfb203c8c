"""A host's process at the controller: one stream, held open for ever. Threads are inside."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from host_agent.memory import machine_id, total_memory
from protocol import hopsum_pb2 as pb
from protocol import hopsum_pb2_grpc as pb_grpc
from protocol.channel import ControllerError, Tls, check_tls, in_words, open_channel

LOGGER = logging.getLogger("hopsum-agent")

RECONNECT_SECONDS = 0.5


class NodeClient:
    """Announces `host` at the controller at `address`, again and again while it is away.

    `commands` gives what the controller said since; `fileno` is readable when there is something.
    `refused` says why the controller will not have this process, if so: it does not try again.
    Raises ControllerError for TLS files that are no good.
    """

    def __init__(self, address: str, host: str, tls: Tls | None = None) -> None:
        if tls is not None:
            check_tls(tls)
        self.address = address
        self.host = host
        self.refused: str | None = None
        self._tls = tls
        self._outgoing: queue.Queue[pb.NodeMessage | None] = queue.Queue()
        self._commands: list[pb.NodeCommand] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._call: Any = None
        self._streams = 0
        self._thread = threading.Thread(target=self._run, name="node client", daemon=True)

    def open(self) -> None:
        """Start connecting."""
        self._thread.start()

    def fileno(self) -> int:
        """Become readable when `commands` has something, or `refused` is set."""
        return self._wakeup

    def commands(self) -> list[pb.NodeCommand]:
        """Take what the controller has said."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wakeup)
            taken, self._commands = self._commands, []
        return taken

    def report(self, report: pb.NodeReport) -> None:
        """Send a report; one that finds no connection is forgotten."""
        with self._lock:
            if self._call is not None:
                self._outgoing.put(pb.NodeMessage(report=report))

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        self._outgoing.put(None)
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        told = ""
        while not self._closed.is_set() and self.refused is None:
            try:
                self._stream()
                why = "the controller ended the stream"
            except grpc.RpcError as error:
                why = in_words(error)
            except ControllerError as error:
                # A certificate is being replaced, say.
                why = str(error)
            with self._lock:
                self._call = None
            if not self._closed.is_set() and self.refused is None:
                if why != told:
                    LOGGER.warning("controller at %s: %s; trying again", self.address, why)
                told = why
                self._closed.wait(RECONNECT_SECONDS)

    def _stream(self) -> None:
        self._streams += 1
        with open_channel(self.address, self._tls) as channel:
            call = pb_grpc.ClusterStub(channel).Serve(self._messages(self._streams))
            for command in call:
                with self._lock:
                    self._call = call
                    if command.WhichOneof("message") == "refused":
                        self.refused = command.refused.reason
                    self._commands.append(command)
                    os.eventfd_write(self._wakeup, 1)

    def _messages(self, stream: int) -> Iterator[pb.NodeMessage]:
        hello = pb.Hello(host=self.host, memory=total_memory(), machine=machine_id())
        yield pb.NodeMessage(hello=hello)
        while True:
            message = self._outgoing.get()
            if stream != self._streams:
                # The stream is dead and another one has begun: the message belongs there.
                self._outgoing.put(message)
                return
            if message is None:
                return
            yield message
