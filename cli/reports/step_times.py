"""A picture of trainings: the time of each step, through the switches and over gloo."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e")


def step_times_plot(milliseconds: Mapping[str, Sequence[float]]) -> bytes:
    """Return a PNG; `milliseconds`: step times in order, by label."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, times) in enumerate(milliseconds.items()):
        places = [(place + 1) / len(times) for place in range(len(times))]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, times, "o-", ms=4, color=colour, label=name)
    axes.set(xlabel="part of the training", ylabel="ms a step")
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    # Without the version in it, the same times give the same picture.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
