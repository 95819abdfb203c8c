"""A picture of trainings: the time of each step, through the switches and over gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopsum.reports.plotting import panels, png

COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e")


def step_times_plot(milliseconds: Mapping[str, Sequence[float]]) -> bytes:
    """Return a PNG; `milliseconds`: step times in order, by label."""
    figure, [axes] = panels(1, 6.4, 3.6)
    for number, (name, times) in enumerate(milliseconds.items()):
        places = [(place + 1) / len(times) for place in range(len(times))]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, times, "o-", ms=4, color=colour, label=name)
    axes.set(xlabel="part of the training", ylabel="ms a step")
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return png(figure)
