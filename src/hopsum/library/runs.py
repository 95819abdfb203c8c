"""Runs of an all-reduce in virtual time or in Mininet, compared with the prediction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from hopsum.collectives.choices import (
    DEFAULT_PLANNER,
    Algorithm,
    Collective,
    Coordination,
    DataType,
    Engine,
    FormOptions,
    Results,
)
from hopsum.coordination.tree import TreeLimits
from hopsum.experiment.description import Experiment, PacketIo, WorldKind
from hopsum.experiment.result import Report, RunMeasurement
from hopsum.experiment.runner import run_experiment
from hopsum.library.choices import choice
from hopsum.library.progress import progress_bar
from hopsum.library.records import Records
from hopsum.network.model import Network
from hopsum.planning.model.options import as_texts
from hopsum.simulation.faults import outage_from

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

    from hopsum.controller.web.recording import Recording
    from hopsum.simulation.fragment_trace import FragmentTrace

_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """A finished run. `report`: everything that was predicted, measured and checked."""

    report: Report
    trace: FragmentTrace | None = None

    @property
    def seconds(self) -> float:
        """Seconds in all-reduces, virtual ones in virtual time."""
        return self._measured.seconds

    @property
    def predicted_seconds(self) -> float:
        """Predicted seconds, of a run without loss and outages."""
        return self.report.predicted.seconds

    @property
    def goodput(self) -> float:
        """Bits of each worker's tensors summed per second."""
        return self.report.tensor_bits / self.seconds if self.seconds else 0.0

    @property
    def exact(self) -> bool:
        """Whether every element is right and, where nothing was lost, every link's bytes are."""
        return not self.report.problems

    @property
    def problems(self) -> list[str]:
        """What is wrong with the run, in sentences; empty if nothing is."""
        return self.report.problems

    @property
    def retransmissions(self) -> int:
        """Fragments that agents sent again."""
        return self._measured.retransmissions

    @property
    def links(self) -> Records:
        """A row for each directed link: `from`, `to`, `predicted_bytes`, `measured_bytes`."""
        return Records(self.report.to_dict()["links"])

    @property
    def switches(self) -> Records:
        """A row for each switch: its counters by outcome (docs/protocol.md)."""
        return Records(
            {"switch": name, **counts} for name, counts in self._measured.switches.items()
        )

    @property
    def rounds(self) -> Records:
        """A row for each all-reduce of each worker: `round`, `worker`, `start`, `end`, `seconds`.

        Times in seconds from the first start.
        """
        workers = self._measured.intervals
        zero = min((start for intervals in workers for start, _ in intervals), default=0.0)
        return Records(
            {
                "round": number,
                "worker": worker,
                "start": start - zero,
                "end": end - zero,
                "seconds": end - start,
            }
            for worker, intervals in enumerate(workers)
            for number, (start, end) in enumerate(intervals)
        )

    @property
    def events(self) -> Records:
        """A row for each event of job, switches and links: `seconds` since submission, `text`."""
        return Records({"seconds": s, "text": text} for s, text in self._measured.events)

    @property
    def journey(self) -> list[str]:
        """The traced fragment's journey, a line for each step; needs `trace_fragment`."""
        if self.trace is None:
            return []
        from hopsum.reports.fragment_trace import trace_lines

        return list(trace_lines(self.trace))

    def journey_svg(self) -> str:
        """Return the traced fragment's journey as a sequence diagram."""
        from hopsum.reports.fragment_trace import trace_svg

        return "" if self.trace is None else trace_svg(self.trace)

    def to_frame(self, table: str = "links") -> Any:
        """Return `links`, `rounds`, `switches` or `events` as a pandas data frame."""
        rows: Records = getattr(self, table)
        return rows.to_frame()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, as `hopsum run --json` prints it."""
        return self.report.to_dict()

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot the seconds of each round, and the prediction. Raises MissingExtraError."""
        from hopsum.library.plots import new_axes

        axes = axes or new_axes()
        calls = self._measured.calls
        axes.plot(range(len(calls)), calls, "o-", ms=4, label="measured")
        each = self.predicted_seconds / len(calls) if calls else 0.0
        axes.axhline(each, color="#868e96", ls="--", lw=1, label="predicted")
        axes.set(xlabel="round", ylabel="seconds", ylim=(0, None))
        axes.legend(frameon=False)
        return axes

    def __str__(self) -> str:
        from hopsum.reports.summary import setting

        verdict = "exact" if self.exact else "; ".join(self.problems)
        return (
            f"{self.report.experiment.algorithm} with {setting(self.report.experiment)}: "
            f"{self.seconds:.4g} s, predicted {self.predicted_seconds:.4g} s; {verdict}"
        )

    def _repr_html_(self) -> str:
        from hopsum.reports.summary import figures

        rows = "".join(
            f"<tr><td>{escape(label)}</td><td style='text-align:right'>{escape(value)}</td></tr>"
            for label, value in figures([self.report])
        )
        return f"<p>{escape(str(self))}</p><table>{rows}</table>"

    @property
    def _measured(self) -> RunMeasurement:
        assert self.report.measured is not None  # `run` raises where a run has no measurement
        return self.report.measured


