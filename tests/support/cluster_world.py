"""A cluster in one process: the controller's service, agents' processes as threads, TCP between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hopsum.cli.job_commands import make_submission
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.listening import at
from hopsum.controller.api.records import job_dict
from hopsum.controller.api.service import ControllerService
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ATTEND_LIMIT, ClusterSettings
from hopsum.controller.web.server import serve_web
from hopsum.controller.web.sources import LiveCluster
from hopsum.host_agent.interfaces import ONLY_PORT
from hopsum.host_agent.node.bandwidth import InterfaceCounters
from hopsum.host_agent.node.client import NodeClient
from hopsum.host_agent.node.serve import NodeServer
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError, Tls, server_credentials
from hopsum.protocol.web_address import WebAddress
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE, on_loopback, unique, until
from tests.support.manager import Manager, manage
from tests.support.memory_port import MemoryPort


def local(name: str, link_rate: float | None = None) -> Network:
    """A network whose hosts are reached on this machine, and by this test alone."""
    return on_loopback(load_network(name, link_rate=link_rate))


class World:
    """A controller in a thread, and agents' processes in others."""

    def __init__(
        self,
        folder: Path,
        name: str = "star:4",
        tls: Tls | None = None,
        grace: float = PATIENCE,
        link_rate: float | None = None,
        replanning: ReplanningPolicy | None = None,
        web: WebAddress | None = None,
        group: str | None = None,
        attend_limit: float = ATTEND_LIMIT,
    ) -> None:
        self.network = local(name, link_rate)
        self._replanning = replanning
        self._web = web
        self._group = group
        self._attend_limit = attend_limit
        self.url = ""
        self.journal = folder / "jobs"
        self._grace = grace
        self.address = f"unix:{folder}/controller" if tls is None else "localhost:0"
        self.refuse = False
        self._tls = tls
        self._agents: list[tuple[threading.Thread, int]] = []
        self.nodes: list[NodeServer] = []
        self.start()
        self.queries = ControllerClient(self.address)

    def start(self) -> None:
        """Start the controller."""
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._up.wait(PATIENCE)
        if self._tls is None:
            until(self._answers, "an answer of the controller")

    def _answers(self) -> bool:
        """Whether it answers: gRPC tries again only a second after a refused connection."""
        try:
            ControllerClient(self.address).jobs()
        except ControllerError:
            return False
        return True

    def stop(self) -> None:
        """Stop the controller; its jobs and the agents are left as they are."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)

    async def _install(self, rules: Mapping[str, SwitchRules]) -> None:
        if self.refuse:
            raise DriverError("s1", "it will not")

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        cluster = Cluster(
            self.network,
            self._install,
            ClusterSettings(
                journal=self.journal,
                replanning=self._replanning or ReplanningPolicy(),
                grace=self._grace,
                attend_limit=self._attend_limit,
            ),
        )
        self._manager = manage(cluster)
        service = ControllerService(cluster)
        await cluster.restore()
        credentials = None if self._tls is None else server_credentials(self._tls)
        async with contextlib.AsyncExitStack() as stack:
            self.address = await stack.enter_async_context(
                service.serve(at(self.address, credentials, group=self._group))
            )
            if self._web is not None:
                shown = serve_web(LiveCluster(cluster, None), self._web)
                self.url = await stack.enter_async_context(shown)
            self._up.set()
            await self._stop.wait()
            await cluster.close()

    def call(self, work: Callable[[Manager], Any]) -> None:
        """Let the manager do something, to its end."""

        async def call() -> None:
            done = work(self._manager)
            if asyncio.iscoroutine(done):
                await done

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE)

    def agent(self, host: str, tls: Tls | None = None) -> list[Exception]:
        """Start an agent's process; gives the list of what ends it."""
        ended: list[Exception] = []
        stop = os.eventfd(0, os.EFD_NONBLOCK)
        client = NodeClient(self.address, host, tls)
        port = MemoryPort.pair()[0]
        processes = f"@{unique(host)}"
        counters = lambda now: {ONLY_PORT: InterfaceCounters(0, 0, now)}  # noqa: E731
        node = NodeServer(client, port, counters, stop, tls, processes)
        self.nodes.append(node)

        def run() -> None:
            try:
                node.run()
            except ControllerError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._agents.append((thread, stop))
        return ended

    def agents(self, *hosts: str) -> None:
        """Start agents and wait until they are attached."""
        for host in hosts:
            self.agent(host)
        until(lambda: set(hosts) <= self.attached(), f"agents on {', '.join(hosts)}")

    def attached(self) -> set[str]:
        return {node.host for node in self.queries.nodes() if node.attached}

    def stop_agent(self, number: int) -> None:
        thread, stop = self._agents[number]
        os.eventfd_write(stop, 1)
        thread.join(PATIENCE)

    def state(self, name: str) -> str:
        return self.queries.job(name).state

    def exact(self, name: str) -> None:
        """Wait for the end of a job, which must be a good one."""
        until(lambda: self.state(name) not in GOING, f"the end of {name}")
        job = job_dict(self.queries.job(name))
        assert job["state"] == "finished", job["reason"]
        assert job["checked"] > 0
        assert job["wrong"] == 0

    def close(self) -> None:
        for number in range(len(self._agents)):
            self.stop_agent(number)
        self.stop()


def ring(name: str, workers: str, rounds: int = 3) -> pb.Submission:
    return make_submission(name, workers, elements=5000, rounds=rounds, algorithm="ring")


def in_network(world: World, name: str, workers: str, server: str) -> None:
    """A job that begins, and waits for switches that are not there."""
    world.queries.submit(make_submission(name, workers, server))
    until(lambda: world.state(name) == "running", f"the start of {name}")
