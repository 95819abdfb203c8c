"""Algorithms compared at flow level: bytes and seconds of thousands of hosts in moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hopsum.experiment.comparison import ALGORITHMS, Comparison, compare_on
from hopsum.library.records import Records
from hopsum.network.model import Network
from hopsum.network.units import parse_size
from hopsum.planning.model.options import as_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Comparisons(Records):
    """A row for each algorithm and size.

    `algorithm`, `workers`, `size_bytes`, `seconds`, `goodput_bits_per_second`, `total_bytes`,
    `hottest_link`, `hottest_link_bytes`.
    """

    def plot(self, axes: Axes | None = None, y: str = "seconds") -> Axes:
        """Plot a column over the size of the tensor. Raises MissingExtraError."""
        from hopsum.library.plots import new_axes
        from hopsum.reports.comparison_plot import draw_lines

        axes = axes or new_axes()
        draw_lines(axes, [(row["algorithm"], row["size_bytes"], row[y]) for row in self])
        axes.set(xlabel="bytes", ylabel=y.replace("_", " "))
        axes.legend(frameon=False, fontsize=8)
        return axes


def algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms that `compare` and `run` take."""
    return ALGORITHMS


def compare(
    network: Network,
    sizes: Sequence[int | str],
    *,
    workers: int | None = None,
    algorithms: Sequence[str] = (),
    servers: int = 1,
    planner: str = "multi-hop",
    options: Mapping[str, object] | None = None,
) -> Comparisons:
    """Time all-reduces by several algorithms at flow level: max-min fair rates and latency.

    `sizes`: of a tensor in bytes, or as text (`"100MB"`). `algorithms` empty: all that the network
    allows, but embedding. `options`: of the planner. Links need rates. Raises NetworkError,
    PlanError, ScheduleError, ExperimentError.
    """
    comparison = Comparison(
        network.name,
        tuple(size if isinstance(size, int) else parse_size(size) for size in sizes),
        algorithms=tuple(algorithms),
        servers=servers,
        planner=planner,
        planner_options=as_texts(options or {}),
    )
    return Comparisons(each.to_dict() for each in compare_on(network, comparison, workers))
