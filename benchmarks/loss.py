"""The cost of loss on every link to an all-reduce in virtual time, against 1 / (1 - loss)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import DataType, Results
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.experiment.simulated import run_simulated
from hopsum.network.loaders import load_network, save_network
from hopsum.simulation.faults import Faults

REORDERED_FRAMES = 16
"""Maximum number of later frames that overtake a reordered one."""
FRAME_SECONDS = 8 * 1100 / 25e6
RANDOM = tuple(Faults(loss=loss) for loss in (0.0001, 0.01, 0.05, 0.1))
OTHER = (
    Faults(loss=0.01, burst=4),
    Faults(loss=0.05, burst=4),
    Faults(reorder=0.05, hold=REORDERED_FRAMES * FRAME_SECONDS),
    Faults(loss=0.01, reorder=0.05, hold=REORDERED_FRAMES * FRAME_SECONDS),
)
LATENCY = 0.002
"""Maximum of unequal latencies, in seconds: uniform up to this; a frame takes 0.35 ms."""
WAYS: dict[str, dict[str, Any]] = {
    "replicated": {},
    "unicast": {"results": Results.UNICAST},
    "server": {"algorithm": Algorithm.SERVER},
}
"""Switches sum and copy results, sum only, or do neither; fields of an `Experiment`."""
FEW = tuple(Faults(loss=loss) for loss in (0.001, 0.01, 0.03))
CASES: tuple[tuple[str, int, int, tuple[Faults, ...], float, str], ...] = (
    ("star:8", 8, 2_000_000, RANDOM, 0.0, "replicated"),
    ("fat-tree:4", 8, 2_000_000, (*RANDOM, *OTHER), 0.0, "replicated"),
    ("fat-tree:4", 8, 2_000_000, RANDOM[1:3], LATENCY, "replicated"),
    ("line:16x1", 16, 500_000, RANDOM[:2], 0.0, "replicated"),
    *(("fat-tree:4", 8, 200_000, FEW, 0.0, way) for way in WAYS),
)


def measure(
    topology: str,
    workers: int,
    elements: int,
    faults: tuple[Faults, ...],
    latency: float,
    way: str = "replicated",
) -> Iterator[dict[str, Any]]:
    """Time one all-reduce on 25 Mbit/s links, and compare it with the lossless time.

    `latency`: maximum of a link in seconds; each draws its own between 0 and this. `way`: of WAYS.
    """
    with TemporaryDirectory() as folder:
        network = topology if not latency else _save_uneven(topology, latency, Path(folder))
        base = Experiment(
            network,
            workers=workers,
            elements=elements,
            rounds=1,
            dtype=DataType.INT32,
            **WAYS[way],
        )
        prepared = prepare(base)
    lossless = run_simulated(prepared, lambda done, of: None).seconds
    for each in faults:
        outcome = run_simulated(prepared, lambda done, of: None, faults=each)
        yield {
            "topology": topology,
            "way": way,
            "elements": elements,
            "loss": each.loss,
            "burst": each.burst,
            "reorder": each.reorder,
            "latency": latency,
            "seconds": round(outcome.seconds, 4),
            "lossless_seconds": round(lossless, 4),
            "ratio": round(outcome.seconds / lossless, 3),
            "limit": round(1 / (1 - each.loss), 3),
            "sent_again": outcome.retransmissions,
            "wrong": outcome.verdict.wrong,
        }


def _save_uneven(topology: str, latency: float, folder: Path) -> str:
    """Save the network with a different latency for each link; return the file's path."""
    network, rng = load_network(topology), Random(1)
    links = tuple(replace(link, latency=rng.uniform(0, latency)) for link in network.links)
    file = folder / "network.json"
    save_network(replace(network, links=links), file)
    return str(file)
