"""Port counters of switches, read every second where possible ([002][])."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from hopsum.controller import clock
from hopsum.controller.telemetry.nodes import REPORT_SECONDS
from hopsum.controller.telemetry.state import NetworkState, PortBytes, ReportError
from hopsum.network.model import Network

LOGGER = logging.getLogger("hopsum.cluster")

LinkBytes = Callable[[], Mapping[tuple[str, str], int]]
"""Returns the bytes carried by every link, by direction; may raise OSError."""


async def count_ports(network: Network, link_bytes: LinkBytes, state: NetworkState) -> None:
    """Update the network's state from port counters, forever."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        try:
            counted = link_bytes()
        except OSError as error:
            # An interface or a host's namespace is gone.
            LOGGER.warning("the counters of links cannot be read: %s", error)
            continue
        now = clock.now()
        for name in network.switches:
            ports = [
                PortBytes(peer, counted[name, peer], counted[peer, name])
                for peer in network.ports(name).values()
            ]
            try:
                state.count(name, ports, now)
            except ReportError as error:
                # A burst may be above a link's rate; the next reading is taken again.
                LOGGER.warning("%s", error)
