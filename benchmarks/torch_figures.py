"""PyTorch's performance through the switches, and over gloo between the same hosts in the same run.

Both backends are in one process of each rank and take turns (`benchmarks.torch_rank`), so that
ratios are meaningful even on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.report import Rows
from benchmarks.torch_names import (
    ALONE,
    BUCKETS,
    CLUSTER,
    CPU,
    FIGURES,
    GLOO,
    LOOPBACK,
    NAMESPACES,
    ORDERED,
    PROCESSES,
    RANK,
    SMALL,
    SWITCHES,
    SWITCHES_16,
    TYPES,
    WAKE_UP,
)
from hopsum.cli.job_commands import make_submission
from hopsum.collectives.plan import DataType
from hopsum.collectives.workload import PROCESS
from hopsum.controller.api.client import ControllerClient
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.emulated import with_cluster
from hopsum.experiment.prepare import PreparedExperiment, prepare
from hopsum.experiment.result import RunFailed
from hopsum.experiment.session import RunningCluster, no_progress, run_job, wait_for_agents
from hopsum.experiment.training import Trainer, Training
from hopsum.mininet_topos.emulation import Emulation

CHECKOUT = Path(__file__).resolve().parent.parent
PYTHONPATH = f"{CHECKOUT}:{CHECKOUT / 'src'}:{CHECKOUT / 'hopsum_torch' / 'src'}"
ECHOES, ECHO_SECONDS = 400, 120.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a call. `wake_ups`: sequential wake-ups of processes."""

    name: str
    what: str
    wake_ups: int | None


STAGES = (
    Stage(WAKE_UP, "a message to another process on the host (Unix socket)", 1),
    Stage("echo", "UDP, 1 KiB, to the other host and back: switch, host, switch, host", 4),
    Stage("native int32", "the agents alone: worker, switch, server, switch, worker", 4),
    Stage("native float32", "the same twice: the fragment's exponent travels first", 8),
    Stage("barrier", "PyTorch, through the agents: rank, agent, one round trip, rank", 6),
    Stage("int32", "PyTorch, MAX of 256 int32, likewise", 6),
    Stage("float32", "PyTorch, AVG of 256 float32, likewise", 6),
    Stage(GLOO, "PyTorch, SUM of 256 float32 over gloo", None),
)


async def train(
    running: RunningCluster,
    emulation: Emulation,
    workers: Sequence[str],
    arguments: Sequence[str],
    environment: Sequence[str] = (),
    *,
    ranks_per_host: int = 1,
    rooted: bool = False,
) -> dict[str, Any]:
    """Run `benchmarks.torch_rank` on hosts; return rank 0's figures. Raises RunFailed.

    `rooted`: with trees at the ranks' hosts.
    """
    printed: list[str] = []
    client = ControllerClient(running.address)
    trainer = Trainer(emulation, workers, client, printed.append)
    if rooted:
        submission = make_submission(
            "rooted", ",".join(workers), "0", kind=PROCESS, ranks_per_host=ranks_per_host
        )
        job = await asyncio.to_thread(client.submit, submission)
        environment = (*environment, f"HOPSUM_JOB={job.job}")
    command = ["-m", "benchmarks.torch_rank", *arguments]
    environment = (f"PYTHONPATH={PYTHONPATH}", *environment)
    trained = await trainer.run(
        Training(command, environment=environment, ranks_per_host=ranks_per_host)
    )
    lines = "".join(printed).splitlines()
    found = [line.removeprefix(FIGURES) for line in lines if line.startswith(FIGURES)]
    if trained.errors or not found:
        raise RunFailed("\n".join(["PyTorch's ranks failed:", *trained.errors, *lines[-10:]]))
    figures: dict[str, Any] = json.loads(found[0])
    return figures


def _prepared(topology: str, workers: int, link_rate: float | None) -> PreparedExperiment:
    return prepare(
        Experiment(
            topology=topology,
            workers=workers,
            elements=SMALL,
            rounds=200,
            world=WorldKind.MININET,
            link_rate=link_rate,
        )
    )


