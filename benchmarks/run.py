"""`make bench`: run the measurements, print tables, write JSON.

python -m benchmarks.run [--output FOLDER] [--seconds S] [NAME ...]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks.report import Rows, arguments, run_benchmarks
from hopsum.collectives.plan import DataType
from hopsum.mininet_topos.loader import why_unavailable


def switch(seconds: float, folder: Path) -> Rows:
    """Measure the embedded switch, and BMv2 if installed, with both lane counts of the goals."""
    from benchmarks.switch_rate import measure
    from hopsum.experiment.description import Engine

    rows = [measure(Engine.EMBEDDED, lanes, seconds, folder) for lanes in (256, 32)]
    if shutil.which("simple_switch_grpc") and shutil.which("p4c"):
        rows += [measure(Engine.BMV2, lanes, seconds, folder) for lanes in (256, 32)]
    return rows


def agents(seconds: float, folder: Path) -> Rows:
    """Measure the agents' fast path, and Scapy for comparison."""
    from benchmarks.agent_rate import fast_port, measure, scapy_port

    rows = [measure(dtype, seconds, fast_port, "fast") for dtype in DataType]
    rows.append(measure(DataType.INT32, seconds, scapy_port, "scapy"))
    return rows


def integrity(seconds: float, folder: Path) -> Rows:
    """Measure the cost of check lanes to agents."""
    from benchmarks.integrity_rate import measure

    return [
        measure(dtype, seconds, integrity=with_lanes)
        for dtype in DataType
        for with_lanes in (False, True)
    ]


def goodput(seconds: float, folder: Path) -> Rows:
    """Measure all-reduce in Mininet against the limits of its links."""
    from benchmarks.goodput import CASES, measure

    return [row for case in CASES for row in measure(*case)]


def layer(seconds: float, folder: Path) -> Rows:
    """Measure the all-reduce of a small model's gradient against the ring, and predictions."""
    from benchmarks.layer import measure

    return measure()


def simulation(seconds: float, folder: Path) -> Rows:
    """Measure the simulator."""
    from benchmarks.simulation_rate import measure

    return [measure("star:8", 8, 500_000), measure("fat-tree:4", 8, 500_000)]


def loss(seconds: float, folder: Path) -> Rows:
    """Measure the cost of random and bursty loss in virtual time."""
    from benchmarks.loss import CASES, measure

    return [row for case in CASES for row in measure(*case)]


def coordination(seconds: float, folder: Path) -> Rows:
    """Measure agreement on operators: tree and central coordinator, in virtual time."""
    from benchmarks.coordination import measure

    return measure()


def level_wise(seconds: float, folder: Path) -> Rows:
    """Compare level-wise all-reduce with flat rings on trees, at flow level."""
    from benchmarks.level_wise import measure

    return measure()


def collectives(seconds: float, folder: Path) -> Rows:
    """Measure the ring and the switches in Mininet, and PyTorch's gloo between the same hosts."""
    from benchmarks.collectives import CASES, gloo_missing, measure

    if (reason := gloo_missing()) is not None:
        Console().print(reason, highlight=False, markup=False)
    return [row for case in CASES for row in measure(case)]


def flow_level(seconds: float, folder: Path) -> Rows:
    """Compare the flow simulator with shaped links in Mininet, for every algorithm."""
    from benchmarks.flow_level import CASES, measure

    return [row for case in CASES for row in measure(case)]


def faults(seconds: float, folder: Path) -> Rows:
    """Measure failures in Mininet: time until noticed, time until the job continues, sums."""
    from benchmarks.faults import measure
    from hopsum.experiment.description import Engine

    return measure(Engine.EMBEDDED)


def faults_bmv2(seconds: float, folder: Path) -> Rows:
    """Measure the same failures with BMv2."""
    from benchmarks.faults import measure
    from hopsum.experiment.description import Engine

    return measure(Engine.BMV2)


def sharded(seconds: float, folder: Path) -> Rows:
    """Compute the time of FSDP's collectives at flow level, in the switches and over gloo."""
    from benchmarks.sharded import measure

    return [row for workers in (3, 4, 8) for row in measure(workers)]


