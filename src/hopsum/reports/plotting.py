"""Plots as PNG, in one style."""

from __future__ import annotations

import io
from typing import Any


def panels(
    count: int = 1, width: float = 6.4, height: float = 3.2, *, common: bool = True
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels from left to right. Sizes in inches.

    `common`: they share the y axis.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(1, count, sharey=common, squeeze=False)[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def png(figure: Any) -> bytes:
    """Return a figure as PNG."""
    buffer = io.BytesIO()
    # Without the version in it, the same data give the same picture.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
