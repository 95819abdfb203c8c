"""Clusters that wait for jobs: the controller of switches that run, or a whole one in Mininet."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cli.experiment.description import Engine
from cli.experiment.pipelines import compile_pipeline, slots_of
from cli.experiment.supervision import Tell, keep_agents, keep_switches
from controller.api.serving import known_at, serve_cluster
from controller.dataplane.driver import Driver, SwitchTarget
from controller.dataplane.pipeline import Pipeline
from controller.jobs.cluster import Cluster
from controller.jobs.priorities import ONE_LEVEL, PriorityPolicy
from controller.jobs.replanning import ReplanningPolicy
from controller.jobs.sharing import SharingPolicy
from mininet_topos.addresses import grpc_address
from mininet_topos.emulation import Emulation
from network.model import Network
from planning.model.stack_depth import stack_depth
from protocol.channel import Tls
from protocol.wire import HOPS_DEFAULT

LOGGER = logging.getLogger("hopsum.cluster")

AGENT = Path(sys.executable).with_name("hopsum-agent")


def run_controller(
    network: Network,
    engine: Engine,
    lanes: int,
    address: str,
    tell: Tell,
    *,
    max_hops: int | None = None,
    tls: Tls | None = None,
    book: Path | None = None,
    priorities: PriorityPolicy | None = None,
    sharing: SharingPolicy | None = None,
) -> None:
    """Serve the cluster whose switches are those of `mn --custom`, until interrupted.

    Switch number n (from 1, in the network's order) has device id n (`mininet_topos.addresses`).
    """
    hops = stack_depth(network, lanes, max_hops)
    driver = Driver(
        [
            SwitchTarget(name, grpc_address(number), number)
            for number, name in enumerate(network.switches, start=1)
        ],
        compile_pipeline(engine, lanes, slots_of(network), hops),
    )

    async def serve() -> None:
        async with serve_cluster(
            network,
            driver,
            known_at(address, tls),
            lanes=lanes,
            max_hops=hops,
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
    max_hops: int | None = None,
) -> None:
    """Bring up a network in Mininet with an agent on every host, until interrupted.

    Under ONE_LEVEL the links have one queue too. Raises what the emulation raises.
    """

    async def serve(cluster: Cluster, address: str) -> None:
        tell(f"{network.name} is up, its controller at {address}")
        await _interrupted()

    hops = stack_depth(network, lanes, max_hops)
    pipeline = compile_pipeline(engine, lanes, slots_of(network), hops)
    levels = priorities != ONE_LEVEL
    with Emulation(network, engine=engine.value, priorities=levels) as emulation:
        work = beside_cluster(
            emulation,
            pipeline,
            lanes,
            tell,
            serve,
            max_hops=hops,
            priorities=priorities,
            sharing=sharing,
        )
        asyncio.run(work)


async def beside_cluster(
    emulation: Emulation,
    pipeline: Pipeline,
    lanes: int,
    tell: Tell,
    work: Callable[[Cluster, str], Coroutine[Any, Any, None]],
    *,
    max_hops: int = HOPS_DEFAULT,
    book: Path | None = None,
    priorities: PriorityPolicy | None = None,
    replanning: ReplanningPolicy | None = None,
    sharing: SharingPolicy | None = None,
) -> None:
    """Do some work, given the cluster and its address, while an emulation serves jobs.

    The controller and an agent on every host begin with it and end with it. Several clusters may
    follow each other in one emulation, if they have one `book` (as `serve_cluster`): the switches
    remember the jobs of all. A process of an agent or a switch that ends is started again
    (`supervision`); it costs its own jobs at most.
    """
    driver = Driver(
        [
            SwitchTarget(name, address, emulation.device_ids[name])
            for name, address in emulation.grpc_addresses.items()
        ],
        pipeline,
    )
    with emulation.temporary_folder() as folder:
        async with serve_cluster(
            emulation.network,
            driver,
            known_at(f"unix:{folder}/controller"),
            lanes=lanes,
            max_hops=max_hops,
            book=book,
            priorities=priorities,
            replanning=replanning,
            sharing=sharing,
            down_links=emulation.down_links,
            link_bytes=partial(_link_bytes, emulation),
        ) as (cluster, bound):
            await _first_of(
                asyncio.create_task(work(cluster, bound)),
                asyncio.create_task(
                    keep_agents(emulation, partial(_agent_command, emulation, bound), tell)
                ),
                asyncio.create_task(keep_switches(emulation, tell)),
            )


def _agent_command(emulation: Emulation, address: str, host: str) -> list[str]:
    interface = emulation.interface(host, emulation.network.access_switch(host))
    return [
        str(AGENT), "serve", "--controller", address, "--host", host, "--interface", interface,
    ]  # fmt: skip


def _link_bytes(emulation: Emulation) -> Mapping[tuple[str, str], int]:
    """What the links have carried; OSError where an interface or a namespace is gone."""
    try:
        return emulation.link_bytes()
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error


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
