"""Every planner on a network in pieces: a job's plan follows from the piece its hosts are in."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.choices import EMBEDDING
from hopsum.collectives.plan_checker import check_plans
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.forest import ForestOptions
from hopsum.planning.model.request import EmbeddingOptions, Method, PlanRequest
from hopsum.planning.registry import SWITCH_PLANNERS, plan_job
from tests.support.search import examples

WAYS = [
    *(("multi-hop", method) for method in Method),
    *((name, Method.AUTO) for name in SWITCH_PLANNERS if name != "multi-hop"),
]


@dataclass(frozen=True)
class Broken:
    """A network whose failed switches have cut hosts off. `hosts`: of the piece with the job."""

    network: Network
    piece: Network
    hosts: tuple[str, ...]


def broken(seed: int) -> Broken:
    """Two random pieces, the job's hosts first, that met at a switch that has failed."""
    random = Random(seed)
    builder = NetworkBuilder("broken", 1e6)
    switches = [builder.add_switch(f"s{i}") for i in range(random.randint(3, 9))]
    random.shuffle(switches)
    bridge, *rest = switches
    cut = random.randint(1, len(rest) - 1)
    sides = [rest[:cut], rest[cut:]]
    hosts: list[list[str]] = [[], []]
    for side, names in zip(hosts, sides, strict=True):
        for i, name in enumerate(names[1:], 1):
            builder.link(name, random.choice(names[:i]))
        for _ in range(random.randint(0, len(names)) if len(names) > 2 else 0):
            u, v = random.sample(names, 2)
            if v not in {
                p for link in builder.links if u in (link.a, link.b) for p in (link.a, link.b)
            }:
                builder.link(u, v)
        builder.link(bridge, random.choice(names))
        for _ in range(random.randint(3, 5)):
            side.append(builder.add_host())
            builder.link(side[-1], random.choice(names))
    network = builder.build().without([bridge])
    return Broken(network, network.without([*sides[1], *hosts[1]]), tuple(hosts[0]))


def request(hosts: tuple[str, ...], planner: str, method: Method = Method.AUTO) -> PlanRequest:
    *workers, server = hosts
    return PlanRequest(
        1,
        1,
        tuple(workers),
        () if planner == EMBEDDING else (server,),
        method=method,
        forest=ForestOptions(max_trees=2),
        embedding=EmbeddingOptions(),
    )


@pytest.mark.parametrize(("planner", "method"), WAYS)
def test_hosts_that_are_cut_off_are_no_matter_to_a_job_elsewhere(
    planner: str, method: Method
) -> None:
    network = load_network("line:4x1", link_rate=1e6, servers=0).without(["s3"])
    plan = plan_job(network, request(("h1", "h2"), planner, method), planner=planner)
    assert plan.workers == ("h1",)


@pytest.mark.slow
@pytest.mark.parametrize(("planner", "method"), WAYS)
@settings(max_examples=examples(10, of=30))
@given(seed=st.integers(0, 10**9))
def test_a_plan_follows_from_the_piece_with_the_job(
    planner: str, method: Method, seed: int
) -> None:
    case = broken(seed)
    asked = request(case.hosts, planner, method)
    plan = plan_job(case.network, asked, planner=planner)
    check_plans(case.network, [plan])
    assert plan == plan_job(case.piece, asked, planner=planner)