def latency(repeats: int = 10) -> Rows:
    """Measure a call of one fragment between two hosts with unshaped links, by stages."""
    prepared = _prepared("star:2", 2, None)

    async def run(running: RunningCluster, emulation: Emulation) -> dict[str, Any]:
        await wait_for_agents(running, prepared.hosts)
        workers = prepared.placement.workers
        arguments = ["latency", str(repeats)]
        found = await train(running, emulation, workers, arguments, _counted(emulation, prepared))
        found["echo"] = _echoes(emulation, prepared)
        for dtype in DataType:
            native = prepare(replace(prepared.experiment, dtype=dtype))
            measured = await run_job(running, native, no_progress)
            found[f"native {dtype.value}"] = [1e6 * call for call in measured.calls]
        return found

    return latency_rows(with_cluster(prepared, run))


def _counted(emulation: Emulation, prepared: PreparedExperiment) -> list[str]:
    """Return the environment of ranks that count the CPU time of all hosts and switches."""
    placed = prepared.placement
    hosts = dict(zip(("worker", "other"), placed.workers, strict=True))
    switches = {name: emulation.switch_process(name).pid for name in prepared.network.switches}
    return [
        f"{NAMESPACES}={json.dumps({name: emulation.pid(host) for name, host in hosts.items()})}",
        f"{PROCESSES}={json.dumps(switches)}",
    ]


def _echoes(emulation: Emulation, prepared: PreparedExperiment) -> list[float]:
    """Return round-trip times of packets to the other host in microseconds."""
    one, other = prepared.placement.workers
    address = prepared.network.hosts[other].ip
    python = [
        "env",
        f"PYTHONPATH={CHECKOUT}:{CHECKOUT / 'src'}",
        sys.executable,
        "-m",
        "benchmarks.echo",
    ]
    server = emulation.popen(other, [*python, "server", address])
    try:
        printed = emulation.run(one, [*python, "client", address, str(ECHOES)], ECHO_SECONDS)
        return [float(each) for each in printed.split()]
    finally:
        server.kill()
        server.wait()


def latency_rows(found: Mapping[str, Any]) -> Rows:
    """Return a row per stage: microseconds, ratio to gloo's, and CPU time in all processes."""
    gloo = median(found[GLOO])
    return [
        {
            "stage": stage.name,
            "what": stage.what,
            "wake_ups": stage.wake_ups,
            "calls": len(found[stage.name]),
            "best": round(min(found[stage.name])),
            "median": round(median(found[stage.name])),
            "90_percent": round(quantiles(found[stage.name], n=10)[-1]),
            "of_gloo": round(median(found[stage.name]) / gloo, 2),
            **_cpu_columns(found[CPU].get(stage.name)),
            "load": round(os.getloadavg()[0], 1),
        }
        for stage in STAGES
    ]


def _cpu_columns(used: Mapping[str, float] | None) -> dict[str, int | None]:
    """Return CPU time by user: a worker's rank and agent, and the switch."""
    if used is None:
        return {}
    return {
        "cpu_rank": round(used[RANK]),
        "cpu_agent": round(used["worker"] - used[RANK]),
        "cpu_switch": round(used["s1"]),
    }


@dataclass(frozen=True, slots=True)
class StepCase:
    """Steps of a training. `workers`: hosts. Rate in bit/s; `repeats`: steps of each backend."""

    training: str
    topology: str
    workers: int
    link_rate: float
    repeats: int
    rooted: bool = False
    ranks_per_host: int = 1

    @property
    def trees(self) -> str:
        """Where the job's trees have their roots (decision 0021)."""
        return _roots(self.rooted or self.ranks_per_host > 1)


