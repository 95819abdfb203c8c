"""Hosts of a simulated job of which hosts sum parts beside the trees, or without any (002)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np

from collectives.algorithms.host_part import host_part_all_reduce
from collectives.decomposition import decompose
from collectives.execution import Execution
from collectives.plan import DataType, HostPart, JobPlan
from collectives.schedule import Schedule
from host_agent.segment import Tensor
from host_agent.server_set import ServerSet
from host_agent.worker import Worker
from host_agent.workload import Interval
from network.model import Network
from protocol.wire import Address
from simulation.coordination import Source
from simulation.members import earlier
from simulation.stream import BASE_PORT, StreamMember
from simulation.world import Frames

Cuts = Mapping[int, JobPlan]


class _PartStream:
    """One host in one topology of hosts; `first_port`: the first of as many as it has nodes."""

    def __init__(
        self, plan: JobPlan, part: HostPart, network: Network, host: str, first_port: int
    ) -> None:
        @cache
        def schedule(elements: int) -> Schedule:
            return host_part_all_reduce(part, plan.workers, elements)

        names = schedule(0).names
        addresses = {
            node: Address(network.hosts[name].mac_bytes, network.hosts[name].ip_bytes)
            for node, name in enumerate(names)
        }
        self.execution: Execution | None = None
        self._schedule = schedule
        self._node = names.index(host)
        self.stream = StreamMember(self._node, addresses, first_port=first_port)

    def begin(self, values: Tensor, now: float) -> None:
        """Sum `values` in place."""
        self.execution = Execution(self._schedule(len(values)), self._node, values)
        self.stream.start(self.execution, now)


class PartStreams:
    """One host in all topologies of hosts of a plan in which it has a part.

    `cuts` as of `MixedMember`; streams of a later one have other ports.
    """

    def __init__(
        self, plan: JobPlan, network: Network, host: str, cuts: Cuts | None = None
    ) -> None:
        self._plan = plan
        self._network = network
        self._host = host
        self._cuts = cuts or {}
        self._port = BASE_PORT
        self._streams: dict[int, _PartStream] = {}
        self._old: list[_PartStream] = []
        self._open()

    def _open(self) -> None:
        for place, (part, _, _) in enumerate(decompose(self._plan, 0)):
            if part is None:
                continue
            if self._host in part.hosts:
                stream = _PartStream(self._plan, part, self._network, self._host, self._port)
                self._streams[place] = stream
            self._port += len(part.hosts)

    def cross(self, number: int) -> JobPlan | None:
        """Before tensor `number`: another plan to cut by, None if it is the same as before."""
        cut = self._cuts.get(number)
        if cut is not None:
            # What they have sent may have to be sent again.
            self._old += self._streams.values()
            self._streams.clear()
            self._plan = cut
            self._open()
        return cut

    def _all(self) -> list[_PartStream]:
        return [*self._old, *self._streams.values()]

    def begin(self, values: Tensor, now: float) -> None:
        """Start summing this host's parts of a tensor in place."""
        for place, (_, start, stop) in enumerate(decompose(self._plan, len(values))):
            if place in self._streams:
                self._streams[place].begin(values[start:stop], now)

    @property
    def done(self) -> bool:
        """Whether no sum is under way."""
        streams = self._streams.values()
        return all(each.execution is None or each.execution.done for each in streams)

    @property
    def retransmissions(self) -> int:
        """Segments sent again."""
        return sum(each.stream.retransmissions for each in self._all())

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames in; each stream knows its own."""
        for each in self._all():
            each.stream.receive(frames, now)

    def tick(self, now: float) -> None:
        """Timers."""
        for each in self._all():
            each.stream.tick(now)

    def take_output(self) -> list[Frames]:
        """Frames to send."""
        return [frames for each in self._all() for frames in each.stream.take_output()]

    @property
    def deadline(self) -> float | None:
        """The next timer."""
        deadline = None
        for each in self._all():
            deadline = earlier(deadline, each.stream.deadline)
        return deadline


class MixedMember:
    """A worker whose tensors are summed in parts, all at once, and one after the other.

    `worker`: its side of the plan's trees, None if there are none. `cuts`: by the number of a
    tensor the plan by which it and those after it are cut.
    """

    def __init__(
        self,
        plan: JobPlan,
        network: Network,
        host: str,
        worker: Worker | None,
        source: Source,
        cuts: Cuts | None = None,
    ) -> None:
        self.source = source
        self.intervals: list[Interval] = []
        self._plan = plan
        self._worker = worker
        self._streams = PartStreams(plan, network, host, cuts)
        self._call: int | None = None
        self._name = ""
        self._values: Tensor | None = None
        self._started = 0.0
        self.advance(0.0)

    @property
    def done(self) -> bool:
        """Whether all is summed."""
        return self.source.over and self._values is None

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer epoch; what hosts sum stays as it is."""
        if self._worker is not None:
            self._worker.adopt(plan, now)

    def advance(self, now: float) -> None:
        """Finish the tensor in hand if it is complete, and start the next; raises JobFailed."""
        while True:
            if self._values is not None:
                if not self._complete():
                    return
                result, self._values = self._values, None
                self.intervals.append((self._started, now))
                self.source.finish(self._name, result, now)
            following = self.source.next(now)
            if following is None:
                return
            self._name, tensor = following
            self._begin(tensor, now)

    def _begin(self, tensor: Tensor, now: float) -> None:
        self._started = now
        cut = self._streams.cross(len(self.intervals))
        if cut is not None:
            self._plan = cut
            self.source.workload.cut_as(cut)
            if self._worker is not None:
                self._worker.cut_as(cut)
        values = self._values = np.array(tensor)
        if self._worker is not None:
            _, start, stop = decompose(self._plan, len(tensor))[0]
            self._call = self._worker.submit(tensor[start:stop], now, out=values[start:stop])
        self._streams.begin(values, now)

    def _complete(self) -> bool:
        if self._call is not None and self._worker is not None and self._worker.done(self._call):
            self._worker.result(self._call)
            self._call = None
        return self._call is None and self._streams.done

    @property
    def retransmissions(self) -> int:
        """Fragments and segments sent again."""
        fragments = 0 if self._worker is None else self._worker.statistics.retransmissions
        return fragments + self._streams.retransmissions

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames in; a tensor that is complete starts the next one."""
        if self._worker is not None:
            self._worker.receive(frames, now)
        self._streams.receive(frames, now)
        self.advance(now)

    def tick(self, now: float) -> None:
        """Timers."""
        if self._worker is not None:
            self._worker.tick(now)
        self._streams.tick(now)
        self.source.tick(now)
        self.advance(now)

    def take_output(self) -> list[Frames]:
        """Frames to send."""
        trees = [] if self._worker is None else self._worker.take_output()
        return trees + self._streams.take_output()

    @property
    def deadline(self) -> float | None:
        """The next timer of the worker, the streams or the source."""
        tree = None if self._worker is None else self._worker.deadline
        return earlier(earlier(tree, self._streams.deadline), self.source.deadline)


class AuxiliaryHost(ServerSet):
    """A host that is no worker: servers of trees, and a relay of what hosts sum.

    `tensors`: length and type of all, in the order in which the workers hand them in.
    """

    def __init__(
        self,
        plan: JobPlan,
        network: Network,
        host: str,
        tensors: Iterable[tuple[int, DataType]],
        cuts: Cuts | None = None,
    ) -> None:
        super().__init__()
        self._streams = PartStreams(plan, network, host, cuts)
        self._tensors = enumerate(tensors)
        self._next(0.0)

    def _next(self, now: float) -> None:
        """Start with the next tensor when this host is done with one."""
        while self._streams.done:
            following = next(self._tensors, None)
            if following is None:
                return
            number, (length, data_type) = following
            self._streams.cross(number)
            self._streams.begin(np.zeros(length, data_type.value), now)

    def receive(self, frames: Frames, now: float) -> None:
        """Take frames in."""
        super().receive(frames, now)
        self._streams.receive(frames, now)
        self._next(now)

    def tick(self, now: float) -> None:
        """Timers of streams."""
        self._streams.tick(now)
        self._next(now)

    @property
    def deadline(self) -> float | None:
        """The next timer of a stream."""
        return self._streams.deadline

    def take_output(self) -> list[Frames]:
        """The frames to send."""
        return super().take_output() + self._streams.take_output()
