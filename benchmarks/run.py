"""`make bench`: run the measurements, print tables, write JSON.

python -m benchmarks.run [--output FOLDER] [--seconds S] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from collectives.plan import DataType
from mininet_topos.loader import why_unavailable

Rows = list[dict[str, Any]]
FILE_WIDTH = 160


def switch(seconds: float, folder: Path) -> Rows:
    """The embedded switch, and BMv2 where it is, with both lane counts of the goals."""
    from benchmarks.switch_rate import measure
    from experiment.description import Engine

    rows = [measure(Engine.EMBEDDED, lanes, seconds, folder) for lanes in (256, 32)]
    if shutil.which("simple_switch_grpc") and shutil.which("p4c"):
        rows += [measure(Engine.BMV2, lanes, seconds, folder) for lanes in (256, 32)]
    return rows


def agents(seconds: float, folder: Path) -> Rows:
    """The agents' fast path, and Scapy beside it."""
    from benchmarks.agent_rate import fast_port, measure, scapy_port

    rows = [measure(dtype, seconds, fast_port, "fast") for dtype in DataType]
    rows.append(measure(DataType.INT32, seconds, scapy_port, "scapy"))
    return rows


def goodput(seconds: float, folder: Path) -> Rows:
    """All-reduce in Mininet against the limits of its links."""
    from benchmarks.goodput import CASES, measure

    return [row for case in CASES for row in measure(*case)]


def simulation(seconds: float, folder: Path) -> Rows:
    """The simulator."""
    from benchmarks.simulation_rate import measure

    return [measure("star:8", 8, 500_000), measure("fat-tree:4", 8, 500_000)]


def coordination(seconds: float, folder: Path) -> Rows:
    """Agreeing on operators: tree of controllers and central coordinator, in virtual time."""
    from benchmarks.coordination import measure

    return measure()


def collectives(seconds: float, folder: Path) -> Rows:
    """Our ring and the switches in Mininet, with PyTorch's gloo between the same hosts."""
    from benchmarks.collectives import CASES, gloo_missing, measure

    if (reason := gloo_missing()) is not None:
        Console().print(reason, highlight=False, markup=False)
    return [row for case in CASES for row in measure(case)]


BENCHMARKS: dict[str, tuple[bool, Callable[[float, Path], Rows]]] = {
    "simulation": (False, simulation),
    "coordination": (False, coordination),
    "switch": (True, switch),
    "agents": (True, agents),
    "goodput": (True, goodput),
    "collectives": (True, collectives),
}
"""Whether each needs root and Mininet, and what it is."""


def main() -> None:
    """Run the benchmarks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    options.output.mkdir(parents=True, exist_ok=True)
    # In a file, lines are as long as the tables.
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    reason = why_unavailable()
    for name in options.names or BENCHMARKS:
        needs_root, measure = BENCHMARKS[name]
        if needs_root and reason is not None:
            console.print(f"{name}: skipped: {reason}", highlight=False)
            continue
        rows = measure(options.seconds, options.output)
        values = {"machine": machine(), "rows": rows}
        (options.output / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
        console.print(table(name, rows))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def table(title: str, rows: Rows) -> Table:
    """Rows as a table."""
    shown = Table(title=title)
    for heading in rows[0]:
        shown.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        shown.add_row(
            *(
                f"{v:,}" if isinstance(v, (int, float)) and not isinstance(v, bool) else str(v)
                for v in row.values()
            )
        )
    return shown


if __name__ == "__main__":
    main()
