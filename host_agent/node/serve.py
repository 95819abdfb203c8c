"""`hopsum-agent serve`: a host's part in all jobs of a cluster, until it is stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from host_agent.io.controller_client import ControllerClient
from host_agent.node.bandwidth import Counted, read_counters, used_between
from host_agent.node.client import NodeClient
from host_agent.node.members import Members
from packet_io.port import FramePort
from protocol import hopsum_pb2 as pb
from protocol.channel import ControllerError, Tls

LOGGER = logging.getLogger("hopsum-agent")

Counters = Callable[[float], Counted]
"""The counters of the host's interface at a time (s)."""


class NodeServer:
    """One host: attends the jobs that the controller names, and reports how its links fare."""

    def __init__(
        self,
        client: NodeClient,
        port: FramePort,
        counters: Counters,
        stop: int | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._client = client
        self._counters = counters
        self._tls = tls
        self._stop = stop
        watched = [client.fileno()] + ([] if stop is None else [stop])
        self.members = Members(port, watched)
        self._report_seconds: float | None = None
        self._next_report = 0.0
        self._links: dict[str, float] = {}
        self._counted: Counted | None = None

    def run(self) -> None:
        """Serve until the descriptor `stop` becomes readable.

        Raises ControllerError when the controller will not have this process.
        """
        self._client.open()
        try:
            while True:
                ready = self.members.turn(self._patience())
                if self._stop is not None and self._stop in ready:
                    return
                if self._client.fileno() in ready:
                    for command in self._client.commands():
                        self._obey(command)
                self._report()
        finally:
            self.members.close()
            self._client.close()

    def _patience(self) -> float | None:
        if self._report_seconds is None:
            return None
        return max(0.0, self._next_report - time.monotonic())

    def _obey(self, command: pb.NodeCommand) -> None:
        match command.WhichOneof("message"):
            case "welcome":
                self._report_seconds = command.welcome.report_seconds
                self._links = {link.peer: link.rate for link in command.welcome.links}
                self._counted = None
                LOGGER.info("attached to the controller at %s", self._client.address)
            case "refused":
                raise ControllerError(f"the controller refused: {command.refused.reason}")
            case "report_refused":
                LOGGER.warning("report not used: %s", command.report_refused.reason)
            case "attend":
                self._attend(command.attend.job)
            case "leave":
                if command.leave.job in self.members.members:
                    LOGGER.info("leaves job %d: %s", command.leave.job, command.leave.reason)
                self.members.leave(command.leave.job)
            case "priority":
                self.members.set_level(command.priority.job, command.priority.level)

    def _attend(self, job: int) -> None:
        if job in self.members.members:
            return
        LOGGER.info("attends job %d", job)
        client = ControllerClient(self._client.address, job, self._client.host, tls=self._tls)
        self.members.join(client)

    def _report(self) -> None:
        now = time.monotonic()
        if self._report_seconds is None or now < self._next_report:
            return
        self._next_report = now + self._report_seconds
        report = pb.NodeReport()
        counted = self._counters(now)
        if self._counted is not None and counted.at > self._counted.at:
            for peer, rate in self._links.items():
                used = used_between(self._counted, counted, rate)
                report.interfaces.add(
                    peer=peer,
                    sent=used.sent,
                    received=used.received,
                    free_sent=used.free_sent,
                    free_received=used.free_received,
                )
        self._counted = counted
        for member in self.members.members.values():
            report.jobs.add(
                job=member.job,
                round=member.round,
                elements=member.elements,
                sent_bytes=self.members.traffic.sent_bytes(member.job) + member.sent_bytes,
            )
        self._client.report(report)


def counters_of(interface: str) -> Counters:
    """The kernel's counters of an interface."""
    return lambda now: read_counters(interface, now)
