"""The controller as a long-running process: a network's switches, its jobs, and its agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from controller.api.cluster_service import ClusterService
from controller.api.rendezvous import announced
from controller.api.service import ControllerService
from controller.dataplane.driver import Driver
from controller.jobs.cluster import Cluster
from controller.jobs.failover import DownLinks, fail_over
from controller.jobs.manager import Manager
from controller.jobs.priorities import PriorityPolicy
from controller.jobs.replanning import ReplanningPolicy
from controller.jobs.sharing import SharingPolicy
from network.model import Network
from protocol.channel import Tls, server_credentials
from protocol.wire import HOPS_DEFAULT, LANES_DEFAULT

LOGGER = logging.getLogger("hopsum.serving")

READY_SECONDS = 120.0
"""So long the switches may take to hold new rules."""


@contextlib.asynccontextmanager
async def serve_cluster(
    network: Network,
    driver: Driver,
    address: str,
    *,
    lanes: int = LANES_DEFAULT,
    max_hops: int = HOPS_DEFAULT,
    tls: Tls | None = None,
    book: Path | None = None,
    priorities: PriorityPolicy | None = None,
    replanning: ReplanningPolicy | None = None,
    sharing: SharingPolicy | None = None,
    down_links: DownLinks | None = None,
) -> AsyncIterator[tuple[Cluster, str]]:
    """Drive a network's switches and serve agents and people; gives the address they use.

    `book`: the journal of jobs; those that an earlier controller has left there go on.
    `priorities`: how jobs' levels follow from their progress. `replanning`: when plans are looked
    at again. `sharing`: what one job may hold of a switch. `down_links`: where the state of links
    can be read. Switches that do not answer are planned around, at the start too. Raises
    DriverError or TimeoutError where the others cannot be programmed, ServiceError,
    ControllerError for TLS files, JobError, JournalError, Unrecorded for the journal.
    """
    async with contextlib.AsyncExitStack() as stack:
        credentials = None if tls is None else server_credentials(tls)
        await stack.enter_async_context(driver)
        manager = Manager(network, lambda rules: driver.apply(rules, READY_SECONDS))
        cluster = Cluster(
            manager,
            lanes,
            book,
            replanning=replanning,
            priorities=priorities,
            sharing=sharing,
            max_hops=max_hops,
        )
        stack.push_async_callback(cluster.close)
        service = ControllerService(
            manager.agents,
            manager.server_restarted,
            driver,
            manager.health,
            lambda number: cluster.why_waiting(cluster.book.find(number)),
        )
        cluster_service = ClusterService(cluster)
        reoptimize = replanning is not None and not replanning.live
        _run_beside(stack, fail_over(manager, driver, down_links, reoptimize))
        await cluster.restore()
        bound = await stack.enter_async_context(
            service.serve(address, [cluster_service.add_to], credentials)
        )
        stack.enter_context(announced(bound))
        # Once more, and first: the end of agents' streams is not the end of their jobs.
        stack.push_async_callback(cluster.close)
        _run_beside(stack, cluster_service.check())
        yield cluster, bound


def _run_beside(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run something for as long as the controller; what ends it is logged."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_end)
    stack.callback(task.cancel)


def _log_end(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        LOGGER.error("%s ended", task.get_coro(), exc_info=error)
