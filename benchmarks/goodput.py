"""All-reduce on shaped links in Mininet: three methods on the same links, against their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import DataType
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment
from hopsum.protocol.wire import LANE_BYTES, frame_bytes
from hopsum.timing.tcp_segments import SEGMENT_BYTES, SEGMENT_HEADER_BYTES

CASES = (
    ("fat-tree:4", 8, 25e6, 1_000_000),
    ("star:8", 8, 50e6, 2_000_000),
    ("leaf-spine:4x2", 8, 25e6, 1_000_000),
)
WARM_ROUNDS = 1
"""The first all-reduce of a run also warms up caches and processes; it counts like the others."""


def limit(report: Report) -> float:
    """Return the highest goodput that links and headers allow, in bit/s of a worker's tensor.

    In-network: the worker's own link, frame by frame. Server: every worker's frames share the
    server's link. Ring: 2 (n - 1) / n of the tensor through the worker's link, with headers and,
    for every two segments, an acknowledgement of the other direction.
    """
    experiment = report.experiment
    rate = experiment.link_rate or 0.0
    prepared = prepare(experiment)
    if experiment.algorithm.among_hosts:
        share = 2 * (experiment.workers - 1) / experiment.workers
        overhead = 1 + 1.5 * SEGMENT_HEADER_BYTES / SEGMENT_BYTES
        return rate / (share * overhead)
    assert prepared.plan is not None
    hops = max(len(stack) for tree in prepared.plan.trees for stack in tree.up)
    payload = LANE_BYTES * experiment.lanes / frame_bytes(experiment.lanes, hops)
    flows = experiment.workers if experiment.algorithm is Algorithm.SERVER else 1
    return rate * payload / flows


def measure(topology: str, workers: int, rate: float, elements: int) -> list[dict[str, Any]]:
    """Return a row per algorithm."""
    base = Experiment(
        topology=topology,
        workers=workers,
        elements=elements,
        rounds=2 + WARM_ROUNDS,
        dtype=DataType.INT32,
        world=WorldKind.MININET,
        link_rate=rate,
    )
    # The server takes `workers` times as long: a third of the data is enough.
    runs = [
        run_experiment(replace(base, algorithm=Algorithm.IN_NETWORK)),
        run_experiment(replace(base, algorithm=Algorithm.SERVER, elements=elements // 4, rounds=1)),
        run_experiment(replace(base, algorithm=Algorithm.RING)),
    ]
    return rows(runs)


def rows(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return goodput, its limit, their ratio, and the ratio to the ring of the same case."""
    found: list[dict[str, Any]] = []
    for report in reports:
        measured = report.measured
        assert measured is not None
        goodput = report.tensor_bits / measured.seconds
        found.append(
            {
                "topology": report.experiment.topology,
                "link_rate": report.experiment.link_rate,
                "algorithm": report.experiment.algorithm.value,
                "goodput": round(goodput),
                "limit": round(limit(report)),
                "of_limit": round(goodput / limit(report), 3),
                "retransmissions": measured.retransmissions,
                "links_as_predicted": not report.differing_links,
                "wrong": measured.verdict.wrong,
            }
        )
    ring = next(row for row in found if row["algorithm"] == "ring")
    for row in found:
        row["times_ring"] = round(row["goodput"] / ring["goodput"], 2)
    return found
