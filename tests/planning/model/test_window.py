"""The default window of a job."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.choices import EMBEDDING, MULTI_TREE
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.model.window import QUEUE_FRAMES, default_window

MULTI_HOP = "multi-hop"


def request_of(workers: int, servers: tuple[str, ...] = ("ps",), **options: object) -> PlanRequest:
    names = tuple(f"h{number + 1}" for number in range(workers))
    return PlanRequest(1, 1, names, servers, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("latency", "window"), [("0s", 128), ("4ms", 256), ("1s", 256)])
def test_long_links_need_larger_windows(latency: str, window: int) -> None:
    network = load_network("star:4", link_rate="25M", latency=latency)
    assert default_window(network, request_of(4), MULTI_HOP) == window


@pytest.mark.parametrize(
    ("rate", "workers", "trees", "window"),
    [
        ("50M", 4, 1, 64),
        ("50M", 4, 2, 32),
        ("50M", 2, 2, 64),
        ("50M", 8, 2, 16),
        ("10M", 4, 2, 16),
        # Not a share of the largest window, but of what such links need.
        ("1G", 4, 2, 64),
    ],
)
def test_trees_with_roots_at_the_workers_share_what_links_need(
    rate: str, workers: int, trees: int, window: int
) -> None:
    request = request_of(workers, tuple(f"h{n + 1}" for n in range(workers)) * trees)
    assert default_window(load_network("star:8", link_rate=rate), request, MULTI_HOP) == window


@pytest.mark.parametrize(("workers", "window"), [(2, 128), (4, 128), (8, 64), (63, 8)])
def test_the_windows_of_a_servers_workers_fit_its_queue(workers: int, window: int) -> None:
    network = load_network("star:63", link_rate="25M")
    request = request_of(workers, algorithm=SwitchRole.SERVER)
    assert default_window(network, request, MULTI_HOP) == window


@pytest.mark.parametrize(("most", "window"), [(None, 64), (1, 128), (4, 128), (16, 32), (99, 16)])
def test_the_windows_of_many_trees_fit_a_workers_queue(most: int | None, window: int) -> None:
    request = request_of(4, forest=ForestOptions(max_trees=most))
    assert default_window(load_network("star:4", link_rate="25M"), request, MULTI_TREE) == window


@pytest.mark.parametrize(
    ("slots", "spare", "window"), [(4096, 0, 128), (255, 0, 64), (64, 4, 16), (3, 0, 1), (1, 0, 1)]
)
def test_a_job_takes_half_of_the_smallest_switch(slots: int, spare: int, window: int) -> None:
    builder = NetworkBuilder("line")
    for name, size in (("s1", 4096), ("s2", slots)):
        builder.add_switch(name, slots=size)
    builder.link("s1", "s2", 25e6)
    for name in ("h1", "h2", "ps"):
        builder.link(builder.add_host(name), "s1", 25e6)
    network = builder.build()
    assert default_window(network, request_of(2), MULTI_HOP, spare=spare) == window


@given(
    st.integers(1, 20),
    st.integers(1, 9),
    st.sampled_from([MULTI_HOP, MULTI_TREE, EMBEDDING]),
    st.sampled_from(SwitchRole),
    st.integers(1, 5000),
    st.sampled_from([Fraction(1, 8), Fraction(1, 2), Fraction(1)]),
    st.one_of(st.integers(0, 5000), st.just(inf)),
    st.booleans(),
    st.sampled_from([32, 256]),
)
def test_a_window_is_a_power_of_two_within_every_limit(
    workers: int,
    servers: int,
    planner: str,
    algorithm: SwitchRole,
    slots: int,
    quota: Fraction,
    free: float,
    immediate: bool,
    most: int,
) -> None:
    network = load_network("star:20", servers=9, slots=slots)
    roots = tuple(host for host in network.hosts if host.startswith("ps"))[:servers]
    request = request_of(workers, roots, algorithm=algorithm)
    window = default_window(
        network, request, planner, quota=quota, free=free, most=most, immediate=immediate
    )
    assert 1 <= window <= most
    assert window & (window - 1) == 0
    if algorithm is SwitchRole.SERVER:
        assert window * workers <= QUEUE_FRAMES
    elif planner == MULTI_HOP:
        assert window == 1 or window * servers <= quota * slots
