"""Completion times of many jobs: with priorities, without them, and by plain parameter servers.

python -m benchmarks.job_completion [--output FOLDER] [mininet] [simulated]

Job sizes are heavy-tailed. Long jobs arrive first: a short job that arrives at any time usually
finds long ones. In Mininet eight jobs run three times in one network that stays up; simulated,
fifty jobs run in a fluid model, for several seeds.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks.job_mix import fluid_job, simulate_jobs
from benchmarks.report import Rows, arguments, run_benchmarks
from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Engine
from hopsum.collectives.plan import JobPlan
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.records import verdict_of
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.priorities import ONE_LEVEL, PriorityPolicy, suitable_policy
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.cluster import with_running_cluster
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.result import RunFailed
from hopsum.experiment.session import RunningCluster
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.loader import why_unavailable
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.model.window import COMMON_WINDOW
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.timing.routes import LinkArrays

ELEMENT_BYTES = 4
WATCH_SECONDS = 0.1
PATIENCE = 480.0


class Way(StrEnum):
    """How jobs sum and share links."""

    PRIORITIES = "priorities"
    """In the switches; levels follow progress."""
    FAIR = "fair"
    """With the same plans, all jobs at one level."""
    SERVER = "server"
    """At plain parameter servers, all jobs at one level."""

    @property
    def algorithm(self) -> SwitchRole:
        """Return the role of the switches."""
        return SwitchRole.SERVER if self is Way.SERVER else SwitchRole.IN_NETWORK

    def policy(self, network: Network) -> PriorityPolicy:
        """Return the policy of levels."""
        return suitable_policy(network) if self is Way.PRIORITIES else ONE_LEVEL


@dataclass(frozen=True, slots=True)
class Mix:
    """Jobs on a network. `link_rate`: bit/s. `gap`: mean seconds between two starts.

    `tail`, `smallest`, `largest`: shape and bounds of a bounded Pareto distribution of a job's
    bytes in all tensors; `long`: how many of the longest arrive before the others. `workers`: range
    per job. `elements`: per tensor.
    """

    topology: str
    link_rate: float
    jobs: int
    gap: float
    tail: float
    smallest: float
    largest: float
    long: int
    workers: tuple[int, int]
    elements: int = 65_536


EIGHT = Mix("fat-tree:4", 10e6, 8, 3.0, 0.6, 1e6, 40e6, 2, (4, 8))
"""Two long jobs are running when six others arrive, one every three seconds."""
FIFTY = Mix("fat-tree:8", 10e6, 50, 4.0, 0.6, 1e6, 400e6, 5, (8, 32))
"""Five long jobs last six to eleven minutes; all others arrive in the first four."""
SEEDS = range(1, 6)


@dataclass(frozen=True, slots=True)
class MixedJob:
    """A job of a mix. `start`: seconds after the first one's."""

    name: str
    start: float
    workers: tuple[str, ...]
    server: str
    elements: int
    rounds: int

    @property
    def size(self) -> int:
        """Return the bytes of all its tensors at one worker."""
        return ELEMENT_BYTES * self.elements * self.rounds


def make_mix(mix: Mix, network: Network, seed: int) -> list[MixedJob]:
    """Return the jobs of a mix in order of their start; the sizes are fixed, the rest is random.

    Sizes are quantiles of the distribution, so that even a few jobs include the tail.
    """
    random = Random(seed)
    shrink = 1 - (mix.smallest / mix.largest) ** mix.tail
    sizes = [
        mix.smallest * (1 - (number + 0.5) / mix.jobs * shrink) ** (-1 / mix.tail)
        for number in reversed(range(mix.jobs))
    ]
    later = sizes[mix.long :]
    random.shuffle(later)
    hosts = list(network.hosts)
    start = 0.0
    jobs = []
    for number, size in enumerate([*sizes[: mix.long], *later], start=1):
        *workers, server = random.sample(hosts, random.randint(*mix.workers) + 1)
        rounds = max(1, round(size / (ELEMENT_BYTES * mix.elements)))
        jobs.append(MixedJob(f"job{number}", start, tuple(workers), server, mix.elements, rounds))
        start += random.expovariate(1 / mix.gap)
    return jobs


# -- simulated


def simulated_times(way: Way, network: Network, jobs: Sequence[MixedJob]) -> list[float]:
    """Return each job's seconds in the fluid model. Each is planned as if it were alone."""
    links = LinkArrays(network)
    allocator = Allocator(network)
    fluid = []
    for number, job in enumerate(jobs, start=1):
        request = PlanRequest(
            number, 1, job.workers, (job.server,), algorithm=way.algorithm, window=COMMON_WINDOW
        )
        plan = plan_job(network, request, allocator)
        fluid.append(fluid_job(links, plan, job.start, job.elements, job.rounds))
    times = simulate_jobs(fluid, links.capacities, way.policy(network))
    return [float(seconds) for seconds in times.completion]


