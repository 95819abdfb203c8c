"""Comparison of algorithms at flow level: the same all-reduce on the same network by each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hopsum.collectives.algorithms.catalogue import LEVEL_WISE, MULTI_TREE, SCHEDULES, make_schedule
from hopsum.collectives.algorithms.level_wise_form import forms_of
from hopsum.collectives.algorithms.trees import SharedTree
from hopsum.collectives.choices import (
    DEFAULT_FORM,
    EMBEDDING,
    MTREE,
    Algorithm,
    DataType,
    FormOptions,
)
from hopsum.collectives.plan import JobPlan
from hopsum.collectives.workload import check_wire_bits, is_for_trees
from hopsum.controller.jobs.job_request import complete_task
from hopsum.experiment.description import Experiment, ExperimentError
from hopsum.experiment.prepare import job_on, plan_of, task_of
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.units import parse_rate, parse_size
from hopsum.planning.model.placement import place_ranks
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import with_options
from hopsum.protocol.wire import LANES_DEFAULT
from hopsum.timing.estimate import Estimate, Fidelity, estimate
from hopsum.timing.work import Background, PlanWork, ScheduleWork, Work

ELEMENT_BYTES = 4
"""Of schedules, which send as many bytes of any type."""

PLANS = (Algorithm.IN_NETWORK.value, Algorithm.SERVER.value)
"""Algorithms over hopsum's protocol, with servers."""
USUAL = (*PLANS, *SCHEDULES, MULTI_TREE)
"""Those above, schedules over TCP among the workers, and the planner's trees."""
ALGORITHMS = (*USUAL, EMBEDDING)
"""All algorithms: those above, and a mix of them, which takes long to plan."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of algorithms, for numbers of workers and sizes in bytes.

    Rates in bit/s, times in s. `workers` empty: as many as fit into the network. `algorithms`
    empty: all that the network allows, but embedding. `block`: bytes that an agent forwards at a
    time, None: as agents do (`agents_transport`). `overhead`: of every message over TCP. `planner`:
    for trees of switches or of hosts, with `planner_options` of its own. The rest as in
    `Experiment`.
    """

    topology: str
    sizes: tuple[int, ...]
    workers: tuple[int, ...] = ()
    algorithms: tuple[str, ...] = ()
    link_rate: float | None = 25e6
    uplink_rate: float | None = None
    latency: float | None = None
    largest_piece: bool = False
    servers: int = 1
    planner: str = "multi-hop"
    planner_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    form: FormOptions = DEFAULT_FORM
    lanes: int = LANES_DEFAULT
    window: int | None = None
    dtype: DataType = DataType.FLOAT32
    wire_bits: int = 0
    block: int | None = None
    overhead: float = 0.0
    background: tuple[Background, ...] = ()

    def __post_init__(self) -> None:
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise ExperimentError(
                    f"algorithm {name!r}: expected some of {', '.join(ALGORITHMS)}"
                )
        with_options(PlanRequest(1, 1, (), ()), self.planner, self.planner_options)
        check_wire_bits(self.dtype, self.wire_bits)
        if EMBEDDING in self.algorithms and is_for_trees(self.dtype, self.wire_bits):
            raise ExperimentError(
                f"algorithm {EMBEDDING}: only switches and servers can sum values of less than 32 "
                "bits; omit it, or use float32 or int32 as they are"
            )
        for what, values in (("size", self.sizes), ("workers", self.workers)):
            if any(value < 1 for value in values):
                raise ExperimentError(f"{what} {min(values)}: expected at least 1")
        if self.form != DEFAULT_FORM and self.algorithms and LEVEL_WISE not in self.algorithms:
            raise ExperimentError(
                "level-wise-form and siblings: options of the algorithm level-wise; add it, or "
                "omit them"
            )
        if not self.sizes:
            raise ExperimentError("no size: expected at least one, such as 100MB")


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """One all-reduce of `size` bytes among `workers`. `hottest`: the link with the most bytes.

    `form`: how the algorithm level-wise exchanges; empty for the others.
    """

    algorithm: str
    workers: int
    size: int
    seconds: float
    total_bytes: int
    hottest: tuple[str, str]
    hottest_bytes: int
    form: str = ""

    @property
    def goodput(self) -> float:
        """Return the goodput of a worker in bit/s."""
        return 8 * self.size / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as an object of the report."""
        return {
            "algorithm": self.algorithm,
            "workers": self.workers,
            "size_bytes": self.size,
            "seconds": self.seconds,
            "goodput_bits_per_second": self.goodput,
            "total_bytes": self.total_bytes,
            "hottest_link": list(self.hottest),
            "hottest_link_bytes": self.hottest_bytes,
            **({"form": self.form} if self.form else {}),
        }


def compare(comparison: Comparison) -> Iterator[ComparisonResult]:
    """Simulate all cases, in order of workers, size and algorithm.

    Raises NetworkError, PlanError, ScheduleError or ExperimentError for an impossible case.
    """
    for workers in comparison.workers or (None,):
        network = load_network(
            comparison.topology,
            link_rate=comparison.link_rate,
            uplink_rate=comparison.uplink_rate,
            latency=comparison.latency,
            servers=comparison.servers,
            workers=workers,
            largest_piece=comparison.largest_piece,
        )
        yield from compare_on(network, comparison, workers)


def compare_on(
    network: Network, comparison: Comparison, workers: int | None = None
) -> Iterator[ComparisonResult]:
    """Simulate the cases of a number of workers (None: all hosts) on a network, as `compare`."""
    algorithms = comparison.algorithms or _possible(network, workers)
    placement = place_ranks(network, workers, comparison.servers)
    plans: dict[str, JobPlan] = {}
    trees: tuple[SharedTree, ...] = ()
    for name in algorithms:
        experiment = _experiment(comparison, len(placement.workers), name)
        settings, job = job_on(network, experiment)
        if not job.among_hosts:
            _, plans[name], _ = plan_of(network, placement, job, settings)
        elif name == MULTI_TREE:
            trees = task_of(complete_task(job, network, placement.workers)).trees
    for size in comparison.sizes:
        for name in algorithms:
            forms: tuple[str, ...] = ()
            if name in plans:
                tensor = -(-8 * size // comparison.dtype.bits), comparison.dtype
                work: Work = PlanWork(plans[name], [tensor], wire_bits=comparison.wire_bits)
            else:
                elements = -(-size // ELEMENT_BYTES)
                ranks = placement.workers
                schedule = make_schedule(name, network, ranks, elements, trees, comparison.form)
                if name == LEVEL_WISE:
                    forms = forms_of(network, ranks, [elements], comparison.form)
                block = _block(comparison.block)
                work = ScheduleWork([schedule], block=block, overhead=comparison.overhead)
            found = estimate(network, work, Fidelity.FLOWS, background=comparison.background)
            compared = _compared(name, len(placement.workers), size, found)
            yield replace(compared, form="; ".join(forms))


def _possible(network: Network, workers: int | None) -> tuple[str, ...]:
    """Return the usual ones; where hosts forward, those that need no switches or workers' links."""
    if network.switches:
        return USUAL
    idle = workers is not None and workers < len(network.hosts)
    needing = (*PLANS, *([MULTI_TREE] if idle else ()))
    return tuple(name for name in USUAL if name not in needing)


