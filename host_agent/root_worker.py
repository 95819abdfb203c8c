"""A worker whose host is the root of trees of its job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.operation import Ranges
from hopsum.collectives.plan import JobPlan, TreePlan
from hopsum.host_agent.bare_frames import without_lanes
from hopsum.host_agent.codec import (
    FLAGS_AT,
    STACK_START,
    TREE_AT,
    Frames,
    by_tree,
    children_of,
    flags_of,
    kinds_of,
    some,
    weights_of,
    workers_of,
)
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.segment import Remark, Tensor
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import HOP_BYTES, Flag, Kind, Reduction

_MAC = slice(0, 6)
"""A frame's destination."""


class RootWorker(Worker):
    """Worker number `index` of a job, and the servers of the trees that have their root here.

    Its contributions to these trees are handed to the servers, and their results to it, at once and
    as they are: with lanes, even where the wire has none. So a reduction to the root leaves the sum
    with this worker alone, and a broadcast takes its values from it. Nothing of these trees that
    comes from the network is for the worker.
    """

    def __init__(
        self,
        plan: JobPlan,
        index: int,
        network: Network,
        options: WorkerOptions | None = None,
        key: bytes | None = None,
    ) -> None:
        """`key`: for a plan with integrity."""
        super().__init__(plan, index, network, options, key)
        self.servers = ServerSet()
        self.servers.adopt(plan, self.host, network, key)
        self._key = key
        self._address = network.hosts[self.host].mac_bytes
        self._down: list[Frames] = []
        """Results to send."""
        self._find_roots()

    def _has_server(self, tree: TreePlan) -> bool:
        """Return whether a tree's server is part of this worker."""
        return tree.server == self.host

    def _find_roots(self) -> None:
        own = self.plan.workers.index(self.host)
        self._child = {
            tree.tree: tree.up[own][0].child for tree in self.plan.trees if tree.server == self.host
        }
        """This worker's child number at the server of each tree with its root here."""
        self._roots = [(tree, self.servers.at(self.plan.job, tree)) for tree in self._child]

    def submit(
        self,
        tensor: Tensor,
        now: float,
        *,
        out: Tensor | None = None,
        name: str | None = None,
        reduction: Reduction | None = None,
        remark: Remark | None = None,
        ranges: Ranges | None = None,
    ) -> int:
        """Start summing a tensor, see `Worker.submit`."""
        number = super().submit(
            tensor, now, out=out, name=name, reduction=reduction, remark=remark, ranges=ranges
        )
        self._hand_over(now)
        return number

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        if not len(frames) or frames.shape[1] <= TREE_AT:
            super().receive(frames, now)
            return
        groups = by_tree(frames)
        for tree, group in groups:
            if tree in self._child:
                ours = self._from_others(tree, group)
                self.statistics.foreign += len(group) - len(ours)
                self.servers.receive(ours, now)
        for tree, group in groups:
            if tree not in self._child:
                super().receive(group, now)
        self._hand_over(now)

    def _from_others(self, tree: int, frames: Frames) -> Frames:
        """Return the frames of a tree with its root here but those that claim this worker's part.

        That part of a sum comes from this host alone. Totals of all workers do too: none are handed
        over to roots.
        """
        if frames.shape[1] < STACK_START + HOP_BYTES:
            return frames
        ours = children_of(frames) == self._child[tree]
        flags = set(frames[:, FLAGS_AT].tobytes())
        if not some(ours) and not any(each & Flag.BYPASS for each in flags):
            return frames
        own = workers_of(frames) == self.plan.workers.index(self.host)
        total = weights_of(frames) == len(self.plan.workers)
        bypasses = (flags_of(frames) & Flag.BYPASS) != 0
        claims: NDArray[np.bool_] = kinds_of(frames) == Kind.CONTRIBUTION
        claims &= np.where(bypasses, own | total, ours)
        return frames[~claims]

    # -- as flows

    def enter(self) -> list[int]:
        """Leave ordinary frames to flows until `leave`; return their addresses (flow.h).

        There are none of trees with their root here.
        """
        flows = []
        for (tree, stream), calls in zip(self._streams.items(), self._calls_by_tree(), strict=True):
            if tree not in self._child:
                flows += stream.enter(calls)
        return flows

    def leave(self, now: float) -> int:
        """Take over what the flows have done; return the bytes that they have sent."""
        sent = super().leave(now)
        self._hand_over(now)
        return sent

    # -- time

    def tick(self, now: float) -> None:
        """Do what is due: send again, or give up (`failure`)."""
        super().tick(now)
        self._hand_over(now)

    def resume(self, now: float) -> None:
        """Send what is in flight again at once: what the job has waited for is back."""
        super().resume(now)
        self._hand_over(now)

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer epoch of the plan, see `Worker.adopt`; servers first."""
        self.servers.adopt(plan, self.host, self._network, self._key)
        super().adopt(plan, now)
        self._find_roots()
        self._hand_over(now)

    def mark(self, tos: int) -> None:
        """Give frames another IP ToS byte from now on."""
        super().mark(tos)
        self.servers.mark(tos)

    @property
    def deferrable(self) -> float:
        """0: other workers wait for what comes for the servers."""
        return 0

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length.

        Contributions and results are of different trees. The fewer bytes go first: often they have
        no lanes, and let other hosts send while this one's link is busy with the rest.
        """
        down, up = without_lanes(self._down, self.plan.lanes), super().take_output()
        self._down.clear()
        return down + up if _bytes(down) <= _bytes(up) else up + down

    def _hand_over(self, now: float) -> None:
        """Pass frames between worker and servers until there are none left."""
        waiting = True
        while waiting:
            waiting = False
            for tree, server in self._roots:
                if self._outputs[tree]:
                    for frames in self._take_tree(tree):
                        server.receive_whole(frames, now)
                for frames in server.take_whole():
                    waiting = True
                    self._deliver(frames, now)

    def _deliver(self, frames: Frames, now: float) -> None:
        """Take what a server sends to this worker or to all, and send on what is for others."""
        to = frames[0, _MAC].tobytes()
        if to != self._address:
            self._down.append(frames)
        if to == self._address or to[0] & 1:
            self._receive_tree(int(frames[0, TREE_AT]), frames, now, internal=True)


def _bytes(batches: Sequence[Frames]) -> int:
    return sum([frames.size for frames in batches])
