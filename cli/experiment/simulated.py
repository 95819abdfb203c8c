"""Run an experiment in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cli.experiment.jobs import measured, plan_of, task_of, vectors_task
from cli.experiment.pipelines import PROGRAM, defines_of, slots_of
from cli.experiment.prepare import Prepared
from cli.experiment.result import Measured
from host_agent.node.work import Work
from p4switch.execute.choose import engine_maker
from p4switch.v1model.engine import Engine, EngineOptions
from protocol.wire import HOPS_DEFAULT
from simulation.all_reduce import Simulation
from simulation.faults import Faults

QUEUE_DEPTH = 1 << 16
"""The engine's own queues never fill: in virtual time frames wait in the links' queues."""


@cache
def _engine_maker(lanes: int, slots: int, max_hops: int) -> Callable[[], Engine]:
    options = EngineOptions(queue_depth=QUEUE_DEPTH)
    return engine_maker(PROGRAM, defines=defines_of(lanes, slots, max_hops), options=options)


def engine_maker_for(prepared: Prepared) -> Callable[[], Engine]:
    """A maker of engines that run hopsum.p4: native where there is a compiler."""
    experiment = prepared.experiment
    hops = experiment.max_hops or HOPS_DEFAULT
    return _engine_maker(experiment.lanes, slots_of(prepared.network), hops)


def run_simulated(prepared: Prepared, progress: Callable[[int, int], None]) -> Measured:
    """Run in virtual time; see `simulation.all_reduce` for what it raises.

    `progress` is called with the tensors summed so far at the first worker, and in all.
    """
    experiment, network, plan = prepared.experiment, prepared.network, plan_of(prepared)
    total = len(prepared.workload.tensor_sizes())
    simulation = Simulation(
        network,
        engine_maker_for(prepared),
        faults=Faults(loss=experiment.loss),
        seed=experiment.seed,
        fair=prepared.plan is None,
    )
    if prepared.vectors is not None:
        task = vectors_task(prepared, len(plan.workers))
        simulation.add(prepared.vectors.plan, Work(task))
    simulation.add(plan, Work(task_of(prepared)), progress=lambda done: progress(done, total))
    simulation.run(experiment.limit)
    run = simulation.result(plan.job)
    return measured(run.reports, run.links, run.switches)
