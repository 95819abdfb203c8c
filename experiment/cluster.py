"""Clusters that wait for jobs: the controller of switches that run, or a whole one in Mininet."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from collectives.network import Network
from controller.cluster import Cluster
from controller.driver import Driver, SwitchTarget
from controller.nodes import REPORT_SECONDS
from controller.pipeline import Pipeline
from controller.priorities import ONE_LEVEL, PriorityPolicy
from controller.replanning import ReplanningPolicy
from controller.serving import serve_cluster
from controller.sharing import SharingPolicy
from controller.state import NetworkState, PortBytes, StateError
from experiment.description import Engine
from experiment.pipelines import compile_pipeline, slots_of
from experiment.result import RunFailed
from mininet_topos.addresses import grpc_address
from mininet_topos.emulation import Emulation
from protocol.channel import Tls

LOGGER = logging.getLogger("hopsum.cluster")

AGENT = Path(sys.executable).with_name("hopsum-agent")
WATCH_SECONDS = 0.5
END_SECONDS = 5.0

Tell = Callable[[str], None]


def run_controller(
    network: Network,
    engine: Engine,
    lanes: int,
    address: str,
    tell: Tell,
    *,
    tls: Tls | None = None,
    book: Path | None = None,
    priorities: PriorityPolicy | None = None,
    sharing: SharingPolicy | None = None,
) -> None:
    """Serve the cluster whose switches are those of `mn --custom`, until interrupted.

    Switch number n (from 1, in the network's order) has device id n (`mininet_topos.addresses`).
    """
    driver = Driver(
        [
            SwitchTarget(name, grpc_address(number), number)
            for number, name in enumerate(network.switches, start=1)
        ],
        compile_pipeline(engine, lanes, slots_of(network)),
    )

    async def serve() -> None:
        async with serve_cluster(
            network,
            driver,
            address,
            lanes=lanes,
            tls=tls,
            book=book,
            priorities=priorities,
            sharing=sharing,
        ) as (_, bound):
            tell(f"controller of {network.name} at {bound}")
            await _interrupted()

    asyncio.run(serve())


def run_emulated_cluster(
    network: Network,
    engine: Engine,
    lanes: int,
    tell: Tell,
    priorities: PriorityPolicy | None = None,
    sharing: SharingPolicy | None = None,
) -> None:
    """Bring up a network in Mininet with an agent on every host, until interrupted.

    Under ONE_LEVEL the links have one queue too. Raises what the emulation raises.
    """

    async def serve(cluster: Cluster, address: str) -> None:
        tell(f"{network.name} is up, its controller at {address}")
        await _interrupted()

    pipeline = compile_pipeline(engine, lanes, slots_of(network))
    levels = priorities != ONE_LEVEL
    with Emulation(network, engine=engine.value, priorities=levels) as emulation:
        work = beside_cluster(
            emulation, pipeline, lanes, tell, serve, priorities=priorities, sharing=sharing
        )
        asyncio.run(work)


async def beside_cluster(
    emulation: Emulation,
    pipeline: Pipeline,
    lanes: int,
    tell: Tell,
    work: Callable[[Cluster, str], Coroutine[Any, Any, None]],
    *,
    book: Path | None = None,
    priorities: PriorityPolicy | None = None,
    replanning: ReplanningPolicy | None = None,
    sharing: SharingPolicy | None = None,
) -> None:
    """Do some work, given the cluster and its address, while an emulation serves jobs.

    The controller and an agent on every host begin with it and end with it. Several clusters may
    follow each other in one emulation, if they have one `book` (as `serve_cluster`): the switches
    remember the jobs of all. An agent's process that is killed is started again. Raises RunFailed
    if one fails.
    """
    driver = Driver(
        [
            SwitchTarget(name, address, emulation.device_ids[name])
            for name, address in emulation.grpc_addresses.items()
        ],
        pipeline,
    )
    with tempfile.TemporaryDirectory(prefix="hopsum-") as folder:
        async with serve_cluster(
            emulation.network,
            driver,
            f"unix:{folder}/controller",
            lanes=lanes,
            book=book,
            priorities=priorities,
            replanning=replanning,
            sharing=sharing,
            down_links=emulation.down_links,
        ) as (cluster, bound):
            await _first_of(
                asyncio.create_task(work(cluster, bound)),
                asyncio.create_task(_keep_agents(emulation, bound, tell)),
                asyncio.create_task(_count_ports(emulation, cluster.nodes.state)),
            )


async def _keep_agents(emulation: Emulation, address: str, tell: Tell) -> None:
    network = emulation.network

    def start(host: str) -> None:
        interface = emulation.interface(host, network.access_switch(host))
        processes[host] = emulation.popen(
            host,
            [
                str(AGENT), "serve", "--controller", address, "--host", host,
                "--interface", interface,
            ],
        )  # fmt: skip

    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host in network.hosts:
            start(host)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for host, process in list(processes.items()):
                code = process.poll()
                if code is None:
                    continue
                if code > 0:
                    raise RunFailed(
                        f"agent on {host} ended with code {code}:\n{emulation.log_tail(host)}"
                    )
                tell(f"agent on {host} ended (code {code}); starting it again")
                start(host)
    finally:
        await asyncio.to_thread(_end, list(processes.values()))


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, and make those that do not."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + END_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _count_ports(emulation: Emulation, state: NetworkState) -> None:
    """Read the counters of the switches' ports every second (002: what links carry)."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        counted = emulation.link_bytes()
        now = time.monotonic()
        for name in emulation.network.switches:
            ports = [
                PortBytes(peer, counted[name, peer], counted[peer, name])
                for peer in emulation.network.ports(name).values()
            ]
            try:
                state.count(name, ports, now)
            except StateError as error:
                # A burst may be above a link's rate; the next reading is taken again.
                LOGGER.warning("%s", error)


async def _interrupted() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    """Return, or raise, with the first of the tasks that ends; the others are cancelled."""
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
