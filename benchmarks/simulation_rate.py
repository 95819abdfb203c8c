"""Packet-hops per second of wall time of the simulator, including the real P4 program."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from hopsum.collectives.plan import DataType, JobPlan
from hopsum.experiment.description import Experiment
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.prepare import prepare, task_of
from hopsum.experiment.simulated import loader
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.task import Task
from hopsum.host_agent.workload import (
    ExpectedSums,
    RandomTensors,
    Tensor,
    Verdict,
    Workload,
    WorkloadSpec,
)
from tests.support.simulated_jobs import GivenWork, Simulation


class _Prepared(RandomTensors):
    """Tensors made before the clock runs, and sums checked when it has stopped."""

    def __init__(
        self, spec: WorkloadSpec, worker: int, plan: JobPlan, expected: ExpectedSums
    ) -> None:
        super().__init__(spec, worker, plan, expected)
        self._made: Tensor | None = super().next_tensor()

    def next_tensor(self) -> Tensor | None:
        """Return the one tensor, once."""
        made, self._made = self._made, None
        return made

    def verdict(self) -> Verdict:
        """Say nothing yet."""
        return Verdict()

    def check(self) -> Verdict:
        """Check the sum."""
        return super().verdict()


def measure(topology: str, workers: int, elements: int) -> dict[str, Any]:
    """Return packet-hops per second of wall time: frames that arrived at a switch or a host."""
    experiment = Experiment(
        topology=topology, workers=workers, elements=elements, rounds=1, dtype=DataType.INT32
    )
    prepared = prepare(experiment)
    plan = prepared.plan
    assert plan is not None
    config = pipeline_for(prepared.network, experiment.engine, prepared.settings).config
    load, expected = loader(), ExpectedSums()
    simulation = Simulation(prepared.network, lambda: load(config))
    options = WorkerOptions(**task_of(prepared.job).options)
    made = [_Prepared(prepared.workload, n, plan, expected) for n in range(len(plan.workers))]

    def workload(worker: int) -> Workload:
        return made[worker]

    simulation.add(plan, GivenWork(Task(prepared.workload, options=asdict(options)), workload))
    simulation.start()
    started = time.perf_counter()
    simulation.world.run(simulation.script.check, 600.0)
    elapsed = time.perf_counter() - started
    for each in made:
        verdict = each.check()
        assert (verdict.checked, verdict.wrong) == (elements, 0)
    hops = simulation.world.packet_hops
    return {
        "topology": topology,
        "packet_hops": hops,
        "seconds": round(elapsed, 3),
        "packet_hops_per_second": round(hops / elapsed),
    }
