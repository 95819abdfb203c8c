"""Completion of a submitted job: its key."""

from __future__ import annotations

from math import inf

import pytest

from hopsum.collectives.plan import WINDOW_BMV2, PlanError
from hopsum.controller.jobs.job_request import (
    complete_task,
    make_request,
    place_spec,
    planner_request,
    resolve,
)
from hopsum.controller.jobs.job_spec import JobSpec, spec_from, submission_of
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.coordination.tree import TreeLimits
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest, SwitchRole, WeightSteps
from hopsum.protocol import hopsum_pb2 as pb

KEY = bytes(range(32))
WORKERS = ("h1", "h2")


def test_only_a_job_with_integrity_has_a_key_and_it_is_the_controllers() -> None:
    network = load_network("star:2")
    chosen = pb.Task(key=b"its submitter's")
    with_lanes = JobSpec("a", 2, task=chosen, integrity=True)
    assert complete_task(with_lanes, network, WORKERS, KEY).task.key == KEY
    assert not complete_task(JobSpec("a", 2, task=chosen), network, WORKERS, KEY).task.key
    assert spec_from(submission_of(with_lanes)).integrity


def test_a_job_has_the_weights_and_limits_of_its_submission() -> None:
    options, limits = {"weight-steps": "32", "penalty": "4"}, TreeLimits(3, 5, 7)
    spec = JobSpec("a", 2, planner="embedding", options=options, coordination_limits=limits)
    assert spec_from(submission_of(spec)) == spec
    plain = spec_from(pb.Submission(name="a"))
    assert (plain.options, plain.coordination_limits) == ({}, TreeLimits())
    network = load_network("star:3")
    placed = place_spec(network, spec, list(network.hosts), {})
    request = make_request(spec, 1, placed, network, ClusterSettings())
    assert request.embedding.weights == WeightSteps(32, 4)


def test_options_of_earlier_versions_are_read() -> None:
    """They have the defaults of other planners' options, too."""
    trees = pb.TreeOptions(max_trees=3, min_rate=1e6, seed=7, keep=0.95)
    message = pb.Submission(
        name="a", planner="multi-tree", trees=trees, weights=pb.WeightSteps(steps=64, penalty=1)
    )
    spec = spec_from(message)
    assert (spec.seed, spec.options) == (7, {"max-trees": "3", "min-rate": "1000000.0"})
    request = planner_request(spec, PlanRequest(1, 1, (), ()))
    assert (request.forest.max_trees, request.forest.min_rate) == (3, 1_000_000)
    message.planner = "embedding"
    assert spec_from(message).options.keys() == {"max-trees", "weight-steps", "penalty"}


def test_options_that_would_not_be_used_are_refused() -> None:
    network = load_network("star:2")
    for spec, words in (
        (JobSpec("a", 2, options={"penalty": "2"}), "multi-hop has no such option, but embedding"),
        (JobSpec("a", 2, algorithm="ring", options={"penalty": "2"}), "ring: it has no planner"),
        (JobSpec("a", 2, options={"time-limit": "60s"}), "expected at most 10 s"),
        (JobSpec("a", 2, coordination_limits=TreeLimits(2)), "coordination-height, .* expected --"),
    ):
        with pytest.raises(PlanError, match=words):
            resolve(spec, network)
    steps = {"weight-steps": "8", "penalty": "9"}
    with pytest.raises(PlanError, match="penalty 9: expected 1 to the number of weight steps, 8"):
        resolve(JobSpec("a", 2, planner="embedding", options=steps), network)


def test_a_job_among_hosts_has_no_sums_to_check() -> None:
    spec = JobSpec("a", 2, algorithm="ring", integrity=True)
    with pytest.raises(PlanError, match=r"integrity .* algorithm ring hosts sum among themselves"):
        complete_task(spec, load_network("star:2"), WORKERS, KEY)


@pytest.mark.parametrize(
    ("rate", "window"), [(1e6, 64), (10e6, 64), (25e6, 128), (50e6, 256), (1e9, 256), (None, 256)]
)
def test_a_window_keeps_links_busy_while_processes_wait(rate: float | None, window: int) -> None:
    network = load_network("star:4", link_rate=rate)
    assert _window(network, JobSpec("a", 2)) == window