STEP_CASES = (
    StepCase("cnn", "star:3", 3, 50e6, 5),
    StepCase("cnn", "star:8", 8, 50e6, 5),
    StepCase("cnn_compressed", "star:8", 8, 50e6, 5),
    StepCase("fsdp_gpt", "star:3", 3, 50e6, 30),
    StepCase("fsdp_gpt", "star:8", 8, 50e6, 30),
)
ROOT_CASES = tuple(
    StepCase("fsdp_gpt", f"star:{hosts}", hosts, rate, repeats, rooted, 4 // hosts)
    for hosts, ways in ((4, (False, True)), (2, (False,)))
    for rate, repeats in ((10e6, 20), (25e6, 60), (50e6, 60), (100e6, 60))
    for rooted in ways
)
"""Four ranks, one or two a host: those of the latter have their trees at the ranks anyway."""
BFLOAT16_CASES = tuple(
    StepCase("fsdp_gpt_bfloat16", "star:2", 2, rate, repeats, ranks_per_host=2)
    for rate, repeats in ((5e6, 20), (10e6, 20), (25e6, 30), (50e6, 30))
)
"""Parameters and reduction in bfloat16, which a CPU without such instructions is slow at."""

ORDERED_CASES = (
    *(
        StepCase(f"ordered:{order}", "star:4", 4, 50e6, 15)
        for order in ("same", "reversed", "rotated", "routed", "stages", "exits")
    ),
    StepCase("ordered:cnn", "star:4", 4, 50e6, 5),
)
"""With and without ordered gradients: experts in orders of `benchmarks.torch_rank`, and layers with
early exits, whose back-propagation takes about as long as their gradients on the links; and a chain
of layers that all ranks go through."""


def _roots(rooted: bool) -> str:
    return "at the ranks" if rooted else "at a server"


def steps(case: StepCase) -> Rows:
    """Measure steps whose communication overlaps with back-propagation."""
    return step_rows(case, _steps(case))


def ordered(case: StepCase) -> Rows:
    """Measure training steps with ordered gradients and with DDP's buckets."""
    return ordered_rows(case, _steps(case))


def _steps(case: StepCase) -> dict[str, list[float]]:
    prepared = _prepared(case.topology, case.workers, case.link_rate)

    async def run(running: RunningCluster, emulation: Emulation) -> dict[str, list[float]]:
        await wait_for_agents(running, prepared.hosts)
        arguments = [case.training, str(case.repeats)]
        workers = prepared.placement.workers
        return await train(
            running,
            emulation,
            workers,
            arguments,
            ranks_per_host=case.ranks_per_host,
            rooted=case.rooted,
        )

    return with_cluster(prepared, run)


def step_rows(case: StepCase, found: Mapping[str, Sequence[float]]) -> Rows:
    """Return a row per backend: milliseconds, and the speed-up over gloo."""
    gloo = median(found[GLOO])
    return [
        {
            "training": case.training,
            "topology": case.topology,
            "hosts": case.workers,
            "ranks": case.workers * case.ranks_per_host,
            "link_rate": case.link_rate,
            "backend": name,
            "trees": "" if name == GLOO else case.trees,
            "steps": len(found[name]),
            "milliseconds": round(median(found[name]), 1),
            "best": round(min(found[name]), 1),
            "without_communication": round(median(found[ALONE]), 1),
            "times_gloo": round(gloo / median(found[name]), 2),
            "load": round(os.getloadavg()[0], 1),
        }
        for name in (GLOO, SWITCHES)
    ]


def ordered_rows(case: StepCase, found: Mapping[str, Sequence[float]]) -> Rows:
    """Return a row per backend and way: milliseconds, and the speed-up over DDP's buckets."""
    rows = []
    for name in (GLOO, SWITCHES):
        buckets = median(found[f"{name}, {BUCKETS}"])
        for way in (BUCKETS, ORDERED):
            taken = found[f"{name}, {way}"]
            rows.append(
                {
                    "training": case.training.removeprefix("ordered:"),
                    "topology": case.topology,
                    "ranks": case.workers * case.ranks_per_host,
                    "link_rate": case.link_rate,
                    "backend": name,
                    "gradients": way,
                    "steps": len(taken),
                    "milliseconds": round(median(taken), 1),
                    "best": round(min(taken), 1),
                    "without_communication": round(median(found[ALONE]), 1),
                    "times_buckets": round(buckets / median(taken), 2),
                    "load": round(os.getloadavg()[0], 1),
                }
            )
    return rows


def processor_time(repeats: int = 3) -> Rows:
    """Measure the CPU time per gigabyte of a worker's host and the switch.

    Links are unshaped. A worker's host runs rank, torchrun and agent.
    """
    prepared = _prepared("star:2", 2, None)

    async def run(running: RunningCluster, emulation: Emulation) -> dict[str, dict[str, float]]:
        await wait_for_agents(running, prepared.hosts)
        workers, environment = prepared.placement.workers, _counted(emulation, prepared)
        return await train(running, emulation, workers, ["cpu", str(repeats)], environment)

    found = with_cluster(prepared, run)
    return [
        {
            "backend": name,
            "ranks": 2,
            "rank": round(found[name][RANK], 2),
            "agent": round(found[name]["worker"] - found[name][RANK], 2),
            "switch": round(sum(found[name][each] for each in prepared.network.switches), 2),
            "load": round(os.getloadavg()[0], 1),
        }
        for name in (GLOO, SWITCHES)
    ]


RANKS = (2, 3, 8)
TORCH_TESTS = CHECKOUT / "hopsum_torch"
OPERATIONS = TORCH_TESTS / "tests" / "support" / "operations.py"
COMPARE = OPERATIONS.with_name("compare.py")
LOOPBACK_SECONDS = 600.0


def operations() -> Rows:
    """Return, for each of gloo's operations, who executes its calls and whether results are equal.

    On this machine alone the tests' agents replace the switches.
    """
    compared: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
    with tempfile.TemporaryDirectory(prefix="hopsum-torch-") as folder:
        for ranks in RANKS:
            results = {name: f"{folder}/{name}-{ranks}" for name in ("gloo", LOOPBACK, CLUSTER)}
            for backend, name in (("gloo", "gloo"), ("hopsum", LOOPBACK)):
                command = ["-m", "tests.support.loopback", backend, str(ranks), results[name]]
                _python(command)
            _operations_in_cluster(ranks, results[CLUSTER])
            for where in (LOOPBACK, CLUSTER):
                printed = _python([str(COMPARE), str(ranks), results[where], results["gloo"]])
                compared[where, ranks] = json.loads(printed)
    return operation_rows(compared)


def _python(arguments: Sequence[str]) -> str:
    """Run Python in the folder of hopsum_torch's tests; return its output. Raises RunFailed."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=TORCH_TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=LOOPBACK_SECONDS,
    )
    if ended.returncode:
        raise RunFailed(f"{' '.join(arguments)}: ended with {ended.returncode}\n{ended.stderr}")
    return ended.stdout


def _operations_in_cluster(ranks: int, results: str) -> None:
    prepared = _prepared(f"star:{ranks}", ranks, None)

    async def run(running: RunningCluster, emulation: Emulation) -> None:
        await wait_for_agents(running, prepared.hosts)
        client = ControllerClient(running.address)
        trainer = Trainer(emulation, prepared.placement.workers, client, lambda text: None)
        trained = await trainer.run(Training([str(OPERATIONS), "hopsum", results]))
        if trained.errors:
            raise RunFailed("\n".join(["PyTorch's ranks failed:", *trained.errors]))

    with_cluster(prepared, run)


def operation_rows(compared: Mapping[tuple[str, int], Mapping[str, Mapping[str, int]]]) -> Rows:
    """Return a row per operation: a rank's calls in a cluster, and whether all results are equal.

    `compared`: output of `compare.py` for each operation, by place and ranks.
    """
    sizes = sorted({ranks for _, ranks in compared})

    def made(operation: str, ranks: int) -> str:
        calls = compared[CLUSTER, ranks][operation]
        return ", ".join(f"{calls[where]} {where}" for where in (SWITCHES, GLOO) if where in calls)

    return [
        {
            "operation": operation,
            **{f"{ranks}_ranks": made(operation, ranks) for ranks in sizes},
            **{
                f"equal_{where}": [
                    bool(compared[where, ranks][operation]["equal"]) for ranks in sizes
                ]
                for where in (LOOPBACK, CLUSTER)
            },
        }
        for operation in compared[CLUSTER, sizes[0]]
    ]


def sharded(
    workers: int, link_rate: float = 50e6, repeats: int = 3, *, rooted: bool = False
) -> Rows:
    """Measure bytes on a worker's link and time of FSDP's collectives, singly and concurrently."""
    rows = _over_links("sharded", workers, link_rate, repeats, rooted=rooted)
    return [{**row, "trees": "" if row["backend"] == GLOO else _roots(rooted)} for row in rows]


def sub_groups(workers: int = 8, link_rate: float = 50e6, repeats: int = 7) -> Rows:
    """Measure the same of calls in the rows and columns of a mesh of ranks."""
    return _over_links("groups", workers, link_rate, repeats)


def types(workers: int = 8, link_rate: float = 50e6, repeats: int = 3) -> Rows:
    """Measure all-reduces of each type: time, bytes on a worker's link, errors of sums."""
    return type_rows(workers, link_rate, _by_links("types", workers, link_rate, repeats))


def type_rows(
    workers: int, link_rate: float, found: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> Rows:
    """Return a row per type and backend; the times and errors of gloo are of the same type.

    `sent`: by a worker, in units of the tensor; `error`: relative L2 norm, for floats.
    """
    rows = []
    for name, ways in found.items():
        milliseconds = median(ways[GLOO]["milliseconds"])
        for backend, each in sorted(ways.items()):
            taken = median(each["milliseconds"])
            bits = {SWITCHES: TYPES[name], SWITCHES_16: 16}
            errors = {}
            if "errors" in each:
                error = median(each["errors"])
                errors["error"] = float(f"{error:.3g}")
                errors["of_gloos_error"] = round(error / median(ways[GLOO]["errors"]), 2)
            rows.append(
                {
                    "type": name,
                    "backend": backend.partition(",")[0],
                    "wire_bits": bits.get(backend),
                    "ranks": workers,
                    "link_rate": link_rate,
                    "sent": round(median(each["sent"]), 2),
                    "milliseconds": round(taken),
                    "times_gloo": round(milliseconds / taken, 2),
                    **errors,
                    "load": round(os.getloadavg()[0], 1),
                }
            )
    return rows


def _over_links(
    kind: str, workers: int, link_rate: float, repeats: int, *, rooted: bool = False
) -> Rows:
    found = _by_links(kind, workers, link_rate, repeats, rooted=rooted)
    return link_rows(workers, link_rate, found)


def _by_links(
    kind: str, workers: int, link_rate: float, repeats: int, *, rooted: bool = False
) -> dict[str, Any]:
    """Return what ranks at a switch measure, over links of a rate in bit/s."""
    prepared = _prepared(f"star:{workers}", workers, link_rate)

    async def run(running: RunningCluster, emulation: Emulation) -> dict[str, dict[str, Any]]:
        await wait_for_agents(running, prepared.hosts)
        names = prepared.placement.workers
        return await train(running, emulation, names, [kind, str(repeats)], rooted=rooted)

    return with_cluster(prepared, run)


def link_rows(
    workers: int, link_rate: float, found: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> Rows:
    """Return a row per call: bytes on a worker's link in units of the tensor, and the time.

    `of_links`: the time relative to that of these bytes on the link. `groups_ms`: of making a
    rank's groups.
    """
    rows = []
    for backend, calls in found.items():
        for call, each in calls.items():
            sent, received, taken = (
                median(each[key]) for key in ("sent", "received", "milliseconds")
            )
            least = 8e3 * each["bytes"] * max(sent, received) / link_rate
            rows.append(
                {
                    "ranks": workers,
                    "link_rate": link_rate,
                    "call": call,
                    "backend": backend,
                    "sent": round(sent, 2),
                    "received": round(received, 2),
                    "milliseconds": round(taken, 1),
                    "of_links": round(taken / least, 2),
                    **({"groups_ms": round(each["made"])} if "made" in each else {}),
                    "load": round(os.getloadavg()[0], 1),
                }
            )
    return rows
