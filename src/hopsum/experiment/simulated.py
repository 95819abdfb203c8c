"""Run an experiment in virtual time: the whole cluster in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hopsum.collectives.choices import Engine
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.prepare import PreparedExperiment
from hopsum.experiment.result import RunMeasurement
from hopsum.experiment.session import Progress, RunningCluster, run_job, wait_for_agents
from hopsum.simulation.cluster import ClusterOptions, VirtualCluster
from hopsum.simulation.events import EventQueue
from hopsum.simulation.faults import Faults
from hopsum.simulation.loop import collect_earlier_runs, run_virtual
from hopsum.simulation.switches import CPU_PORT
from p4switch.device.loading import Loader, default_executor
from p4switch.targets.v1model.engine import EngineOptions

if TYPE_CHECKING:
    from hopsum.controller.web.recording import Recording
    from hopsum.simulation.world import Observer

QUEUE_DEPTH = 1 << 16
"""Depth of the engine's egress queues; they never fill, since in virtual time frames wait at links.
"""


@cache
def loader() -> Loader:
    """Return a factory of engines from device configurations: native if a compiler is installed."""
    executor, _ = default_executor()
    return Loader(executor, EngineOptions(cpu_port=CPU_PORT, queue_depth=QUEUE_DEPTH))


def run_simulated(
    prepared: PreparedExperiment,
    progress: Progress,
    recording: Recording | None = None,
    observers: Sequence[Observer] = (),
    faults: Faults | None = None,
) -> RunMeasurement:
    """Start a cluster in virtual time and run the job on it; raises as `run_job`.

    `faults`: None: those of the experiment.
    """
    collect_earlier_runs()
    experiment, network, settings = prepared.experiment, prepared.network, prepared.settings
    pipeline = pipeline_for(network, Engine.EMBEDDED, settings)
    queue = EventQueue()

    async def run() -> RunMeasurement:
        options = ClusterOptions(
            pipeline,
            loader(),
            replace(prepared.settings, journal=Path("jobs")),
            seed=experiment.seed,
            faults=faults or Faults(loss=experiment.loss),
            hosts=prepared.hosts,
            fair=prepared.plan is None,
            observers=observers,
        )
        async with VirtualCluster(network, options, queue) as cluster:
            controller, driver = await cluster.up()
            running = RunningCluster(controller, driver, cluster.link_bytes, "virtual time")
            if experiment.outages:
                await wait_for_agents(running, prepared.hosts)
            for outage in experiment.outages:
                cluster.plan(outage.later(queue.now))
            return await run_job(running, prepared, progress, recording)

    return run_virtual(run(), queue)