class RunOptions(TypedDict, total=False):
    """Options of every run.

    `servers`: how many, or their names; 0: each worker is one. `world`: `simulation` (in virtual
    time, the same each time) or `mininet` (real processes, as root). `engine`: `embedded` or
    `bmv2`; `packet_io`: `fast` or `scapy`. `wire_bits`: of a value in packets, 0: as `dtype` has
    it. `options`: of the planner by name, as `{"max-trees": 3}` (see `planner_options`). `window`:
    slots of a tree at a switch, None: as a job gets of an idle cluster. `train`: train on this data
    set (`digits`); `rounds` are then epochs, `coordinate`: gradients are summed one by one, in an
    order that workers agree on by `coordination` and a tree of `coordination_limits`. `form`: of
    level-wise. `loss`: share of frames lost on each link. `outages`: such as
    `"link-cut:l1-s1@0.5-3"`, in virtual time. `limit`: seconds after which a run is given up.
    `link_rate`, `uplink_rate` (bit/s), `latency` (s), `largest_piece`: of a network by name or from
    a file, as `load` takes them.
    """

    elements: int
    rounds: int
    world: str
    algorithm: str
    planner: str | None
    options: Mapping[str, object]
    servers: int | Sequence[str]
    dtype: str
    wire_bits: int
    collective: str
    results: str | None
    loss: float
    outages: Sequence[str]
    engine: str
    packet_io: str
    lanes: int
    window: int | None
    max_hops: int | None
    integrity: bool
    train: str | None
    coordinate: bool
    coordination: str
    coordination_limits: TreeLimits
    form: FormOptions
    seed: int
    limit: float
    link_rate: float | None
    uplink_rate: float | None
    latency: float | None
    largest_piece: bool


_CHOICES: dict[str, type[StrEnum]] = {
    "world": WorldKind,
    "algorithm": Algorithm,
    "dtype": DataType,
    "collective": Collective,
    "results": Results,
    "engine": Engine,
    "packet_io": PacketIo,
    "coordination": Coordination,
}


def experiment_of(
    network: Network | str | Path,
    workers: int | Sequence[str] | None = None,
    **options: Unpack[RunOptions],
) -> Experiment:
    """Return a run as data. Raises ExperimentError, PlanError, InputError."""
    given: dict[str, Any] = {"rounds": 1, "link_rate": None, **options}
    for name, kind in _CHOICES.items():
        if given.get(name) is not None:
            given[name] = choice(kind, name, given[name])
    given["workers"], given["worker_names"] = _hosts(workers)
    given["servers"], given["server_names"] = _hosts(given.get("servers", 1))
    if given.get("planner") is None:
        given["planner"] = DEFAULT_PLANNER
    given["planner_options"] = as_texts(given.pop("options", {}))
    given["outages"] = tuple(map(outage_from, given.get("outages", ())))
    topology = network.name if isinstance(network, Network) else str(network)
    return Experiment(topology=topology, **given)


def run(
    network: Network | str | Path,
    workers: int | Sequence[str] | None = None,
    *,
    trace_fragment: int | None = None,
    pcap: Path | None = None,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Sum random tensors of all workers, and check every element and every link's bytes.

    `network`: with rates on its links, or a name or file as `load` takes. `trace_fragment`: follow
    this fragment, see `Result.journey`. `pcap`: folder for captures of the switches' ports.
    `progress`: show a bar; None: if the run takes over a second. `options`: see `RunOptions`; by
    default one all-reduce of a million float32, in the switches.

    Raises ExperimentError, PlanError or NetworkError for an impossible run, RunFailed for one that
    did not finish. A result that is wrong is no error: see `Result.problems`.
    """
    experiment = experiment_of(network, workers, **options)
    trace = None
    if trace_fragment is not None:
        from hopsum.simulation.fragment_trace import FragmentTrace

        trace = FragmentTrace(trace_fragment)
    return execute(
        experiment,
        network if isinstance(network, Network) else None,
        trace=trace,
        pcap=pcap,
        progress=progress,
    )


def execute(
    experiment: Experiment,
    network: Network | None = None,
    *,
    trace: FragmentTrace | None = None,
    pcap: Path | None = None,
    recording: Recording | None = None,
    report: Path | None = None,
    notify: Callable[[str], None] | None = None,
    progress: bool | None = None,
    console: Console | None = None,
) -> Result:
    """Run an experiment behind a progress bar, as `run`, whose errors it raises.

    `recording` gets the cluster's states, the file `report` the report, and `notify` lines about
    what is started in Mininet (None: the log).
    """
    what = f"{experiment.algorithm.value} on {experiment.topology}"
    with progress_bar(what, progress, console) as advance:
        made = outside_event_loop(
            lambda: run_experiment(
                experiment,
                report,
                advance,
                recording,
                pcap=pcap,
                trace=trace,
                network=network,
                notify=notify,
            )
        )
    return Result(made, trace)


def outside_event_loop(function: Callable[[], _T]) -> _T:
    """Call a function that runs an event loop; in a thread if one runs here, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _hosts(given: int | Sequence[str] | None) -> tuple[int, tuple[str, ...]]:
    """Return how many hosts, and their names if they are named."""
    if given is None:
        return 0, ()
    return (given, ()) if isinstance(given, int) else (len(given), tuple(given))
