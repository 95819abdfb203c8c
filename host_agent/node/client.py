"""A host's process at the controller: one stream, held open for ever. Threads are inside."""

from __future__ import annotations

from host_agent.io.session_thread import SessionThread
from host_agent.memory import machine_id, total_memory
from host_agent.session import NodeSession
from protocol import hopsum_pb2 as pb
from protocol import hopsum_pb2_grpc as pb_grpc
from protocol.channel import Tls, check_tls

RECONNECT_SECONDS = 0.5


class NodeClient:
    """Announces `host` at the controller at `address`, again and again while it is away.

    `commands` gives what the controller said since; `fileno` is readable when there is something.
    It does not try again once the controller will not have this process (a command says why).
    Raises ControllerError for TLS files that are no good.
    """

    def __init__(self, address: str, host: str, tls: Tls | None = None) -> None:
        if tls is not None:
            check_tls(tls)
        self.address = address
        self.host = host
        self._session = NodeSession(address, host, total_memory(), machine_id())
        self._thread: SessionThread[pb.NodeMessage, pb.NodeCommand] = SessionThread(
            self._session,
            lambda channel, messages: pb_grpc.ControllerStub(channel).Serve(messages),
            tls,
            RECONNECT_SECONDS,
            None,
        )

    def open(self) -> None:
        """Start connecting."""
        self._thread.start()

    def fileno(self) -> int:
        """Become readable when `commands` has something."""
        return self._thread.fileno()

    def commands(self) -> list[pb.NodeCommand]:
        """Take what the controller has said."""
        with self._thread.changed:
            self._thread.heard()
            return self._session.commands()

    def report(self, report: pb.NodeReport) -> None:
        """Send a report; one that finds no connection is forgotten."""
        with self._thread.changed:
            self._session.report(report)

    def close(self) -> None:
        """End the stream."""
        self._thread.close(patience=0.0)
