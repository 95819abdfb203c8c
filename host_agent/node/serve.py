"""`hopsum-agent serve`: a host's agent for all jobs of a cluster, until it is stopped."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import replace

from hopsum.host_agent.io.port import FramePort
from hopsum.host_agent.node.bandwidth import (
    BandwidthError,
    InterfaceCounters,
    has_carrier,
    read_counters,
)
from hopsum.host_agent.node.client import NodeClient
from hopsum.host_agent.node.host import HostAgent
from hopsum.host_agent.node.real import Counters, HostLoop
from hopsum.protocol.channel import Tls


class NodeServer:
    """One host: attends the jobs that the controller names, and reports the load of its links.

    `processes`: see `HostLoop`.
    """

    def __init__(
        self,
        client: NodeClient,
        port: FramePort,
        counters: Counters,
        stop: int | None = None,
        tls: Tls | None = None,
        processes: str | None = None,
    ) -> None:
        self._client = client
        self._stop = stop
        watched = [] if stop is None else [stop]
        self._loop = HostLoop(port, client.host, client, counters, tls, watched, processes)

    @property
    def agent(self) -> HostAgent:
        """Its state machine."""
        return self._loop.agent

    def run(self) -> None:
        """Serve until the descriptor `stop` becomes readable.

        Raises ControllerError when the controller will not have this process.
        """
        raise_descriptor_limit()
        self._client.open()
        try:
            while self._stop is None or self._stop not in self._loop.turn():
                pass
        finally:
            self._loop.close()
            self._client.close()


def raise_descriptor_limit() -> None:
    """Raise the limit of open descriptors to the hard one: shared memories take many.

    The usual soft limit of 1,024 is for programs that call select(2), which takes none above it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def counters_of(interfaces: Mapping[int, str]) -> Counters:
    """Return the kernel's data on interfaces by port. They raise BandwidthError if all are gone."""

    def read(name: str, now: float) -> InterfaceCounters:
        try:
            return replace(read_counters(name, now), carrier=has_carrier(name))
        except BandwidthError:
            if not any(map(has_carrier, interfaces.values())):
                raise
            return InterfaceCounters(0, 0, now, carrier=False)

    return lambda now: {port: read(name, now) for port, name in interfaces.items()}
