"""Plots of the results in docs/figures.md; `python -m benchmarks.figures` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.bar_chart import Bar, chart_svg

OURS, SERVER, OTHER, PLAIN = "#0b7285", "#e8590c", "#5f3dc4", "#868e96"
COLOURS = {
    "in-network": OURS, "switches": OURS, "priorities": OURS, "embedded": OURS,
    "server": SERVER, "bmv2": SERVER, "ring": OTHER, "fair": OTHER,
}  # fmt: skip
Row = dict[str, Any]


class Plot(NamedTuple):
    """What a plot of a result's rows shows; `bars` makes them."""

    title: str
    note: str
    bars: Callable[[Sequence[Row]], Iterator[Bar]]

    def svg(self, rows: Sequence[Row]) -> str:
        """Return the picture of the rows."""
        return chart_svg(self.title, self.note, list(self.bars(rows)))


def _colour(name: str) -> str:
    return COLOURS.get(name, PLAIN)


def _collectives(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        rates = f"{row['link_rate'] / 1e6:g}"
        if row["uplink_rate"]:
            rates += f"/{row['uplink_rate'] / 1e6:g}"
        mbit = row["goodput"] / 1e6
        name = f"{row['topology']}, {rates} Mbit/s, {row['bytes'] / 1e6:g} MB: {row['algorithm']}"
        yield Bar(name, mbit, f"{mbit:.1f}", _colour(row["algorithm"]))


def _faults(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        still = row["stood_still"]
        if still is not None:
            yield Bar(row["failure"], still, f"{still:.2f}", OURS)


def _flow_level(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        name, seconds = row["algorithm"], row["measured"]
        yield Bar(
            f"{row['topology']}: {name}", seconds, f"{seconds:.2f}", _colour(name), row["simulated"]
        )


def _goodput(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        name, mbit = row["algorithm"], row["goodput"] / 1e6
        yield Bar(
            f"{row['topology']}: {name}", mbit, f"{mbit:.1f}", _colour(name), row["limit"] / 1e6
        )


def _job_completion(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        for way in ("priorities", "fair", "server"):
            yield Bar(f"{row['job']}: {way}", row[way], f"{row[way]:.1f}", _colour(way))


def _loss(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        words = [f"{100 * row['loss']:g} % lost"]
        words += [f"in bursts of {row['burst']:g}"] if row["burst"] != 1 else []
        words += [f"{100 * row['reorder']:g} % reordered"] if row["reorder"] else []
        words += [f"{1000 * row['latency']:g} ms a link"] if row["latency"] else []
        words += [row["way"]] if row["way"] != "replicated" else []
        yield Bar(
            f"{row['topology']}: {', '.join(words)}", row["ratio"], f"{row['ratio']:.2f}", OURS,
            row["limit"],
        )  # fmt: skip


def _sharded(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        name, times = row["way"], row["each_way"]
        colour = PLAIN if "gloo" in name else OURS
        yield Bar(f"{row['ranks']} ranks: {name}", times, f"{times:.2f}", colour)


def _switch(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        rate = row["packets_per_second"]
        name = f"{row['engine']}, {row['lanes']} lanes, {row['wire_bits']} bits a value"
        yield Bar(name, rate, f"{rate:,}", _colour(row["engine"]))


def _torch_steps(rows: Sequence[Row]) -> Iterator[Bar]:
    for row in rows:
        name, ms = row["backend"], row["milliseconds"]
        yield Bar(
            f"{row['training']}, {row['ranks']} ranks: {name}", ms, f"{ms:,.0f}", _colour(name),
            row["without_communication"],
        )  # fmt: skip


PLOTS = {
    "collectives": Plot("Goodput of a rank, Mbit/s", "all-reduce in Mininet", _collectives),
    "faults": Plot("Seconds without a new sum", "after a failure, with real processes", _faults),
    "flow-level": Plot(
        "Seconds of an all-reduce", "bars: measured in Mininet; dashed: flow simulator", _flow_level
    ),
    "goodput": Plot(
        "Goodput of a worker, Mbit/s",
        "8 workers in Mininet; dashed: what links and headers allow",
        _goodput,
    ),
    "job-completion-mininet": Plot(
        "Completion time of a job, seconds", "eight jobs at once in Mininet", _job_completion
    ),
    "loss": Plot(
        "Time of an all-reduce, of the lossless time",
        "loss on every link, virtual time; every sum is exact; dashed: 1 / (1 - loss)",
        _loss,
    ),
    "sharded": Plot(
        "FSDP's collectives: bytes each way on a rank's link, of the tensor's",
        "flow level",
        _sharded,
    ),
    "switch": Plot("Packets a second", "hopsum.p4, one switch", _switch),
    "torch-steps": Plot(
        "Milliseconds of a training step",
        "PyTorch in Mininet; dashed: without communication",
        _torch_steps,
    ),
}
"""By the name of the result's file."""