def simulated(output: Path, mix: Mix = FIFTY) -> Rows:
    """Return rows of fifty jobs on 128 hosts for several seeds, and a plot of the distributions.

    Besides the mix with its long jobs first, the same sizes in any order: priorities cannot help
    short jobs that arrive before a long one, nor jobs at the end.
    """
    network = load_network(mix.topology, link_rate=mix.link_rate)
    rows: Rows = []
    for ordered in (mix, replace(mix, long=0)):
        taken: dict[Way, list[float]] = {way: [] for way in Way}
        first = f"{ordered.long} long ones" if ordered.long else "any"
        for seed in SEEDS:
            jobs = make_mix(ordered, network, seed)
            times = {way: simulated_times(way, network, jobs) for way in Way}
            rows.append({"first": first, "seed": seed, "jobs": len(jobs)} | _means(times))
            for way in Way:
                taken[way] += times[way]
        count = len(taken[Way.FAIR])
        rows.append({"first": first, "seed": "all", "jobs": count} | _means(taken))
        if ordered is mix:
            picture = distribution_plot(taken)
    output.mkdir(parents=True, exist_ok=True)
    (output / "job-completion-simulated.png").write_bytes(picture)
    return rows


def _means(times: Mapping[Way, Sequence[float]]) -> dict[str, float]:
    return _columns({way: fmean(seconds) for way, seconds in times.items()})


def distribution_plot(times: Mapping[Way, Sequence[float]]) -> bytes:
    """Return a PNG of the cumulative distribution of job completion times, for each way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    colours = {Way.PRIORITIES: "#0b7285", Way.FAIR: "#e8590c", Way.SERVER: "#868e96"}
    for way, seconds in times.items():
        part = [(number + 1) / len(seconds) for number in range(len(seconds))]
        axes.step(sorted(seconds), part, where="post", color=colours[way], label=way.value)
        axes.axvline(fmean(seconds), color=colours[way], ls=":", lw=1)
    axes.set(xlabel="job completion time, s (dotted: mean)", ylabel="fraction of jobs")
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    buffer = io.BytesIO()
    # Without the version in its metadata, the same times give the same picture.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


# -- in Mininet


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Outcome of a job. `seconds`: from its submission to its end.

    `starting`: the part of that before its agents began. `links`: of its last plan's tree, as
    (node, next node towards the server).
    """

    seconds: float
    starting: float
    checked: int
    wrong: int
    retransmissions: int
    links: frozenset[tuple[str, str]] = frozenset()


def emulated(mix: Mix = EIGHT, ways: Sequence[Way] = tuple(Way), seed: int = 1) -> Rows:
    """Return rows of eight concurrent jobs against the fluid model, and one of means.

    Raises the emulation's errors, and RunFailed for a job that does not finish.
    """
    network = load_network(mix.topology, link_rate=mix.link_rate)
    jobs = make_mix(mix, network, seed)
    measured: dict[Way, list[JobOutcome]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="hopsum-") as folder,
        Emulation(network) as emulation,
    ):
        for way in ways:

            async def work(running: RunningCluster, way: Way = way) -> None:
                measured[way] = await run_jobs(running.cluster, running.address, jobs, way)

            settings = ClusterSettings(
                priorities=way.policy(network),
                replanning=ReplanningPolicy(live=False),
                journal=Path(folder) / "jobs",
            )
            pipeline = pipeline_for(network, Engine.EMBEDDED, settings)
            asyncio.run(
                with_running_cluster(
                    emulation, pipeline, settings, Console(stderr=True).print, work
                )
            )
    _check_same_plans(measured)
    fluid = {way: simulated_times(way, network, jobs) for way in ways}
    return measured_rows(jobs, measured, fluid)


def _check_same_plans(measured: Mapping[Way, Sequence[JobOutcome]]) -> None:
    """Raise RunFailed unless jobs had the same trees with priorities and without."""
    trees = [[job.links for job in found] for way, found in measured.items() if way != Way.SERVER]
    if any(other != trees[0] for other in trees):
        raise RunFailed("jobs had different plans with and without priorities: not comparable")