def _block(size: int | None) -> int | None:
    return None if size is None else max(1, size // ELEMENT_BYTES)


def _experiment(comparison: Comparison, workers: int, name: str) -> Experiment:
    """Return the experiment that `hopsum run` would run with this algorithm."""
    planner = EMBEDDING if name == EMBEDDING else comparison.planner
    planned = name in (Algorithm.IN_NETWORK, EMBEDDING) or (name == MULTI_TREE and planner == MTREE)
    return Experiment(
        topology=comparison.topology,
        workers=workers,
        algorithm=Algorithm(name),
        lanes=comparison.lanes,
        window=comparison.window,
        servers=comparison.servers,
        planner=planner if planned else "multi-hop",
        planner_options=(
            comparison.planner_options if planned and planner == comparison.planner else {}
        ),
    )


def _compared(name: str, workers: int, size: int, found: Estimate) -> ComparisonResult:
    return ComparisonResult(name, workers, size, found.seconds, found.total_bytes, *found.hottest)


def parse_background(text: str) -> Background:
    """Parse background traffic: `h1-h5`, `h1-h5:10Mbit` (a rate) or `h1-h5:20MB` (an amount).

    Raises ExperimentError.
    """
    match = re.fullmatch(r"([^:]+?)-([^:]+?)(?::(.+))?", text)
    if not match:
        raise ExperimentError(
            f"background {text!r}: expected source-target, such as h1-h5, h1-h5:10Mbit or "
            "h1-h5:20MB"
        )
    traffic = Background(match[1], match[2])
    if match[3] is None:
        return traffic
    try:
        if match[3].strip().endswith("B"):
            return replace(traffic, size=float(parse_size(match[3])))
        return replace(traffic, rate=parse_rate(match[3]))
    except ValueError as error:
        raise ExperimentError(f"background {text!r}: {error}") from None
