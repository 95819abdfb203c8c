"""Clusters for jobs: a controller of running switches, or a whole cluster in Mininet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hopsum.collectives.choices import Engine
from hopsum.controller.api.listening import Listen
from hopsum.controller.api.serving import listen_and_publish, serve_cluster
from hopsum.controller.dataplane.connection import open_channel, over_tls
from hopsum.controller.dataplane.driver import ELECTION_ID, Driver, SwitchTarget
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.ha.election import Election
from hopsum.controller.ha.etcd import Etcd, EtcdError
from hopsum.controller.ha.etcd_journal import EtcdJournal
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.journal import UnrecordedError
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.event_loop import interruption
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.session import RunningCluster
from hopsum.experiment.supervision import Notify, keep_agents, keep_switches
from hopsum.mininet_topos.addresses import grpc_address
from hopsum.mininet_topos.bmv2_links import Bmv2Links
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.failures import EmulationError
from hopsum.network.model import Network
from hopsum.protocol.channel import Tls
from hopsum.protocol.errors import OperationError
from hopsum.protocol.web_address import WebAddress

LOGGER = logging.getLogger("hopsum.cluster")


def switch_drivers(
    network: Network,
    engine: Engine,
    settings: ClusterSettings,
    addresses: Mapping[str, str],
    bmv2: Collection[str],
    tls: Tls | None,
) -> Callable[[int], Driver]:
    """Return a factory of drivers of a cluster's switches, by election id.

    Switch number n (from 1, in the network's order) has device id n. `addresses`: by name; empty:
    where `mn --custom` puts them (`hopsum.mininet_topos.addresses`). `bmv2`: the switches that run
    BMv2; the others run `engine`. `tls`: files for switches at TCP addresses. Raises what
    `pipeline_for` raises.
    """
    targets = [
        SwitchTarget(
            name,
            addresses.get(name) or grpc_address(number),
            number,
            pipeline_for(network, Engine.BMV2, settings) if name in bmv2 else None,
        )
        for number, name in enumerate(network.switches, start=1)
    ]
    pipeline = pipeline_for(network, engine, settings)
    connect = open_channel if tls is None else over_tls(tls)
    return lambda election_id: Driver(targets, pipeline, election_id=election_id, connect=connect)


def run_controller(
    network: Network,
    settings: ClusterSettings,
    driver_of: Callable[[int], Driver],
    listen: Listen,
    notify: Notify,
    web: WebAddress | None = None,
    election: Election | None = None,
) -> None:
    """Serve a cluster of running switches until interrupted.

    `driver_of`: makes the switches' driver for an election id. With an `election` the jobs are kept
    in its etcd, and this controller serves while it leads.
    """
    with dashboard_of(web, notify) as show:

        async def serve(
            settings: ClusterSettings, election_id: int, until: Callable[[], Awaitable[object]]
        ) -> None:
            driver = driver_of(election_id)
            async with serve_cluster(network, driver, listen, settings) as (cluster, bound):
                with show(cluster, driver):
                    notify(f"controller of {network.name} at {bound}")
                    await until()

        async def serve_terms(election: Election) -> None:
            while True:
                async with election.lead() as leadership:
                    journal = EtcdJournal(Etcd(election.address), leadership)
                    led = replace(settings, journal=journal)
                    try:
                        await serve(led, leadership.election_id, leadership.lost.wait)
                        notify(f"no longer leader: {leadership.why}")
                    except (EtcdError, UnrecordedError) as error:
                        notify(f"cannot become leader: {error}")

        async def serve_until_interrupted() -> None:
            if election is None:
                await serve(settings, ELECTION_ID, _interrupted)
            else:
                await _first_of(
                    asyncio.create_task(serve_terms(election)),
                    asyncio.create_task(_interrupted()),
                )

        asyncio.run(serve_until_interrupted())


def run_emulated_cluster(
    network: Network,
    engine: Engine,
    settings: ClusterSettings,
    notify: Notify,
    web: WebAddress | None = None,
    pcap: Path | None = None,
    trace: Sequence[str] = (),
) -> None:
    """Run a network in Mininet with an agent on every host until interrupted.

    `pcap`: folder for capture files of the switches' ports; `trace`: see `Emulation`. Raises the
    emulation's errors.
    """

    pipeline = pipeline_for(network, engine, settings)
    with (
        dashboard_of(web, notify) as show,
        Emulation(
            network, engine=engine.value, pcap=pcap, trace=trace, progress=notify
        ) as emulation,
    ):

        async def serve(running: RunningCluster) -> None:
            with show(running.cluster, running.driver):
                notify(f"{network.name} is up, its controller at {running.address}")
                notify(
                    "submit jobs from another terminal (`hopsum submit`); Ctrl-C ends the cluster"
                )
                await _interrupted()

        asyncio.run(with_running_cluster(emulation, pipeline, settings, notify, serve))


@contextlib.contextmanager
def dashboard_of(
    web: WebAddress | None, notify: Notify
) -> Iterator[Callable[[Cluster, Driver], AbstractContextManager[None]]]:
    """Serve dashboard and metrics while the block runs, if requested.

    The page says that the network is starting until it receives a cluster by `with show(cluster,
    driver)`, on the cluster's loop. Raises WebError before any part of the network is started.
    """
    if web is None:
        yield lambda cluster, driver: contextlib.nullcontext()
        return
    from hopsum.controller.web.server import web_thread
    from hopsum.controller.web.sources import LiveCluster, StartingCluster

    source = StartingCluster()
    with web_thread(source, web) as url:
        notify(f"dashboard at {url}")
        yield lambda cluster, driver: source.shows(LiveCluster(cluster, driver))


async def with_running_cluster(
    emulation: Emulation,
    pipeline: Pipeline,
    settings: ClusterSettings,
    notify: Notify,
    work: Callable[[RunningCluster], Coroutine[Any, Any, None]],
    *,
    hosts: Iterable[str] | None = None,
    packet_io: str = "fast",
) -> None:
    """Run some work while an emulation serves jobs.

    The controller and the agents on hosts (None: on every one) start and end with it. Several
    clusters may follow each other in one emulation if they share a journal, since the switches keep
    the state of all their jobs. A process of an agent or a switch that ends is restarted
    (`supervision`); at most its own jobs fail.
    """
    network = emulation.network
    driver = Driver(
        [
            SwitchTarget(name, address, emulation.device_ids[name])
            for name, address in emulation.grpc_addresses.items()
        ],
        pipeline,
    )
    with emulation.temporary_folder() as folder:
        async with serve_cluster(
            network,
            driver,
            listen_and_publish(f"unix:{folder}/controller"),
            settings,
            # Other errors are reported where they occur.
            other_links=Bmv2Links(emulation).states if emulation.engine == Engine.BMV2 else None,
            link_bytes=partial(_link_bytes, emulation),
            set_link=partial(_set_link, emulation),
        ) as (cluster, bound):
            running = RunningCluster(cluster, driver, emulation.link_bytes, bound)
            arguments = partial(_agent_arguments, emulation, bound, packet_io)
            named = tuple(network.hosts if hosts is None else hosts)
            await _first_of(
                asyncio.create_task(work(running)),
                asyncio.create_task(keep_agents(emulation, named, arguments, notify)),
                asyncio.create_task(keep_switches(emulation, notify)),
            )


def _agent_arguments(emulation: Emulation, address: str, packet_io: str, host: str) -> list[str]:
    network = emulation.network
    home = network.access_switch(host)
    links = {network.port(host, home): home}
    interfaces = [emulation.interface(host, home)]
    if len(network.ports(host)) > 1:
        links |= network.ports(host)  # the first stays so: frames of no tree leave there
        interfaces = [f"{port}@{emulation.interface(host, at)}" for port, at in links.items()]
    return [
        *("serve", "--controller", address, "--host", host),
        *(part for name in interfaces for part in ("--interface", name)),
        *("--packet-io", packet_io),
    ]  # fmt: skip


def _link_bytes(emulation: Emulation) -> Mapping[tuple[str, str], int]:
    """Return the counters of links; OSError if an interface or namespace is gone."""
    try:
        return emulation.link_bytes()
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error


def _set_link(emulation: Emulation, u: str, v: str, up: bool) -> None:
    """Cut or restore a link. Raises OperationError."""
    try:
        emulation.set_link(u, v, up)
    except EmulationError as error:
        raise OperationError(str(error)) from None


async def _interrupted() -> None:
    with interruption() as stopped:
        await stopped.wait()


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    """Return the result, or raise the error, of the first task that ends; cancel the others.

    Each has ended before the next one is cancelled, even if this coroutine is cancelled.
    """
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
            await asyncio.wait([task])
    for task in tasks:
        if task not in running:
            task.result()
