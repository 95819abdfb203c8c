"""Benchmarks by name: run those requested, print tables, write JSON with the machine's data."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Rows = list[dict[str, Any]]
Measure = Callable[[], Rows]
FILE_WIDTH = 200


def arguments(description: str | None, names: Mapping[str, object]) -> argparse.ArgumentParser:
    """Return the arguments common to all benchmark commands."""

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(
                f"there is no benchmark {name!r}; there are {', '.join(names)}"
            )
        return name

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", type=known, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    return parser


def run_benchmarks(
    measures: Mapping[str, Measure],
    asked: argparse.Namespace,
    *,
    prefix: str = "",
    skipped: Mapping[str, str] | None = None,
) -> None:
    """Run the named benchmarks (default: all); `skipped`: why some cannot run here."""
    asked.output.mkdir(parents=True, exist_ok=True)
    # In a file, lines are as wide as the tables.
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    for name in asked.names or measures:
        if skipped and name in skipped:
            console.print(f"{name}: skipped: {skipped[name]}", highlight=False)
            continue
        before, load = _processor_time(), os.getloadavg()[0]
        rows = measures[name]()
        values = {
            "machine": machine() | {"stolen": _stolen(before), "load_before": round(load, 1)},
            "rows": rows,
        }
        file = asked.output / f"{prefix}{name.replace(' ', '-')}.json"
        file.write_text(json.dumps(values, indent=1) + "\n")
        console.print(table(f"{prefix}{name}", rows))


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def _processor_time() -> tuple[int, int]:
    """Return clock ticks used or stolen since boot on all cores, and those stolen (proc(5))."""
    user, nice, system, _, _, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split()[1:9]
    )
    return user + nice + system + irq + softirq + steal, steal


def _stolen(before: tuple[int, int]) -> float:
    """Return the fraction of processor time since `before` that the hypervisor stole."""
    now = _processor_time()
    return round((now[1] - before[1]) / max(1, now[0] - before[0]), 3)


def table(title: str, rows: Rows) -> Table:
    """Return rows as a text table."""
    shown = Table(title=title)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for heading in columns:
        shown.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        shown.add_row(
            *(
                f"{v:,}" if isinstance(v, (int, float)) and not isinstance(v, bool) else str(v)
                for v in map(row.get, columns)
            )
        )
    return shown
