"""The flow simulator against shaped Mininet: every algorithm on several networks.

Rates are low, so that links and not this machine's cores determine the time of an all-reduce.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import DataType
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.emulated import with_cluster
from hopsum.experiment.prepare import PreparedExperiment, prepare
from hopsum.experiment.result import RunMeasurement
from hopsum.experiment.session import RunningCluster, no_progress, run_job
from hopsum.mininet_topos.emulation import Emulation
from hopsum.timing.estimate import Fidelity, estimate
from hopsum.timing.work import PlanWork

GOAL = 0.15
"""Relative difference allowed between measured and simulated seconds."""
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """Workers on a network, every link at `link_rate`, those between switches at `uplink_rate`.

    Rates in bit/s. `size`: bytes of a tensor; a quarter of it for the parameter server, whose time
    grows with the number of workers.
    """

    topology: str
    workers: int
    link_rate: float = 10e6
    uplink_rate: float | None = None
    size: int = 1_000_000
    algorithms: tuple[Algorithm, ...] = (
        Algorithm.RING,
        Algorithm.HALVING_DOUBLING,
        Algorithm.SERVER,
        Algorithm.TREE,
        Algorithm.DOUBLE_TREE,
        Algorithm.MULTI_TREE,
        Algorithm.LEVEL_WISE,
        Algorithm.IN_NETWORK,
    )


CASES = (
    Case("star:5", 4),
    Case("leaf-spine:3x2x2", 5, uplink_rate=5e6),
    Case("fat-tree:4", 8),
    Case("torus:2x3", 6, algorithms=(Algorithm.RING, Algorithm.TREE, Algorithm.MULTI_TREE)),
)


def simulated_seconds(prepared: PreparedExperiment) -> float:
    """Return the flow simulator's seconds of one all-reduce of an experiment."""
    elements = prepared.experiment.elements
    if prepared.plan is None:
        return prepared.predicted.seconds / prepared.experiment.rounds
    work = PlanWork(prepared.plan, [(elements, prepared.experiment.dtype)])
    return estimate(prepared.network, work, Fidelity.FLOWS).seconds


def measure(case: Case, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return a row per algorithm, all in one network.

    Raises RunFailed, and the errors of starting a network.
    """
    base = Experiment(
        topology=case.topology,
        workers=case.workers,
        elements=case.size // 4,
        rounds=rounds,
        dtype=DataType.INT32,
        world=WorldKind.MININET,
        link_rate=case.link_rate,
        uplink_rate=case.uplink_rate,
        algorithm=Algorithm.RING,
    )

    async def run(running: RunningCluster, _: Emulation) -> list[dict[str, Any]]:
        found = []
        for algorithm in case.algorithms:
            size = case.size // 4 if algorithm is Algorithm.SERVER else case.size
            prepared = prepare(replace(base, algorithm=algorithm, elements=size // 4))
            measured = await run_job(running, prepared, no_progress)
            found.append(row(case, algorithm, simulated_seconds(prepared), measured))
        return found

    return with_cluster(prepare(base), run, all_hosts=True)


def row(
    case: Case, algorithm: Algorithm, simulated: float, measured: RunMeasurement
) -> dict[str, Any]:
    """Return measured against simulated seconds. The median ignores single outliers."""
    seconds = median(measured.calls)
    return {
        "topology": case.topology,
        "link_rate": case.link_rate,
        "uplink_rate": case.uplink_rate,
        "algorithm": algorithm.value,
        "rounds": len(measured.calls),
        "measured": round(seconds, 3),
        "simulated": round(simulated, 3),
        "ratio": round(seconds / simulated, 3),
        "within_goal": abs(seconds / simulated - 1) <= GOAL,
        "best": round(min(measured.calls), 3),
        "retransmissions": measured.retransmissions,
        "wrong": measured.verdict.wrong,
        "load": round(os.getloadavg()[0], 1),
    }
