"""A worker whose host is the root of trees of its job."""

from __future__ import annotations

from collections.abc import Sequence

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.codec import TREE_AT, Frames, by_number
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.root import Root
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network


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
        self._key = key
        self._roots: dict[int, Root] = {}
        """Of trees with their root here, which stay the same for the life of the job."""
        self.servers.adopt(plan, self.host, network, key)
        address = network.hosts[self.host].mac_bytes
        for tree in plan.trees:
            if tree.server == self.host:
                server = self.servers.at(plan.job, tree.tree)
                self._roots[tree.tree] = Root(self._streams[tree.tree], server, address)

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        if not len(frames) or frames.shape[1] <= TREE_AT:
            super().receive(frames, now)
            return
        groups = by_number(frames, TREE_AT, TREE_AT + 1)
        for tree, group in groups:
            if tree in self._roots:
                self._outputs[tree] += self._roots[tree].receive(group, now)
        for tree, group in groups:
            if tree not in self._roots:
                super().receive(group, now)
        self._release(now)

    # -- as flows

    def enter(self) -> list[int]:
        """Leave frames and timers to flows until `leave`; return their addresses (flow.h)."""
        flows = []
        for (tree, stream), calls in zip(self._streams.items(), self._calls_by_tree(), strict=True):
            root = self._roots.get(tree)
            flows += stream.enter(calls) if root is None else [root.enter(calls)]
        return flows

    def leave(self, now: float) -> int:
        """Take over what the flows have done; return the bytes that they have sent."""
        sent = super().leave(now)
        for tree, root in self._roots.items():
            sent_there, left = root.leave(now)
            self._outputs[tree] += left
            sent += sent_there
        return sent

    # -- epochs

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer epoch of the plan, see `Worker.adopt`; servers first."""
        self.servers.adopt(plan, self.host, self._network, self._key)
        super().adopt(plan, now)
        for tree, root in self._roots.items():
            self._outputs[tree] += root.adopt(now)

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
        down = [each for tree in self._roots for each in self._take_tree(tree)]
        up = super().take_output()
        return down + up if _bytes(down) <= _bytes(up) else up + down


def _bytes(batches: Sequence[Frames]) -> int:
    return sum([frames.size for frames in batches])