async def run_jobs(
    cluster: Cluster, address: str, jobs: Sequence[MixedJob], way: Way
) -> list[JobOutcome]:
    """Submit jobs at their times, and wait for the end of the last one."""
    queries = ControllerClient(address)
    await _until(lambda: set(cluster.network.hosts) <= set(cluster.nodes.attached), "agents")
    began = time.monotonic()

    async def submit(job: MixedJob) -> int:
        await asyncio.sleep(max(0.0, began + job.start - time.monotonic()))
        return (await asyncio.to_thread(queries.submit, _submission(job, way))).job

    numbers = await asyncio.gather(*map(submit, jobs))
    found = [cluster.jobs.find(number) for number in numbers]
    await _until(lambda: all(job.state.over for job in found), "the jobs' end")
    return [
        _measured(await asyncio.to_thread(queries.job, str(job.number)), _links(job.plan))
        for job in found
    ]


def _links(plan: JobPlan | None) -> frozenset[tuple[str, str]]:
    if plan is None:
        return frozenset()
    return frozenset(link for tree in plan.trees for link in tree.parents.items())


def _submission(job: MixedJob, way: Way) -> pb.Submission:
    return make_submission(
        f"{job.name}-{way}",
        ",".join(job.workers),
        job.server,
        elements=job.elements,
        rounds=job.rounds,
        algorithm=way.algorithm.value,
    )


async def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise RunFailed(f"waited {PATIENCE:g} s for {what}")
        await asyncio.sleep(WATCH_SECONDS)


def _measured(info: pb.JobInfo, links: frozenset[tuple[str, str]]) -> JobOutcome:
    """Return a job that has finished; RunFailed for one that has not."""
    if info.state != JobState.FINISHED:
        raise RunFailed(f"{info.name} {info.state}: {info.reason}")
    verdict = verdict_of(info)
    return JobOutcome(
        info.ended - info.submitted,
        info.started - info.submitted,
        verdict["checked"],
        verdict["wrong"],
        verdict["retransmissions"],
        links,
    )


def measured_rows(
    jobs: Sequence[MixedJob],
    measured: Mapping[Way, Sequence[JobOutcome]],
    fluid: Mapping[Way, Sequence[float]],
) -> Rows:
    """Return a row for each job: its seconds each way, measured and in the fluid model.

    The last row has means.
    """
    rows: Rows = []
    for number, job in enumerate(jobs):
        each = {way: measured[way][number] for way in measured}
        row: dict[str, Any] = {
            "job": job.name,
            "start": round(job.start, 1),
            "workers": len(job.workers),
            "megabytes": round(job.size / 1e6, 1),
        }
        rows.append(
            row
            | _columns({way: one.seconds for way, one in each.items()})
            | {f"fluid_{way}": round(fluid[way][number], 1) for way in fluid}
            | _counts(list(each.values()))
        )
    total: dict[str, Any] = {
        "job": "mean",
        "start": round(fmean(job.start for job in jobs), 1),
        "workers": round(fmean(len(job.workers) for job in jobs), 1),
        "megabytes": round(fmean(job.size for job in jobs) / 1e6, 1),
    }
    rows.append(
        total
        | _means({way: [one.seconds for one in measured[way]] for way in measured})
        | {f"fluid_{way}": round(fmean(fluid[way]), 1) for way in fluid}
        | _counts([one for way in measured for one in measured[way]])
    )
    return rows


def _columns(seconds: Mapping[Way, float]) -> dict[str, float]:
    """Return the seconds of each way, and the ratios of priorities to the others that were run."""
    columns = {way.value: round(value, 2) for way, value in seconds.items()}
    mine = seconds.get(Way.PRIORITIES)
    if mine and Way.FAIR in seconds:
        columns["of_fair"] = round(mine / seconds[Way.FAIR], 3)
    if mine and Way.SERVER in seconds:
        columns["server_times"] = round(seconds[Way.SERVER] / mine, 2)
    return columns


def _counts(measured: Sequence[JobOutcome]) -> dict[str, float]:
    return {
        "starting": round(fmean(one.starting for one in measured), 2),
        "checked": sum(one.checked for one in measured),
        "wrong": sum(one.wrong for one in measured),
        "sent_again": sum(one.retransmissions for one in measured),
    }


def main() -> None:
    """Run the mixes named, or both."""
    names = ("mininet", "simulated")
    parser = arguments(__doc__, dict.fromkeys(names))
    parser.add_argument(
        "--ways", nargs="+", type=Way, default=list(Way), help="in Mininet; default: all three"
    )
    asked = parser.parse_args()
    reason = why_unavailable()
    run_benchmarks(
        {
            "mininet": partial(emulated, EIGHT, asked.ways),
            "simulated": partial(simulated, asked.output),
        },
        asked,
        prefix="job-completion-",
        skipped={} if reason is None else {"mininet": reason},
    )


if __name__ == "__main__":
    main()
