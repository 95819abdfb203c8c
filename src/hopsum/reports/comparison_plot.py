"""A picture of a comparison: time over size, time over workers, bytes on the busiest link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hopsum.experiment.comparison import ALGORITHMS, ComparisonResult
from hopsum.network.units import format_bytes
from hopsum.reports.plotting import png

COLOURS = dict(
    zip(
        ALGORITHMS,
        (
            *("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c92a2a", "#1864ab", "#a61e4d"),
            *("#5c940d", "#495057"),
        ),
        strict=True,
    )
)


def comparison_plot(compared: Sequence[ComparisonResult]) -> bytes:
    """Return a PNG: time over size at the most workers, the other two at the largest size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    workers, size = max(c.workers for c in compared), max(c.size for c in compared)
    by_size = [c for c in compared if c.workers == workers]
    by_workers = [c for c in compared if c.size == size]
    _panel(panels[0], by_size, lambda c: c.size, lambda c: c.seconds)
    panels[0].set(xlabel="bytes", ylabel="seconds", title=f"{workers} workers")
    _panel(panels[1], by_workers, lambda c: c.workers, lambda c: c.seconds)
    panels[1].set(xlabel="workers", ylabel="seconds", title=format_bytes(size))
    _panel(panels[2], by_workers, lambda c: c.workers, lambda c: c.hottest_bytes)
    panels[2].set(xlabel="workers", ylabel="bytes on the busiest link", title=format_bytes(size))
    panels[0].legend(frameon=False, fontsize=8)
    return png(figure)


def draw_lines(axes: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Draw a line for each algorithm through its points (algorithm, x, y), on log scales."""
    for name in dict.fromkeys(algorithm for algorithm, _, _ in points):
        line = sorted((x, y) for algorithm, x, y in points if algorithm == name)
        axes.plot(*zip(*line, strict=True), "o-", ms=4, color=COLOURS[name], label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")


def _panel(
    axes: Any,
    compared: Sequence[ComparisonResult],
    across: Callable[[ComparisonResult], float],
    up: Callable[[ComparisonResult], float],
) -> None:
    draw_lines(axes, [(c.algorithm, across(c), up(c)) for c in compared])
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
