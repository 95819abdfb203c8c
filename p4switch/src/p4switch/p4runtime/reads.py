"""Limits for reads, each of which holds a thread of the server until its client has taken all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from p4switch.p4runtime.status import fail
from p4switch.targets.v1model.engine import ControlError

MAX_READS = 64
"""Maximum reads in progress; each holds a thread of the server, and its answer in memory."""
PATIENCE_SECONDS = 10.0
"""How long a client may take nothing of an answer before its read is cancelled."""

Call = Callable[[Any, grpc.ServicerContext], Iterator[Any]]
"""A call that answers with a stream."""


@dataclass(slots=True, eq=False)
class _Read:
    context: grpc.ServicerContext
    since: float | None = None
    """Since when a message waits for the client (`clock`)."""


class ReadLimits(grpc.ServerInterceptor):
    """Refuses reads beyond `most`, and cancels those whose clients take nothing for `patience` s.

    gRPC lets an answer wait, with the thread that sends it, until its client has room.
    """

    def __init__(
        self,
        most: int = MAX_READS,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._reads: set[_Read] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reads", daemon=True)

    def start(self) -> None:
        """Watch reads, in a thread, until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of a call, limited if it answers with a stream (see gRPC)."""
        handler = continuation(details)
        if handler is None or handler.unary_stream is None:
            return handler
        return grpc.unary_stream_rpc_method_handler(
            self.limited(handler.unary_stream),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def limited(self, call: Call) -> Call:
        """Return a call within these limits."""

        def within(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            read = _Read(context)
            try:
                self._begin(read)
            except ControlError as error:
                fail(context, error)
            try:
                for response in call(request, context):
                    read.since = self._clock()
                    yield response
                    read.since = None
            finally:
                with self._lock:
                    self._reads.discard(read)

        return within

    @property
    def in_progress(self) -> int:
        """Return the number of reads in progress."""
        return len(self._reads)

    def _begin(self, read: _Read) -> None:
        with self._lock:
            if self.in_progress >= self._most:
                raise ControlError(
                    "RESOURCE_EXHAUSTED",
                    f"{self._most} reads are in progress already: take their answers, or end them",
                )
            self._reads.add(read)

    def _watch(self) -> None:
        while not self._closed.wait(self._patience / 4):
            self.cancel_stalled()

    def cancel_stalled(self) -> None:
        """Cancel the reads whose clients have taken nothing for too long."""
        last = self._clock() - self._patience
        with self._lock:
            stalled = [each for each in self._reads if each.since is not None and each.since < last]
        for read in stalled:
            read.context.cancel()
