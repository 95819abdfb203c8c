"""Sources of a cluster's state for the web server."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.cluster_state import SwitchReader, cluster_state, missing_children
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.slots import slot_message
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.engine import UnknownJobError
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError
from hopsum.protocol.errors import OperationError

_T = TypeVar("_T")


class SourceError(OperationError):
    """The state of a cluster or a slot cannot be read."""


class StateSource(ABC):
    """A cluster, as the web server sees it. The methods raise SourceError."""

    @abstractmethod
    async def state(self) -> pb.ClusterState:
        """Return the current state."""

    @abstractmethod
    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return the contents of a slot of a switch, without values."""

    @abstractmethod
    async def missing(self, job: int) -> list[str]:
        """Return the missing children of a job's incomplete slots, in words."""

    def frames(self) -> Sequence[pb.ClusterState]:
        """Return the states that were recorded, the oldest first; empty: there is no recording."""
        return ()

    @property
    def live(self) -> bool:
        """Whether newer states may follow."""
        return True


class LiveCluster(StateSource):
    """The cluster of this process, on whose loop the web server runs."""

    def __init__(self, cluster: Cluster, switches: SwitchReader | None) -> None:
        self._cluster = cluster
        self._switches = switches

    async def state(self) -> pb.ClusterState:
        """Return the current state."""
        return await cluster_state(self._cluster, self._switches)

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return the contents of a slot of a switch; SourceError if it cannot be read."""
        if self._switches is None:
            raise SourceError("this controller drives no switches")
        try:
            return slot_message(await self._switches.inspect(switch, slot), lanes=False)
        except DriverError as error:
            raise SourceError(str(error)) from None

    async def missing(self, job: int) -> list[str]:
        """Return the missing children of a job's incomplete slots; SourceError if they cannot be
        read."""
        if self._switches is None:
            raise SourceError("this controller drives no switches")
        try:
            found = await missing_children(self._cluster, self._switches, job)
        except (DriverError, UnknownJobError) as error:
            raise SourceError(str(error)) from None
        return [each.sentence() for each in found]


class StartingCluster(StateSource):
    """A starting cluster that a web server in another thread shows already.

    Until `shows` is entered, and after it is left, every question ends with a SourceError.
    """

    def __init__(self) -> None:
        self._shown: tuple[LiveCluster, asyncio.AbstractEventLoop] | None = None
        self._why_not = "the network is starting"

    @contextlib.contextmanager
    def shows(self, cluster: LiveCluster) -> Iterator[None]:
        """Serve the state of a cluster of the running loop while the block runs."""
        self._shown = cluster, asyncio.get_running_loop()
        try:
            yield
        finally:
            self._shown, self._why_not = None, "the network is stopping"

    async def state(self) -> pb.ClusterState:
        """Return the current state; SourceError while there is none."""
        return await self._ask(lambda cluster: cluster.state())

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return the contents of a slot of a switch; SourceError if it cannot be read."""
        return await self._ask(lambda cluster: cluster.slot(switch, slot))

    async def missing(self, job: int) -> list[str]:
        """Return the missing children of a job's incomplete slots; SourceError if they cannot be
        read."""
        return await self._ask(lambda cluster: cluster.missing(job))

    async def _ask(self, question: Callable[[LiveCluster], Coroutine[Any, Any, _T]]) -> _T:
        """Query on the cluster's loop."""
        if self._shown is None:
            raise SourceError(self._why_not)
        cluster, loop = self._shown
        requested = asyncio.run_coroutine_threadsafe(question(cluster), loop)
        try:
            return await asyncio.wrap_future(requested)
        except asyncio.CancelledError:
            # Its loop has ended during the query, or the caller is gone.
            if self._shown is None:
                raise SourceError(self._why_not) from None
            raise


class RemoteCluster(StateSource):
    """The cluster of a remote controller, queried through its client."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    async def state(self) -> pb.ClusterState:
        """Return the current state; SourceError if the controller does not answer."""
        return await _asked(self._client.state)

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return the contents of a slot of a switch; SourceError if it cannot be read."""
        [found] = await _asked(lambda: self._client.slots(switch, slot, 1))
        return slot_message(found, lanes=False)

    async def missing(self, job: int) -> list[str]:
        """Return the missing children of a job's incomplete slots; SourceError if they cannot be
        read."""
        return [each.sentence() for each in await _asked(lambda: self._client.missing(job))]


async def _asked(question: Callable[[], _T]) -> _T:
    """Query in a thread, since the client blocks."""
    try:
        return await asyncio.to_thread(question)
    except ControllerError as error:
        raise SourceError(str(error)) from None
