"""Packet-hops per second of wall time of the simulator, including the real P4 program."""

from __future__ import annotations

import time
from typing import Any

from hopsum.collectives.plan import DataType
from hopsum.experiment.description import Experiment
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.prepare import prepare, task_of
from hopsum.experiment.simulated import loader
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.workload import make_workload
from tests.support.simulated_jobs import simulate_plan


def measure(topology: str, workers: int, elements: int) -> dict[str, Any]:
    """Return packet-hops per second of wall time: frames that arrived at a switch or a host."""
    experiment = Experiment(
        topology=topology, workers=workers, elements=elements, rounds=1, dtype=DataType.INT32
    )
    prepared = prepare(experiment)
    plan = prepared.plan
    assert plan is not None
    config = pipeline_for(prepared.network, experiment.engine, prepared.settings).config
    load = loader()
    load(config)
    started = time.perf_counter()
    run = simulate_plan(
        prepared.network,
        plan,
        lambda: load(config),
        lambda worker: make_workload(prepared.workload, worker, plan),
        options=WorkerOptions(**task_of(prepared.job).options),
    )
    elapsed = time.perf_counter() - started
    return {
        "topology": topology,
        "packet_hops": run.packet_hops,
        "seconds": round(elapsed, 3),
        "packet_hops_per_second": round(run.packet_hops / elapsed),
    }
