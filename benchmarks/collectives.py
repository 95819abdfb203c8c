"""Collectives on shaped links in Mininet, and gloo between the same hosts on the same links.

All methods run one after the other in one network that stays up, so that ratios are meaningful even
on a busy machine.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from google.protobuf.json_format import MessageToJson

from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import DataType
from hopsum.collectives.task_messages import workload_message
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.emulated import with_cluster
from hopsum.experiment.prepare import PreparedExperiment, prepare
from hopsum.experiment.result import RunFailed
from hopsum.experiment.session import RunningCluster, no_progress, run_job
from hopsum.host_agent.workload import Verdict, call_seconds, intervals_from, verdict_from
from hopsum.mininet_topos.emulation import Emulation
from hopsum.protocol import hopsum_pb2 as pb

CHECKOUT = Path(__file__).resolve().parent.parent
PYTHONPATH = f"{CHECKOUT}:{CHECKOUT / 'src'}"
GLOO = "gloo"
GLOO_SECONDS = 300.0
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """Workers on a network. Rates in bit/s; sizes in bytes of a tensor."""

    topology: str
    workers: int
    link_rate: float
    uplink_rate: float | None = None
    sizes: tuple[int, ...] = (4_000_000, 16_000_000)
    algorithms: tuple[Algorithm, ...] = (Algorithm.RING, Algorithm.IN_NETWORK)


CASES = (
    Case("star:8", 8, 50e6),
    Case("fat-tree:4", 8, 25e6),
    Case("leaf-spine:4x2x1", 8, 25e6, uplink_rate=12.5e6, sizes=(4_000_000,)),
    Case("leaf-spine:4x2x1", 8, 25e6, uplink_rate=6.25e6, sizes=(4_000_000,)),
)
"""Those of the goals: gloo's ring, ours, and the switches; also where uplinks are slower.

gloo's ring follows the ranks, which are numbered rack by rack: it crosses every uplink once, the
best a ring can do.
"""


@dataclass(frozen=True, slots=True)
class AllReduceTimes:
    """Seconds of each all-reduce, and the numbers of elements checked and found wrong."""

    calls: tuple[float, ...]
    checked: int
    wrong: int


def gloo_missing() -> str | None:
    """Return why gloo cannot be measured; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed (pip install 'hopsum[torch]'): gloo is left out"
    return None


def measure(case: Case, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return a row for each size and method.

    Raises RunFailed, and the errors of starting a network.
    """
    base = Experiment(
        topology=case.topology,
        workers=case.workers,
        rounds=rounds,
        dtype=DataType.INT32,
        world=WorldKind.MININET,
        link_rate=case.link_rate,
        uplink_rate=case.uplink_rate,
        # All methods share one network, which includes the server.
        algorithm=Algorithm.RING,
    )

    async def run(running: RunningCluster, emulation: Emulation) -> list[dict[str, Any]]:
        found = []
        for size in case.sizes:
            timed: dict[str, AllReduceTimes] = {}
            sized = replace(base, elements=size // 4)
            if gloo_missing() is None:
                timed[GLOO] = await _gloo(prepare(sized), emulation)
            for algorithm in case.algorithms:
                prepared = prepare(replace(sized, algorithm=algorithm))
                measured = await run_job(running, prepared, no_progress)
                verdict = measured.verdict
                timed[algorithm.value] = AllReduceTimes(
                    tuple(measured.calls), verdict.checked, verdict.wrong
                )
            found += rows(case, size, timed)
        return found

    return with_cluster(prepare(base), run, all_hosts=True)


def rows(case: Case, size: int, timed: dict[str, AllReduceTimes]) -> list[dict[str, Any]]:
    """Return seconds and goodput of each method, and its ratio to gloo's: average and best.

    `load`: the machine's load average of the last minute.
    """
    found = []
    for name, each in timed.items():
        mean, best = fmean(each.calls), min(each.calls)
        row: dict[str, Any] = {
            "topology": case.topology,
            "link_rate": case.link_rate,
            "uplink_rate": case.uplink_rate,
            "bytes": size,
            "algorithm": name,
            "rounds": len(each.calls),
            "seconds": round(mean, 3),
            "best": round(best, 3),
            "goodput": round(8 * size / mean),
            "wrong": each.wrong,
        }
        if GLOO in timed:
            gloo = timed[GLOO].calls
            row["times_gloo"] = round(fmean(gloo) / mean, 2)
            row["best_times_gloo"] = round(min(gloo) / best, 2)
        row["load"] = round(os.getloadavg()[0], 1)
        found.append(row)
    return found


async def _gloo(prepared: PreparedExperiment, emulation: Emulation) -> AllReduceTimes:
    """Run the workload with gloo, a process on every worker's host.

    RunFailed if one does not finish.
    """
    network = prepared.network
    with tempfile.TemporaryDirectory(prefix="hopsum-gloo-") as folder:
        files = [Path(folder) / f"{rank}" for rank in range(len(prepared.placement.workers))]
        processes = {}
        workload = MessageToJson(workload_message(prepared.workload))
        for rank, host in enumerate(prepared.placement.workers):
            interface = emulation.interface(host, network.access_switch(host))
            processes[host] = emulation.popen(
                host,
                [
                    "env", f"GLOO_SOCKET_IFNAME={interface}", f"PYTHONPATH={PYTHONPATH}",
                    sys.executable, "-m", "benchmarks.gloo_rank",
                    workload, str(rank), f"{folder}/store", str(files[rank]),
                ],
            )  # fmt: skip
        waiting = {
            host: asyncio.create_task(asyncio.to_thread(process.wait, GLOO_SECONDS))
            for host, process in processes.items()
        }
        for host, ended in waiting.items():
            code = await ended
            if code:
                raise RunFailed(f"gloo on {host} ended with {code}:\n{emulation.log_tail(host)}")
        reports = [pb.Report.FromString(file.read_bytes()) for file in files]
    verdict = Verdict()
    for report in reports:
        verdict.merge(verdict_from(report.verdict))
    calls = call_seconds([intervals_from(report.intervals) for report in reports])
    return AllReduceTimes(tuple(calls), verdict.checked, verdict.wrong)
