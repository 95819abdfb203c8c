"""Axes for plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopsum.protocol.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes() -> Axes:
    """Return the axes of a new figure. Raises MissingExtraError without matplotlib."""
    require("matplotlib", "plot")
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, alpha=0.3)
    return axes