def test_windows_of_other_jobs_fit_a_queue_that_all_workers_share() -> None:
    """A server alone gets all workers' frames, and trees of an embedding share links with TCP."""
    network = load_network("star:4")
    assert _window(network, JobSpec("a", 4, algorithm=SwitchRole.SERVER)) == 128
    assert _window(network, JobSpec("a", 2, planner="embedding")) == 64
    assert _window(network, JobSpec("a", 2, window=32)) == 32


def test_the_slowest_worker_decides_on_the_window() -> None:
    builder = NetworkBuilder("star")
    builder.add_switch("s1")
    for name, rate in (("h1", 1e9), ("h2", 10e6), ("h3", None)):
        builder.link(builder.add_host(name), "s1", rate)
    network = builder.build()
    assert _window(network, JobSpec("a", ("h1", "h2"), ("h3",))) == 64
    assert _window(network, JobSpec("a", ("h1", "h3"), ("h2",))) == 256


@pytest.mark.parametrize(
    ("free", "window"), [(4096, 256), (2048, 256), (2047, 128), (1023, 64), (100, 64), (0, 64)]
)
def test_windows_shrink_before_slots_run_out(free: int, window: int) -> None:
    network = load_network("star:4")
    assert _window(network, JobSpec("a", 2), free) == window
    assert _window(network, JobSpec("a", 2, window=256), free) == 256


@pytest.mark.parametrize(("workers", "window"), [(2, 256), (3, 128), (4, 128), (8, 64), (20, 16)])
def test_trees_of_workers_share_a_window(workers: int, window: int) -> None:
    network = load_network("star:20")
    assert _window(network, JobSpec("a", workers, 0)) == window
    assert _window(network, JobSpec("a", workers, 0, window=64)) == 64


def test_bmv2_has_small_windows() -> None:
    settings = ClusterSettings(most_window=WINDOW_BMV2)
    network = load_network("star:4")
    assert _window(network, JobSpec("a", 2), settings=settings) == 32
    assert _window(network, JobSpec("a", 2, algorithm="server"), settings=settings) == 32
    assert _window(network, JobSpec("a", 2, window=64), settings=settings) == 64


def _window(
    network: Network,
    spec: JobSpec,
    free: float = inf,
    settings: ClusterSettings | None = None,
) -> int:
    spec = resolve(spec, network)
    placed = place_spec(network, spec, list(network.hosts), {})
    return make_request(spec, 1, placed, network, settings or ClusterSettings(), free).window


@pytest.mark.parametrize(
    ("free", "window"), [(4096, 256), (1023, 64), (511, 32), (255, 16), (100, 16), (0, 16)]
)
def test_jobs_that_start_on_free_slots_only_leave_some_to_others(free: int, window: int) -> None:
    network = load_network("star:4")
    assert _window(network, JobSpec("a", 2, immediate=True), free) == window
    assert _window(network, JobSpec("a", 2, window=64, immediate=True), free) == 64


def test_sub_groups_get_smaller_windows_before_a_switch_is_full() -> None:
    """One training's groups took a whole switch of 4,096 slots with 30 of them."""
    network, free = load_network("star:4"), 4096
    windows: list[int] = []
    while (window := _window(network, JobSpec("a", 2, immediate=True), free)) <= free:
        free -= window
        windows.append(window)
    assert list(dict.fromkeys(windows)) == [256, 128, 64, 32, 16]
    assert len(windows) > 40


def test_the_controller_chooses_whose_vectors_a_job_combines() -> None:
    spec = JobSpec("a", 2, task=pb.Task(vectors=7))
    assert not complete_task(spec, load_network("star:2"), WORKERS).task.vectors


@pytest.mark.parametrize(("kind", "seconds"), [("process", 90.0), ("random", 0.0)])
def test_the_controller_limits_how_long_processes_are_absent(kind: str, seconds: float) -> None:
    """A submission has no say in it."""
    task = pb.Task(workload=pb.Workload(kind=kind), attend_seconds=1e9)
    spec = JobSpec("a", 2, task=task)
    done = complete_task(spec, load_network("star:2"), WORKERS, attend_limit=90.0)
    assert done.task.attend_seconds == seconds
