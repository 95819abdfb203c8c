"""Run an experiment in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cli.experiment.pipelines import PROGRAM, defines_of, slots_of
from cli.experiment.prepare import Prepared, worker_options
from cli.experiment.result import Measured
from collectives.algorithms.catalogue import make_schedule
from host_agent.operator_training import OperatorTraining
from host_agent.workload import Verdict, Watched, Workload, call_seconds, make_workload
from p4switch.execute.choose import engine_maker
from p4switch.v1model.engine import Engine, EngineOptions
from protocol.wire import HOPS_DEFAULT
from simulation.all_reduce import SimulatedRun, simulate_plan, simulate_schedule
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
    experiment, network = prepared.experiment, prepared.network
    make_engine = engine_maker_for(prepared)
    faults = Faults(loss=experiment.loss)
    if prepared.plan is None:
        workers = prepared.placement.workers
        run = simulate_schedule(
            network,
            workers,
            lambda elements: make_schedule(
                experiment.algorithm,
                network,
                workers,
                elements,
                prepared.trees,
                experiment.form,
            ),
            make_engine,
            lambda worker: _workload(prepared, worker, progress),
            faults=faults,
            seed=experiment.seed,
            limit=experiment.limit,
            tree=prepared.coordination,
        )
    else:
        plan = prepared.plan
        run = simulate_plan(
            network,
            plan,
            make_engine,
            lambda worker: _workload(prepared, worker, progress),
            faults=faults,
            seed=experiment.seed,
            limit=experiment.limit,
            options=worker_options(prepared),
            tree=prepared.coordination,
            vectors=None if prepared.vectors is None else prepared.vectors.plan,
            tensors=[(size, experiment.dtype) for size in prepared.workload.tensor_sizes()],
        )
    return _measured(run)


def _workload(
    prepared: Prepared, worker: int, progress: Callable[[int, int], None]
) -> Workload | OperatorTraining:
    spec = prepared.workload
    if spec.coordinate:
        tell = progress if worker == 0 else None
        return OperatorTraining(spec, worker, prepared.plan, tell)
    workload = make_workload(spec, worker, prepared.plan)
    return Watched(workload, len(spec.tensor_sizes()), progress) if worker == 0 else workload


def _measured(run: SimulatedRun) -> Measured:
    verdict = Verdict()
    for workload in run.workloads:
        verdict.merge(workload.verdict())
    return Measured(
        seconds=run.seconds,
        links=run.links,
        switches=run.switches,
        retransmissions=run.retransmissions,
        verdict=verdict,
        outcome=run.workloads[0].outcome(),
        calls=call_seconds(run.intervals),
    )
