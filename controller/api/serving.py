"""The controller as a long-running process: a network's switches, its jobs, and its agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hopsum.controller.api.callers import fixed_caller
from hopsum.controller.api.listening import AddTo, Listen, at
from hopsum.controller.api.rendezvous import announced
from hopsum.controller.api.service import ControllerService, SetLink
from hopsum.controller.background import log_defect
from hopsum.controller.dataplane.driver import Driver
from hopsum.controller.dataplane.rules import losses_on
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.journal import journal_of
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.telemetry.health import Element
from hopsum.controller.telemetry.port_counts import LinkBytes, count_ports
from hopsum.network.model import Network
from hopsum.protocol.channel import Tls, server_credentials

LOGGER = logging.getLogger("hopsum.serving")

READY_SECONDS = 120.0
"""Timeout for installing rules."""
LINK_SECONDS = 0.1
"""Polling interval of link states that nobody reports."""

LinkStates = Callable[[], Mapping[Element, bool]]
"""Returns whether links are up, where it is known."""


def listen_and_publish(address: str, tls: Tls | None = None, *, group: str | None = None) -> Listen:
    """Listen as `at` does, and publish the address to this user's commands.

    With TLS but no authority callers have no certificates: every caller is an operator.
    Raises ControllerError for TLS files; entering its block raises ServiceError.
    """
    identify = fixed_caller() if tls is not None and tls.authority is None else None
    credentials = None if tls is None else server_credentials(tls)
    listen = at(address, credentials, group=group, identify=identify)

    @contextlib.asynccontextmanager
    async def listen_and_publish(services: Iterable[AddTo]) -> AsyncIterator[str]:
        async with listen(services) as bound:
            with announced(bound):
                yield bound

    return listen_and_publish


@contextlib.asynccontextmanager
async def serve_cluster(
    network: Network,
    driver: Driver,
    listen: Listen,
    settings: ClusterSettings,
    *,
    other_links: LinkStates | None = None,
    link_bytes: LinkBytes | None = None,
    set_link: SetLink | None = None,
    date: Callable[[], float] = time.time,
    new_key: Callable[[], bytes] = secrets.token_bytes,
) -> AsyncIterator[tuple[Cluster, str]]:
    """Drive a network's switches and serve agents and users; yield their address.

    Jobs that an earlier controller has left in the journal continue. `other_links`: whether links
    are up of which neither switches nor agents report the state. `link_bytes`: where counters of
    links can be read. `set_link`: cuts and restores links. `date`: seconds since 1970. `new_key`:
    of a job with integrity. Switches that do not answer are planned around, at the start too.
    Raises DriverError or TimeoutError where the others cannot be programmed, JobError,
    JournalError, UnrecordedError for the journal, which one controller owns at a time, and what
    `listen` raises.
    """
    async with contextlib.AsyncExitStack() as stack:
        journal = journal_of(settings.journal)
        if journal is not None:
            stack.enter_context(journal.owned())
        cluster = Cluster(
            network,
            lambda rules: driver.apply(rules, READY_SECONDS),
            replace(settings, journal=journal),
            losses=losses_on(network, settings.loss),
            date=date,
            new_key=new_key,
        )
        driver.history = cluster.jobs.history
        driver.changed = lambda switch: cluster.switch_changed(
            switch, driver.reachable(switch), driver.ports(switch)
        )
        await stack.enter_async_context(driver)
        stack.push_async_callback(cluster.close)
        service = ControllerService(cluster, driver, set_link)
        if other_links is not None:
            _run_in_background(stack, _watch_links(cluster, other_links))
        await cluster.restore()
        bound = await stack.enter_async_context(service.serve(listen))
        # Once more, and first: the end of agents' streams is not the end of their jobs.
        stack.push_async_callback(cluster.close)
        if link_bytes is not None:
            _run_in_background(stack, count_ports(network, link_bytes, cluster.nodes.state))
        yield cluster, bound


async def _watch_links(cluster: Cluster, states: LinkStates) -> None:
    """Report the state of links to a cluster when it has changed, forever."""
    known: Mapping[Element, bool] = {}
    while True:
        if (links := states()) != known:
            known = dict(links)
            cluster.links_changed(known)
        await asyncio.sleep(LINK_SECONDS)


def _run_in_background(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine for the controller's lifetime; log the error that ends it."""
    task = asyncio.create_task(work)
    task.add_done_callback(log_defect)
    stack.callback(task.cancel)