def local_ranks(seconds: float, folder: Path) -> Rows:
    """Measure the load of several ranks on their host's link in virtual time, for each way."""
    from benchmarks.local_ranks import all_ways

    return all_ways()


def torch_operations(seconds: float, folder: Path) -> Rows:
    """List which of gloo's operations the switches perform, and check all against gloo's values."""
    from benchmarks.torch_figures import operations

    return operations()


def torch_latency(seconds: float, folder: Path) -> Rows:
    """Measure a call of one fragment from PyTorch, and its parts."""
    from benchmarks.torch_figures import latency

    return latency()


def torch_steps(seconds: float, folder: Path) -> Rows:
    """Measure training steps through the switches and over gloo."""
    from benchmarks.torch_figures import STEP_CASES, steps

    return [row for case in STEP_CASES for row in steps(case)]


def torch_roots(seconds: float, folder: Path) -> Rows:
    """Measure steps of FSDP at several rates, with trees at a server and at the ranks."""
    from benchmarks.torch_figures import ROOT_CASES, steps

    return [row for case in ROOT_CASES for row in steps(case)]


def torch_cpu(seconds: float, folder: Path) -> Rows:
    """Measure the CPU time per gigabyte through the switches and over gloo."""
    from benchmarks.torch_figures import processor_time

    return processor_time()


def torch_sharded(seconds: float, folder: Path) -> Rows:
    """Measure bytes and times of FSDP's collectives, one at a time and both at once."""
    from benchmarks.torch_figures import sharded

    cases = [(workers, rooted) for workers in (3, 4, 8) for rooted in (False, True)]
    return [row for workers, rooted in cases for row in sharded(workers, rooted=rooted)]


def torch_groups(seconds: float, folder: Path) -> Rows:
    """Measure PyTorch's sub-groups: bytes on links and time."""
    from benchmarks.torch_figures import sub_groups

    return sub_groups()


def congestion(seconds: float, folder: Path) -> Rows:
    """Measure how jobs and TCP connections share a link."""
    from benchmarks.congestion import measure, measure_emulated

    return [*measure(), *(measure_emulated() if why_unavailable() is None else ())]


BENCHMARKS: dict[str, tuple[bool, Callable[[float, Path], Rows]]] = {
    "simulation": (False, simulation),
    "loss": (False, loss),
    "congestion": (False, congestion),
    "coordination": (False, coordination),
    "level-wise": (False, level_wise),
    "integrity": (False, integrity),
    "sharded": (False, sharded),
    "local-ranks": (False, local_ranks),
    "switch": (True, switch),
    "agents": (True, agents),
    "goodput": (True, goodput),
    "layer": (True, layer),
    "faults": (True, faults),
    "faults-bmv2": (True, faults_bmv2),
    "collectives": (True, collectives),
    "flow-level": (True, flow_level),
    "torch-operations": (True, torch_operations),
    "torch-latency": (True, torch_latency),
    "torch-steps": (True, torch_steps),
    "torch-roots": (True, torch_roots),
    "torch-cpu": (True, torch_cpu),
    "torch-sharded": (True, torch_sharded),
    "torch-groups": (True, torch_groups),
}
"""Whether each needs root and Mininet, and its function."""


def main() -> None:
    """Run the benchmarks named, or all."""
    parser = arguments(__doc__, BENCHMARKS)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement")
    asked = parser.parse_args()
    reason = why_unavailable()
    skipped = {n: reason for n, (root, _) in BENCHMARKS.items() if root} if reason else {}
    if not (shutil.which("simple_switch_grpc") and shutil.which("p4c")):
        skipped["faults-bmv2"] = "p4c and simple_switch_grpc are not on PATH"
    if find_spec("torch") is None:
        without = "PyTorch is not installed (make torch)"
        skipped |= {name: without for name in BENCHMARKS if name.startswith("torch-")}
    run_benchmarks(
        {
            name: partial(measure, asked.seconds, asked.output)
            for name, (_, measure) in BENCHMARKS.items()
        },
        asked,
        skipped=skipped,
    )


if __name__ == "__main__":
    main()
