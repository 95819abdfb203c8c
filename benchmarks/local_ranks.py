"""Several ranks per host: the load on the host's link of each way to sum them, in virtual time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import Rows
from hopsum.collectives.choices import Algorithm
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.experiment.simulated import run_simulated
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import save_network
from hopsum.network.model import Network
from hopsum.protocol.wire import LANE_BYTES

HOSTS, ELEMENTS = 4, 100_000
LINK_RATE, LOCAL_RATE = 50e6, 10e9
"""Rates of a host's link and between the ranks of a host, in bit/s."""


class Way(StrEnum):
    """How the ranks of a host are summed. `RING` is gloo's: all ranks, host by host."""

    AGENT = "the agent adds them up"
    WORKERS = "each a worker, child of the next switch"
    SWITCH = "each a worker, child of a switch on the host"
    RING = "a ring of all ranks"


CASES = [(way, ranks) for way in Way for ranks in ((1,) if way is Way.AGENT else (2, 3))]
"""The agent's sum is one tensor for any number of ranks."""


def star(way: Way, ranks: int) -> Network:
    """Return a star of hosts; ranks are hosts behind a switch, unless the agent adds them up."""
    builder = NetworkBuilder(f"{ranks} ranks a host", bandwidth=LINK_RATE)
    middle = builder.add_switch("s1")
    builder.link(builder.add_host("ps"), middle)
    for number in range(1, HOSTS + 1):
        if way is Way.AGENT:
            builder.link(builder.add_host(f"h{number}"), middle)
            continue
        host = builder.add_switch(f"host{number}", aggregates=way is Way.SWITCH)
        builder.link(host, middle)
        for rank in range(ranks):
            builder.link(builder.add_host(f"h{number}.{rank}"), host, bandwidth=LOCAL_RATE)
    return builder.build()


def measure(way: Way, ranks: int) -> dict[str, Any]:
    """Return the time of one all-reduce, and the bytes on a host's link in units of the tensor."""
    network = star(way, ranks)
    workers = tuple(host for host in network.hosts if host != "ps")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "network.json"
        save_network(network, file)
        prepared = prepare(
            Experiment(
                str(file),
                workers=len(workers),
                worker_names=workers,
                server_names=("ps",),
                elements=ELEMENTS,
                rounds=1,
                algorithm=Algorithm.RING if way is Way.RING else Algorithm.IN_NETWORK,
            )
        )
    measured = run_simulated(prepared, lambda done, of: None)
    assert not measured.verdict.wrong
    host = "h1" if way is Way.AGENT else "host1"
    up, down = (
        measured.links[link] / (LANE_BYTES * ELEMENTS) for link in ((host, "s1"), ("s1", host))
    )
    return {
        "ranks_a_host": "any" if way is Way.AGENT else ranks,
        "way": str(way),
        "seconds": round(measured.seconds, 4),
        "up": round(up, 2),
        "down": round(down, 2),
    }


def all_ways() -> Rows:
    """Return a row for each way and number of ranks."""
    return [measure(way, ranks) for way, ranks in CASES]
