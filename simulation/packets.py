"""The packet level of `timing.estimate`: random tensors through the P4 program and the agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from collectives.plan import DataType
from collectives.schedule import Schedule
from collectives.workload import RANDOM, WorkloadSpec
from host_agent.workload import make_workload
from network.model import Network
from simulation.all_reduce import MakeEngine, SimulatedRun, simulate_plan, simulate_schedule
from timing.estimate import Packets
from timing.work import DirectedLink, PlanWork, Work


def packets(make_engine: MakeEngine) -> Packets:
    """Return the packet-level fidelity for `estimate`, without faults.

    The tensors of a round follow each other; `block` and `overhead` are those of the agents. Raises
    JobFailed and SimulationError as `simulate_plan` does.
    """

    def follow(network: Network, work: Work) -> tuple[dict[DirectedLink, int], float]:
        links: Counter[DirectedLink] = Counter()
        seconds = 0.0
        for run in _runs(network, work, make_engine):
            links.update(run.links)
            seconds += run.seconds / work.rounds
        return {link: size for link, size in links.items() if size}, seconds

    return follow


def _runs(network: Network, work: Work, make_engine: MakeEngine) -> Iterator[SimulatedRun]:
    def spec(workers: int, elements: int, data_type: DataType) -> WorkloadSpec:
        return WorkloadSpec(RANDOM, workers, elements, work.rounds, data_type, seed=0)

    if isinstance(work, PlanWork):
        plan = work.plan
        for tensor in work.tensors:
            make = partial(make_workload, spec(len(plan.workers), *tensor), plan=plan)
            tensors = [tensor] * work.rounds
            yield simulate_plan(network, plan, make_engine, make, tensors=tensors)
        return
    for schedule in work.schedules:
        given = spec(schedule.ranks, schedule.elements, DataType.INT32)
        make = partial(make_workload, given, plan=None)
        names = schedule.names[: schedule.ranks]
        yield simulate_schedule(network, names, _always(schedule), make_engine, make)


def _always(schedule: Schedule) -> Callable[[int], Schedule]:
    """Return the schedule for any number of elements: agents connect by that of none."""
    return lambda _: schedule
