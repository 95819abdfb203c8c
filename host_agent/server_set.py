"""The servers of one host, with demultiplexing of packets by job and tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.codec import JOB_START, TREE_AT, Frames, by_number
from hopsum.host_agent.server import AnsweringMachine, Server
from hopsum.network.model import Network


class ServerSet(AnsweringMachine):
    """Servers of several jobs and trees, with the interface of one."""

    def __init__(self, servers: Iterable[Server] = ()) -> None:
        self._servers: dict[int, Server] = {}
        self.foreign = 0
        """Number of frames of jobs and trees that are not here."""
        for server in servers:
            self.add(server)

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    def add(self, server: Server) -> None:
        """Add a server; it replaces one of the same job and tree."""
        self._servers[server.plan.job << 8 | server.tree.tree] = server

    def adopt(self, plan: JobPlan, host: str, network: Network, key: bytes | None = None) -> None:
        """Follow a plan: servers of trees that stay at this host continue, those of new ones start.

        `key`: of a plan with integrity.
        """
        here = [tree.tree for tree in plan.trees if tree.server == host]
        kept = {server.tree.tree: server for server in self if server.plan.job == plan.job}
        self.remove(plan.job)
        for tree in here:
            server = kept.get(tree)
            if server is None:
                server = Server(plan, tree, network, key)
            else:
                server.adopt(plan)
            self.add(server)

    def at(self, job: int, tree: int) -> Server:
        """Return the server of a tree."""
        return self._servers[job << 8 | tree]

    def remove(self, job: int) -> None:
        """Remove a job's servers."""
        for key in [key for key in self._servers if key >> 8 == job]:
            del self._servers[key]

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of results, see `Server.mark`."""
        for server in self:
            server.mark(tos)

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        if frames.shape[1] <= TREE_AT:
            self.foreign += len(frames)
            return
        if not len(frames):
            return
        # The numbers of job and tree follow each other.
        for key, of_tree in by_number(frames, JOB_START, TREE_AT + 1):
            server = self._servers.get(key)
            if server is None:
                self.foreign += len(of_tree)
            else:
                server.receive(of_tree, now)

    def enter(self) -> list[int]:
        """Leave frames to flows until `leave`; return their addresses (flow.h)."""
        return [flow for server in self for flow in server.enter()]

    def leave(self, now: float) -> int:
        """Take over what the flows have done; return the bytes that they have sent."""
        return sum([server.leave(now) for server in self])

    def take_output(self) -> list[Frames]:
        """Return the frames to send; each batch has one length."""
        return [batch for server in self for batch in server.take_output()]
