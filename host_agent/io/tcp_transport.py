"""Schedules over TCP in the background: `TcpCollective` in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hopsum.collectives.execution import Channel, Execution
from hopsum.host_agent.io.tcp_collective import BASE_PORT, PROGRESS_SECONDS, TcpCollective


class TcpTransport:
    """Starts connecting to the others at once; `busy` until it is done.

    `addresses`, `channels`, `port`, `whose`, `tos`, `timeout`: as of `TcpCollective`. `wake`:
    called, in a thread, when it is busy no longer.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        channels: Callable[[], tuple[Sequence[Channel], Sequence[Channel]]],
        wake: Callable[[], None],
        port: int = BASE_PORT,
        whose: int = 0,
        tos: int = 0,
        timeout: float = PROGRESS_SECONDS,
    ) -> None:
        self._wake = wake
        self._tos = tos
        self._collective: TcpCollective | None = None
        self._failure: Exception | None = None
        self._busy = self._closed = False
        self._changing = threading.Lock()
        self._sent_bytes = self._retransmissions = 0

        def meet() -> None:
            targets, sources = channels()
            collective = TcpCollective(
                rank,
                addresses,
                targets=targets,
                sources=sources,
                port=port,
                timeout=timeout,
                tos=tos,
                whose=whose,
            )
            with self._changing:
                self._collective = collective
                # It may have changed since.
                collective.mark(self._tos)

        self._begin(meet)

    @property
    def busy(self) -> bool:
        """Whether an operation is in progress; raises its error, such as PeerLost."""
        if self._failure is not None:
            raise self._failure
        return self._busy

    def run(self, make: Callable[[], Execution]) -> None:
        """Execute this host's part of a schedule."""
        collective = self._collective
        assert collective is not None
        self._begin(lambda: collective.run(make()))

    def _begin(self, work: Callable[[], None]) -> None:
        self._busy = True
        threading.Thread(target=self._work, args=(work,), name="schedule", daemon=True).start()

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever asks after it raises it
            self._failure = error
        with self._changing:
            self._busy = False
            if self._closed:
                self._give_back()
        self._wake()

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future packets, also of operations in progress."""
        with self._changing:
            self._tos = tos
            if self._collective is not None:
                self._collective.mark(tos)

    def postpone(self) -> None:
        """Restart the timeout of the operation in progress."""
        with self._changing:
            if self._collective is not None:
                self._collective.postpone()

    @property
    def sent_bytes(self) -> int:
        """Bytes of tensors sent so far."""
        with self._changing:
            self._count()
            return self._sent_bytes

    @property
    def retransmissions(self) -> int:
        """Retransmitted TCP segments."""
        with self._changing:
            self._count()
            return self._retransmissions

    def _count(self) -> None:
        if self._collective is not None:
            self._sent_bytes = self._collective.sent_bytes
            self._retransmissions = self._collective.retransmissions

    def close(self) -> None:
        """Close the connections, at once or when the operation in progress has ended."""
        with self._changing:
            self._closed = True
            if not self._busy:
                self._give_back()
            elif self._collective is not None:
                self._collective.abort()

    def _give_back(self) -> None:
        self._count()
        if self._collective is not None:
            self._collective.close()
            self._collective = None
