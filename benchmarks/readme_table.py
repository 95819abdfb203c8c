"""The README's table of figures, from benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = ("| measurement | result |", "| --- | --- |")
Rows = list[dict[str, Any]]

NETWORKS = {
    "dgx1": "DGX-1",
    "abilene": "Abilene",
    "attmpls": "AttMpls",
    "b4": "B4",
    "nsfnet": "NSFNET",
    "torus:4x4": "the 4x4 torus",
}
"""Networks of planning-number.json that the table names."""


def readme_with_table(readme: str, results: Path) -> str:
    """Return the README with its table replaced; ValueError if it has none."""
    start = readme.index("\n".join(HEAD))
    end = readme.index("\n\n", start)
    return readme[:start] + "\n".join((*HEAD, *_lines(results))) + readme[end:]


def _lines(results: Path) -> Iterator[str]:
    def rows(name: str) -> Rows:
        found: Rows = json.loads((results / f"{name}.json").read_text())["rows"]
        return found

    sums = [row for row in rows("goodput") if row["algorithm"] == "in-network"]
    fractions = ", ".join(f"{row['topology']} {row['goodput'] / row['limit']:.2f}" for row in sums)
    yield _line(
        "all-reduce of 8 workers in Mininet, as a fraction of what links and headers allow",
        fractions,
    )
    yield _line(
        "the same, compared with a ring over the same links",
        f"{min(row['times_ring'] for row in sums):.1f} times as fast",
    )
    differing = [row["topology"] for row in sums if not row["links_as_predicted"]]
    yield _line(
        "bytes on every link, compared with the prediction",
        f"different on {', '.join(differing)}" if differing else "equal, to the byte",
    )
    switch = _only(rows("switch"), engine="embedded", lanes=256, wire_bits=32, fan_in=8)
    yield _line(
        "embedded switch, 256 values a packet, fan-in 8, one core",
        f"{_rounded(switch['packets_per_second'])} packets/s",
    )
    whole, floats = (
        _rounded(_only(rows("agents"), path="fast", dtype=dtype)["fragments_per_second"])
        for dtype in ("int32", "float32")
    )
    yield _line(
        "a host's fast path, one core", f"{whole} fragments/s of int32, {floats} of float32"
    )
    step = _only(rows("torch-steps"), training="cnn", ranks=8, backend="switches")
    yield _line(
        "PyTorch, a training step of a CNN with 5 million parameters, 8 ranks at 50 Mbit/s",
        f"{step['times_gloo']:.1f} times as fast as over gloo",
    )
    hooked = _only(rows("torch-steps"), training="cnn_compressed", ranks=8, backend="switches")
    yield _line(
        "the same, gradients in 16 bits by `compress_hook`",
        f"{hooked['times_gloo']:.1f} times as fast as over gloo in 32",
    )
    half, byte = (
        _only(rows("torch-types"), type=name, backend="switches") for name in ("bfloat16", "int8")
    )
    yield _line(
        "PyTorch, all-reduce of 16 MB of bfloat16, or int8, 8 ranks at 50 Mbit/s",
        f"{half['times_gloo']:.2f}, or {byte['times_gloo']:.2f}, times as fast as over gloo; error "
        f"of bfloat16 {half['of_gloos_error']:.2f} of gloo's",
    )
    roots = rows("torch-roots")
    step = _only(roots, training="fsdp_gpt", hosts=2, link_rate=50e6, trees="at the ranks")
    yield _line(
        "PyTorch, a step of a small GPT with FSDP, two ranks on each of two hosts at 50 Mbit/s",
        f"{step['times_gloo']:.1f} times as fast as over gloo",
    )
    jobs = _only(rows("job-completion-mininet"), job="mean")
    yield _line(
        "eight concurrent jobs in Mininet, mean completion time",
        f"{jobs['of_fair']:.2f} of fair sharing, {jobs['server_times']:.1f} times faster than "
        "parameter servers",
    )
    least = min(
        _only(rows("planning-number"), network=name, planner="multi-tree", K=10)["of_strength"]
        for name in NETWORKS
    )
    *most, last = NETWORKS.values()
    yield _line(
        "rate of at most 10 trees of hosts, as a fraction of the proven optimum for any number",
        f"{least:.1f} on {', '.join(most)} and {last}",
    )
    flows = rows("flow-level")
    furthest = max(abs(row["ratio"] - 1) for row in flows)
    yield _line(
        f"flow simulator compared with Mininet, {len(flows)} cases",
        f"all within {100 * furthest:.0f} %",
    )
    hops = sorted(row["packet_hops_per_second"] for row in rows("simulation"))
    yield _line(
        "simulation with the real P4 program and agents",
        f"{_rounded(hops[0])} to {_rounded(hops[-1])} packet-hops/s",
    )


def _line(measurement: str, result: str) -> str:
    return f"| {measurement} | {result} |"


def _only(rows: Rows, **wanted: object) -> dict[str, Any]:
    """Return the one row with these values."""
    (found,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return found


def _rounded(value: float) -> str:
    """Return two significant digits."""
    return f"{float(f'{value:.2g}'):,.0f}"
