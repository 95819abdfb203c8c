"""`make bench`: run the measurements, print tables, write JSON.

python -m benchmarks.run [--output FOLDER] [--seconds S] [NAME ...]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    agent_rate,
    collectives,
    congestion,
    coordination,
    faults,
    flow_level,
    goodput,
    integrity_rate,
    layer,
    level_wise,
    local_ranks,
    loss,
    sharded,
    simulation_rate,
    switch_rate,
    torch_figures,
)
from benchmarks.report import Rows, arguments, run_benchmarks
from hopsum.collectives.choices import Engine
from hopsum.collectives.plan import DataType
from hopsum.mininet_topos.loader import why_unavailable
from hopsum.protocol.wire import Width

Measure = Callable[[float, Path], Rows]
"""Called with the seconds of a measurement, and a folder for files."""


def _joined(parts: Iterable[Iterable[dict[str, Any]]]) -> Rows:
    return [*chain.from_iterable(parts)]


def measure_switches(seconds: float, folder: Path) -> Rows:
    """Measure the embedded switch, and BMv2 if installed, by lanes and bits of a value."""
    engines = [Engine.EMBEDDED]
    if shutil.which("simple_switch_grpc") and shutil.which("p4c"):
        engines.append(Engine.BMV2)
    shapes = [*((256, width) for width in Width), (32, Width.WIDTH_32)]
    return [
        switch_rate.measure(engine, *shape, seconds, folder)
        for engine, shape in product(engines, shapes)
    ]


def measure_agents(seconds: float, folder: Path) -> Rows:
    """Measure the agents' fast path, and Scapy for comparison."""
    measure, fast, scapy = agent_rate.measure, agent_rate.fast_port, agent_rate.scapy_port
    rows = [measure(dtype, seconds, fast, "fast") for dtype in DataType]
    return [*rows, measure(DataType.INT32, seconds, scapy, "scapy")]


def measure_check_lanes(seconds: float, folder: Path) -> Rows:
    """Measure the cost of check lanes to agents."""
    return [
        integrity_rate.measure(dtype, seconds, integrity=integrity)
        for dtype, integrity in product((DataType.FLOAT32, DataType.INT32), (False, True))
    ]


def measure_collectives(seconds: float, folder: Path) -> Rows:
    """Measure the ring and the switches in Mininet, and PyTorch's gloo between the same hosts."""
    if (reason := collectives.gloo_missing()) is not None:
        Console().print(reason, highlight=False, markup=False)
    return _joined(map(collectives.measure, collectives.CASES))


def measure_congestion(seconds: float, folder: Path) -> Rows:
    """Measure how jobs and TCP connections share a link, where possible in Mininet too."""
    emulated = congestion.measure_emulated() if why_unavailable() is None else []
    return [*congestion.measure(), *emulated]


def measure_sharded(seconds: float, folder: Path) -> Rows:
    """Measure bytes and times of FSDP's collectives, one at a time and both at once."""
    return _joined(
        torch_figures.sharded(workers, rooted=rooted)
        for workers, rooted in product((3, 4, 8), (False, True))
    )


BENCHMARKS: dict[str, tuple[bool, Measure]] = {
    "simulation": (
        False,
        lambda *_: [
            simulation_rate.measure(topology, 8, 500_000) for topology in ("star:8", "fat-tree:4")
        ],
    ),
    "loss": (False, lambda *_: _joined(loss.measure(*case) for case in loss.CASES)),
    "congestion": (False, measure_congestion),
    "coordination": (False, lambda *_: coordination.measure()),
    "level-wise": (False, lambda *_: level_wise.measure()),
    "integrity": (False, measure_check_lanes),
    "sharded": (False, lambda *_: _joined(map(sharded.measure, (3, 4, 8)))),
    "local-ranks": (False, lambda *_: local_ranks.all_ways()),
    "switch": (True, measure_switches),
    "agents": (True, measure_agents),
    "goodput": (True, lambda *_: _joined(goodput.measure(*case) for case in goodput.CASES)),
    "layer": (True, lambda *_: layer.measure()),
    "faults": (True, lambda *_: faults.measure(Engine.EMBEDDED)),
    "faults-bmv2": (True, lambda *_: faults.measure(Engine.BMV2)),
    "collectives": (True, measure_collectives),
    "flow-level": (True, lambda *_: _joined(map(flow_level.measure, flow_level.CASES))),
    "torch-operations": (True, lambda *_: torch_figures.operations()),
    "torch-latency": (True, lambda *_: torch_figures.latency()),
    "torch-steps": (
        True,
        lambda *_: _joined(map(torch_figures.steps, torch_figures.STEP_CASES)),
    ),
    "torch-roots": (
        True,
        lambda *_: _joined(map(torch_figures.steps, torch_figures.ROOT_CASES)),
    ),
    "torch-bfloat16": (
        True,
        lambda *_: _joined(map(torch_figures.steps, torch_figures.BFLOAT16_CASES)),
    ),
    "torch-ordered": (
        True,
        lambda *_: _joined(map(torch_figures.ordered, torch_figures.ORDERED_CASES)),
    ),
    "torch-cpu": (True, lambda *_: torch_figures.processor_time()),
    "torch-sharded": (True, measure_sharded),
    "torch-groups": (True, lambda *_: torch_figures.sub_groups()),
    "torch-types": (True, lambda *_: torch_figures.types()),
}
"""Whether each needs root and Mininet, and its function; its module says what it measures."""


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
