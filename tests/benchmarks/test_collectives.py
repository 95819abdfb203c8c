"""The table that compares collectives with gloo."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from benchmarks.collectives import CASES, AllReduceTimes, Case, gloo_missing, rows
from hopsum.collectives.choices import Algorithm
from hopsum.network.loaders import load_network
from hopsum.network.paths import PlainRoutes
from hopsum.planning.model.placement import place

CASE = Case("star:8", 8, 50e6)


def test_ratios_are_to_gloo_of_the_same_size() -> None:
    timed = {
        "gloo": AllReduceTimes((3.0, 1.0), 10, 0),
        "ring": AllReduceTimes((4.0, 4.0), 10, 1),
    }
    gloo, ring = rows(CASE, 1_000_000, timed)
    assert (gloo["algorithm"], gloo["times_gloo"], gloo["best_times_gloo"]) == ("gloo", 1.0, 1.0)
    assert (ring["algorithm"], ring["times_gloo"], ring["best_times_gloo"]) == ("ring", 0.5, 0.25)
    assert ring["goodput"] == 2_000_000
    assert (gloo["wrong"], ring["wrong"]) == (0, 1)


def test_without_gloo_there_are_no_ratios() -> None:
    (ring,) = rows(CASE, 1_000_000, {"ring": AllReduceTimes((2.0,), 10, 0)})
    assert "times_gloo" not in ring
    assert ring["seconds"] == ring["best"] == 2.0


def test_missing_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "gloo is left out" in str(gloo_missing())


def test_the_cases_are_those_of_the_goals() -> None:
    goals = {(case.topology, case.workers, case.link_rate, case.sizes) for case in CASES[:2]}
    sizes = (4_000_000, 16_000_000)
    assert goals == {("star:8", 8, 50e6, sizes), ("fat-tree:4", 8, 25e6, sizes)}
    assert all({Algorithm.RING, Algorithm.IN_NETWORK} <= set(case.algorithms) for case in CASES)
    assert {case.uplink_rate for case in CASES[2:]} == {
        case.link_rate / n for case in CASES[2:] for n in (2, 4)
    }


@pytest.mark.parametrize("case", [case for case in CASES if case.uplink_rate], ids=str)
def test_a_ring_by_rank_crosses_every_uplink_once(case: Case) -> None:
    network = load_network(case.topology, workers=case.workers)
    ranks = place(network, case.workers).workers
    routes = PlainRoutes(network)
    crossed = Counter(
        link
        for source, target in zip(ranks, (*ranks[1:], ranks[0]), strict=True)
        for link in pairwise(routes.path(source, target))
        if not {*link} & set(network.hosts)
    )
    assert set(crossed.values()) == {1}
