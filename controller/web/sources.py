"""Where the web server takes a cluster's state from."""

from __future__ import annotations

from typing import Protocol

from controller.api.cluster_state import SwitchReader, cluster_state
from controller.dataplane.driver import DriverError
from controller.dataplane.slots import slot_message
from controller.jobs.cluster import Cluster
from protocol import hopsum_pb2 as pb
from protocol.errors import OperationError


class StateError(OperationError):
    """The state of a cluster, or a slot, cannot be read; the message says why."""


class StateSource(Protocol):
    """A cluster, as the web server sees it. The methods raise StateError."""

    async def state(self) -> pb.ClusterState:
        """Return the present state."""

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return what a slot of a switch holds, without its values."""


class LiveCluster:
    """The cluster of this process, on whose loop the web server runs."""

    def __init__(self, cluster: Cluster, switches: SwitchReader | None) -> None:
        self._cluster = cluster
        self._switches = switches

    async def state(self) -> pb.ClusterState:
        """Return the present state."""
        return await cluster_state(self._cluster, self._switches)

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return what a slot of a switch holds; StateError if it cannot be read."""
        if self._switches is None:
            raise StateError("this controller drives no switches")
        try:
            return slot_message(await self._switches.inspect(switch, slot), lanes=False)
        except DriverError as error:
            raise StateError(str(error)) from None
