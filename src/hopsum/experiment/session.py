"""An experiment's job in a running cluster, in either world."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToDict

from hopsum.controller.dataplane.driver import Driver, State
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.experiment.prepare import PreparedExperiment
from hopsum.experiment.result import DirectedLink, RunFailed, RunMeasurement
from hopsum.host_agent.workload import (
    Verdict,
    intervals_from,
    reduce_seconds,
    verdict_from,
)
from hopsum.protocol import hopsum_pb2 as pb

if TYPE_CHECKING:
    from hopsum.controller.web.recording import Recording

LOGGER = logging.getLogger("hopsum.run")
POLL_SECONDS = 0.1
ATTACH_SECONDS = 120.0
"""Timeout for agents to start, in seconds."""

Progress = Callable[[int, int], None]
"""Called with the tensors summed so far and their total."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


@dataclass
class RunningCluster:
    """A running cluster. `link_bytes`: bytes on its links, by direction.

    `address`: of its controller. `notes`: messages about its processes, for display.
    """

    cluster: Cluster
    driver: Driver
    link_bytes: Callable[[], Mapping[DirectedLink, int]]
    address: str
    notes: list[str] = field(default_factory=list)


async def run_job(
    running: RunningCluster,
    prepared: PreparedExperiment,
    progress: Progress,
    recording: Recording | None = None,
) -> RunMeasurement:
    """Submit an experiment's job, follow it to its end and measure; jobs may run in sequence.

    The cluster's states go to `recording`. Raises RunFailed for a job that fails or exceeds the
    limit, and the errors of `Cluster.submit`.
    """
    if recording is None:
        return await _run_job(running, prepared, progress)
    from hopsum.controller.web.recording import record
    from hopsum.controller.web.sources import LiveCluster

    source = LiveCluster(running.cluster, running.driver)
    task = asyncio.create_task(record(source, recording), name="record")
    try:
        return await _run_job(running, prepared, progress)
    finally:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            LOGGER.error("the recording stopped early: %s: %s", type(ended).__name__, ended)
        recording.add(await source.state())


async def _run_job(
    running: RunningCluster, prepared: PreparedExperiment, progress: Progress
) -> RunMeasurement:
    cluster, limit = running.cluster, prepared.experiment.limit
    await wait_for_agents(running, prepared.hosts)
    before = running.link_bytes()
    job = await cluster.submit(prepared.job)
    try:
        async with asyncio.timeout(limit):
            await _follow(cluster, job, prepared, progress)
    except TimeoutError:
        why = cluster.engine.why_waiting(job)
        await cluster.cancel(job, "it exceeded the time limit")
        raise RunFailed(
            f"not done after {limit:g} s: {job.round} tensors are summed"
            f"{f'; {why}' if why else ''}; all-reduce was predicted to take "
            f"{prepared.predicted.seconds:.3g} s; raise --limit to allow more"
        ) from None
    if job.state is not JobState.FINISHED:
        raise RunFailed("\n".join([f"the job {job.state}: {job.reason}", *running.notes]))
    after = await _settled(running)
    return measured(
        [job.reports[worker] for worker in job.request.workers],
        {link: after[link] - before[link] for link in after},
        await _outcomes(running.driver),
        _events_of(cluster, job),
    )


async def wait_for_agents(running: RunningCluster, hosts: Sequence[str]) -> None:
    """Wait for the agents of hosts. Raises RunFailed."""
    try:
        async with asyncio.timeout(ATTACH_SECONDS):
            while not set(hosts) <= set(running.cluster.nodes.attached):
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        missing = [host for host in hosts if host not in running.cluster.nodes.attached]
        raise RunFailed(
            "\n".join(
                [
                    f"no agent on {', '.join(missing)} after {ATTACH_SECONDS:g} s",
                    *running.notes,
                ]
            )
        ) from None


async def _follow(
    cluster: Cluster, job: Job, prepared: PreparedExperiment, progress: Progress
) -> None:
    """Wait for the end of the job and of those that it needs."""
    total, shown = len(prepared.workload.tensor_sizes()), -1
    while not job.state.over or any(not other.state.over for other in cluster.jobs):
        if job.round != shown:
            shown = job.round
            progress(shown, total)
        await asyncio.sleep(POLL_SECONDS)
    progress(job.round, total)


async def _settled(running: RunningCluster) -> Mapping[DirectedLink, int]:
    """Return the links' counters once traffic has stopped."""
    counted = running.link_bytes()
    while True:
        await asyncio.sleep(POLL_SECONDS)
        again = running.link_bytes()
        if again == counted:
            return counted
        counted = again


def _events_of(cluster: Cluster, job: Job) -> list[tuple[float, str]]:
    """Return the events of the job, switches and links since its submission."""
    events = [event for event in cluster.jobs.events if event.job in (0, job.number)]
    start = next(i for i, event in enumerate(events) if event.job == job.number)
    first = events[start].date
    return [(event.date - first, event.text) for event in events[start:]]


async def _outcomes(driver: Driver) -> dict[str, dict[str, int]]:
    """Return the counters of every running switch."""
    counted = {}
    for name, state in driver.states().items():
        if state is State.READY:
            counts = await driver.outcomes(name)
            counted[name] = {outcome.name.lower(): count for outcome, count in counts.items()}
    return counted


def measured(
    reports: Sequence[pb.Report],
    links: Mapping[DirectedLink, int],
    switches: Mapping[str, Mapping[str, int]],
    events: Sequence[tuple[float, str]] = (),
) -> RunMeasurement:
    """Return the measurements of a run, from its workers' reports."""
    verdict = Verdict()
    for report in reports:
        verdict.merge(verdict_from(report.verdict))
    intervals = [intervals_from(report.intervals) for report in reports]
    return RunMeasurement(
        seconds=reduce_seconds(intervals),
        links=links,
        switches=switches,
        retransmissions=sum(report.retransmissions for report in reports),
        verdict=verdict,
        outcome=MessageToDict(reports[0].outcome, preserving_proto_field_name=True),
        intervals=intervals,
        events=events,
    )
