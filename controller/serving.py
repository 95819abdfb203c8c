"""The controller as a long-running process: a network's switches, its jobs, and its agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from collectives.network import Network
from controller.cluster import Cluster
from controller.cluster_service import ClusterService
from controller.driver import Driver
from controller.manager import Manager
from controller.mending import mend
from controller.priorities import PriorityPolicy
from controller.rendezvous import announced
from controller.replanning import ReplanningPolicy
from controller.sharing import SharingPolicy
from protocol.channel import Tls, server_credentials
from protocol.wire import LANES_DEFAULT

READY_SECONDS = 120.0
"""So long the switches may take to hold new rules."""


@contextlib.asynccontextmanager
async def serve_cluster(
    network: Network,
    driver: Driver,
    address: str,
    *,
    lanes: int = LANES_DEFAULT,
    tls: Tls | None = None,
    book: Path | None = None,
    priorities: PriorityPolicy | None = None,
    replanning: ReplanningPolicy | None = None,
    sharing: SharingPolicy | None = None,
) -> AsyncIterator[tuple[Cluster, str]]:
    """Drive a network's switches and serve agents and people; gives the address they use.

    `book`: the journal of jobs; those that an earlier controller has left there go on.
    `priorities`: how jobs' levels follow from their progress. `replanning`: when plans are looked
    at again.
    `sharing`: what one job may hold of a switch. Raises DriverError or TimeoutError where the
    switches cannot be programmed, ServiceError, ControllerError for TLS files, JobError,
    JournalError, Unrecorded for the journal.
    """
    async with contextlib.AsyncExitStack() as stack:
        credentials = None if tls is None else server_credentials(tls)
        await stack.enter_async_context(driver)
        manager = Manager(network, lambda rules: driver.apply(rules, READY_SECONDS), driver)
        cluster = Cluster(
            manager, lanes, book, replanning=replanning, priorities=priorities, sharing=sharing
        )
        stack.push_async_callback(cluster.close)
        service = ClusterService(cluster)
        await cluster.restore()
        bound = await stack.enter_async_context(
            manager.service.serve(address, [service.add_to], credentials)
        )
        stack.enter_context(announced(bound))
        # Once more, and first: the end of agents' streams is not the end of their jobs.
        stack.push_async_callback(cluster.close)
        for work in (service.check(), mend(manager, driver)):
            task = asyncio.create_task(work)
            stack.callback(task.cancel)
        yield cluster, bound
