from __future__ import annotations

import itertools
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.flows import tree_flows
from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.collectives.plan_checker import check_plans, plan_faults
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.topologies import make_topology
from hopsum.planning.model.allocation import Allocator, TreeNeeds
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import SWITCH_PLANNERS, plan_job
from hopsum.planning.steiner.candidate_trees import SwitchGraph, nearest
from hopsum.protocol.wire import Hop
from tests.support.search import examples


def request(
    network: Network, workers: int | None = None, servers: int = 1, **fields: object
) -> PlanRequest:
    placement = place(network, workers, servers)
    return replace(PlanRequest(1, 1, placement.workers, placement.servers), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("planner", SWITCH_PLANNERS)
def test_networks_whose_links_have_all_failed_are_refused(planner: str, workers: int) -> None:
    """A job waits then; any other error would end it."""
    star = make_topology("star:4")
    with pytest.raises(PlanError, match=r"no path|no link|no root|0 links"):
        plan_job(replace(star, links=()), request(star, workers), planner=planner)


def link_loads(network: Network, plan: JobPlan) -> dict[tuple[str, str], int]:
    """Frames on each directed link for one fragment, upwards."""
    loads: dict[tuple[str, str], int] = {}
    for tree in plan.trees:
        for flows in tree_flows(network, plan, tree).up.values():
            for flow in flows:
                loads[flow.u, flow.v] = loads.get((flow.u, flow.v), 0) + 1
    return loads


# Bytes on all links of the way up, in units of one worker's data.
@pytest.mark.parametrize(
    ("spec", "workers", "summed", "forwarded"),
    [
        ("star:4", 4, (5, 1), (8, 4)),
        ("star:8", 8, (9, 1), (16, 8)),
        ("fat-tree:4", 15, (28, 1), (82, 15)),
        ("fat-tree:8", 127, (168, 1), (726, 127)),
    ],
)
def test_frames_on_links_reach_the_limits(
    spec: str, workers: int, summed: tuple[int, int], forwarded: tuple[int, int]
) -> None:
    network = load_network(spec)
    plan = plan_job(network, request(network, workers))
    loads = link_loads(network, plan)
    assert (sum(loads.values()), max(loads.values())) == summed
    plan = plan_job(network, request(network, workers, algorithm=SwitchRole.SERVER))
    loads = link_loads(network, plan)
    assert (sum(loads.values()), max(loads.values())) == forwarded


@pytest.mark.parametrize(
    ("spec", "workers", "summed", "forwarded"),
    [
        ("leaf-spine:2x4", 7, 10, 22),
        ("leaf-spine:4x4", 15, 20, 54),
        ("leaf-spine:8x16", 127, 136, 478),
    ],
)
def test_a_leaf_spine_with_the_server_on_a_host(
    spec: str, workers: int, summed: int, forwarded: int
) -> None:
    network = load_network(spec, servers=0)
    asked = request(network, workers)
    assert sum(link_loads(network, plan_job(network, asked)).values()) == summed
    asked = replace(asked, algorithm=SwitchRole.SERVER)
    assert sum(link_loads(network, plan_job(network, asked)).values()) == forwarded


@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize("algorithm", list(SwitchRole))
@pytest.mark.parametrize(
    ("spec", "workers", "servers"),
    [
        ("star:1", 1, 1),
        ("star:8", None, 1),
        ("line:5x1", None, 1),
        ("leaf-spine:4x4", None, 2),
        ("fat-tree:4", 8, 1),
        ("fat-tree:4", 12, 4),
        ("dragonfly:2", None, 3),
    ],
)
def test_plans_hold(
    spec: str, workers: int | None, servers: int, algorithm: SwitchRole, results: Results
) -> None:
    network = load_network(spec, servers=servers)
    asked = request(network, workers, servers, algorithm=algorithm, results=results)
    plan = plan_job(network, asked)
    check_plans(network, [plan])
    assert len(plan.trees) == servers
    assert sum(tree.share for tree in plan.trees) == pytest.approx(1)
    if algorithm is SwitchRole.SERVER:
        assert not any(part.aggregate for tree in plan.trees for part in tree.parts.values())


def test_the_same_request_gives_the_same_plan() -> None:
    network = load_network("dragonfly:2")
    assert plan_job(network, request(network)) == plan_job(network, request(network))


def test_results_default() -> None:
    network = load_network("star:2")
    assert plan_job(network, request(network)).results is Results.REPLICATED
    baseline = plan_job(network, request(network, algorithm=SwitchRole.SERVER))
    assert baseline.results is Results.UNICAST


def test_a_star_in_full() -> None:
    network = load_network("star:2")
    tree = plan_job(network, request(network, window=8)).trees[0]
    assert tree.parents == {"h1": "s1", "h2": "s1", "s1": "ps"}
    assert tree.up == (
        (Hop(aggregate=True, child=0, fan_in=2, port=3), Hop(child=0, fan_in=1)),
        (Hop(aggregate=True, child=1, fan_in=2, port=3), Hop(child=0, fan_in=1)),
    )
    assert tree.down == ((Hop(clear=True, port=1),), (Hop(clear=True, port=2),))
    assert tree.server_children == ((0, 1),)
    part = tree.parts["s1"]
    assert (part.children, part.ports_up, part.port_server) == ({0: 1, 1: 2}, (1, 2), 3)


def test_a_switch_with_one_flow_has_slots_to_repair_losses_from() -> None:
    network = load_network("star:1")
    tree = plan_job(network, request(network)).trees[0]
    assert tree.parts["s1"].aggregate
    assert tree.up[0][0] == Hop(aggregate=True, child=0, fan_in=1, port=2)


def test_plain_switches_pass_flows_on() -> None:
    network = load_network("leaf-spine:2x2x1", plain=["l1", "l2"])
    plan = plan_job(network, request(network))
    check_plans(network, [plan])
    tree = plan.trees[0]
    assert [name for name, part in tree.parts.items() if part.aggregate] == ["s1"]
    assert tree.server_children == ((0,), (1,), (2, 3))

    network = load_network("leaf-spine:3x2x1", plain=["l2", "l3"])
    plan = plan_job(network, request(network))
    check_plans(network, [plan])
    tree = plan.trees[0]
    assert tree.parts["s1"].children == {0: 2, 1: 2, 2: 3, 3: 3}
    assert tree.parts["l1"].fan_in == 3
    assert len(tree.server_children) == 1


def test_a_route_through_switches_that_sum_is_preferred() -> None:
    network = load_network("leaf-spine:3x2x2", plain=["s1"])
    tree = plan_job(network, request(network)).trees[0]
    assert "s2" in tree.parts
    assert "s1" not in tree.parts


def test_more_flows_than_children() -> None:
    """Only where several hosts share a port can there be more children than ports."""
    network = load_network("leaf-spine:4x180x1", plain=["l1", "l2", "l3", "l4"])
    plan = plan_job(network, request(network))
    check_plans(network, [plan])
    tree = plan.trees[0]
    assert tree.parts["s1"].fan_in == 512
    assert sorted(len(workers) for workers in tree.server_children) == [1] * 208 + [512]


@pytest.mark.parametrize("workers", [33, 64, 128, 500])
def test_a_switch_sums_all_its_children(workers: int) -> None:
    network = load_network(f"star:{workers}")
    plan = plan_job(network, request(network))
    check_plans(network, [plan])
    assert plan.trees[0].parts["s1"].fan_in == workers
    assert len(plan.trees[0].server_children) == 1


def test_too_many_flows_at_the_server() -> None:
    network = load_network("leaf-spine:3x180x1", plain=["l1", "l2", "l3", "s1"])
    with pytest.raises(PlanError, match="540 flows would reach server ps; at most 512 can"):
        plan_job(network, request(network))


def test_a_baseline_of_many_workers_sends_single_packets() -> None:
    network = load_network("leaf-spine:3x180x1")
    plan = plan_job(network, request(network, algorithm=SwitchRole.SERVER))
    check_plans(network, [plan])
    assert plan.trees[0].singles
    assert {stack[-1] for stack in plan.trees[0].up} == {Hop(child=0, fan_in=0)}


def test_nine_switches_fit_and_ten_do_not() -> None:
    network = load_network("line:9x1")
    plan = plan_job(network, request(network))
    assert max(map(len, plan.trees[0].up)) == 10
    network = load_network("line:10x1")
    with pytest.raises(PlanError, match=r"crosses 10 switches; .* allow 9; use --max-hops 11"):
        plan_job(network, request(network))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": 0}, "job 0: expected 1"),
        ({"epoch": 65536}, "epoch 65536"),
        ({"workers": ()}, "0 workers"),
        ({"workers": ("h1", "h1")}, "worker 'h1' is named twice"),
        ({"workers": ("h1", "ghost")}, "worker 'ghost': there is no such host"),
        ({"servers": ("ghost",)}, "server 'ghost'"),
        ({"servers": ()}, "0 servers"),
        ({"workers": ("h1",), "servers": ("h1",)}, "'h1' would be its own server"),
        ({"servers": ("ps", "ps")}, "server 'ps' is named twice"),
        ({"lanes": 100}, "lanes: 100"),
        ({"window": 3}, "window 3: expected a power of two"),
        ({"window": 8192}, "switch s1 has no range of 8192 slots"),
        ({"shares": (0.5,)}, "together 1"),
        ({"shares": (0.5, 0.5)}, "2 shares for 1 servers"),
    ],
)
def test_clear_errors(change: dict[str, object], message: str) -> None:
    network = load_network("star:4")
    with pytest.raises(PlanError, match=message):
        plan_job(network, replace(request(network), **change))  # type: ignore[arg-type]


def test_errors_of_the_network() -> None:
    torus = load_network("torus:3x3")
    with pytest.raises(PlanError, match="no switches"):
        plan_job(torus, request(torus))
    wide = load_network("star:600")
    with pytest.raises(PlanError, match=r"switch s1, port 601 .to ps."):
        plan_job(wide, replace(request(wide), workers=("h1",)))
    star = load_network("star:2")
    with pytest.raises(PlanError, match="no planner 'best'; planners: multi-hop"):
        plan_job(star, request(star), planner="best")


def test_jobs_have_slots_of_their_own() -> None:
    network = load_network("leaf-spine:2x2", slots=1024)
    allocator = Allocator(network)
    asked = request(network)
    plans = [plan_job(network, replace(asked, job=job), allocator) for job in (1, 2, 3, 4)]
    check_plans(network, plans)
    with pytest.raises(
        PlanError, match=r"no range of 256 slots for job 5.*1024 of 1024 are in use"
    ):
        plan_job(network, replace(asked, job=5), allocator)
    allocator.release(2)
    again = plan_job(network, replace(asked, job=5), allocator)
    check_plans(network, [plans[0], plans[2], plans[3], again])
    assert again.trees[0].parts["l1"].slot_base == 256


def test_a_new_epoch_keeps_the_slots_and_gets_new_groups() -> None:
    network = load_network("star:2")
    allocator = Allocator(network)
    asked = request(network)
    other = plan_job(network, replace(asked, job=7), allocator)
    first = plan_job(network, asked, allocator)
    second = plan_job(network, replace(asked, epoch=2), allocator)
    parts = [plan.trees[0].parts["s1"] for plan in (other, first, second)]
    assert [part.slot_base for part in parts] == [0, 256, 256]
    assert [part.group for part in parts] == [2, 3, 4]
    check_plans(network, [other, first])
    with pytest.raises(PlanError, match="the window is 256 and cannot become 64"):
        plan_job(network, replace(asked, epoch=3, window=64), allocator)
    allocator.release_epochs(1, before=2)
    third = plan_job(network, replace(asked, epoch=3), allocator)
    assert third.trees[0].parts["s1"].group == 3


def test_groups_of_older_epochs_are_released_across_the_wrap() -> None:
    network = load_network("star:2")
    allocator = Allocator(network)
    asked = replace(request(network), epoch=0xFFFF)
    last = plan_job(network, asked, allocator)
    first = plan_job(network, replace(asked, epoch=1), allocator)
    assert [plan.trees[0].parts["s1"].group for plan in (last, first)] == [2, 3]
    allocator.release_epochs(1, before=1)
    second = plan_job(network, replace(asked, epoch=2), allocator)
    assert second.trees[0].parts["s1"].group == 2
    assert plan_job(network, replace(asked, epoch=1), allocator) == first


def test_a_failed_reservation_changes_nothing() -> None:
    network = load_network("line:2x1", slots=256)
    allocator = Allocator(network)
    allocator.reserve(1, 1, 256, {0: TreeNeeds(["s2"], ["s2"])})
    with pytest.raises(PlanError, match="switch s2"):
        allocator.reserve(2, 1, 256, {0: TreeNeeds(["s1", "s2"], ["s1"])})
    assert allocator.in_use("s1") == {}
    assert allocator.in_use("s2") == {(1, 0): (0, 256)}


def test_two_trees_of_a_job_have_slots_of_their_own() -> None:
    network = load_network("star:4", servers=2)
    plan = plan_job(network, request(network, servers=2))
    check_plans(network, [plan])
    bases = [tree.parts["s1"].slot_base for tree in plan.trees]
    groups = [tree.parts["s1"].group for tree in plan.trees]
    assert bases == [0, 256]
    assert groups == [2, 3]


def test_joining_at_a_plain_switch_costs_the_path_to_one_that_sums() -> None:
    links = [(0, 1), (1, 2), (2, 4), (0, 5), (5, 4)]
    neighbours: list[dict[int, float]] = [{} for _ in range(6)]
    for a, b in links:
        neighbours[a][b] = neighbours[b][a] = 1.0
    plain_middle = SwitchGraph(neighbours, [True, False, False, True, True, True])
    assert nearest(plain_middle, 0, [2, 4])[4] == 5
    all_sum = SwitchGraph(neighbours, [True] * 6)
    assert nearest(all_sum, 0, [2, 4])[4] == 2


def steiner_optimum(network: Network, terminals: list[str]) -> int:
    """Links of a smallest tree of switches that joins the terminals, by trying all."""
    graph = network.graph.subgraph(network.switches)
    others = [name for name in network.switches if name not in terminals]
    for extra in range(len(others) + 1):
        for chosen in itertools.combinations(others, extra):
            if nx.is_connected(graph.subgraph([*terminals, *chosen])):
                return len(terminals) + extra - 1
    raise AssertionError("not connected")


@st.composite
def small_networks(draw: st.DrawFn, plain: bool) -> tuple[Network, PlanRequest]:
    count = draw(st.integers(2, 8))
    builder = NetworkBuilder("random")
    for i in range(count):
        builder.add_switch(f"s{i}", aggregates=not plain or draw(st.booleans()))
    for i in range(1, count):
        builder.link(f"s{i}", f"s{draw(st.integers(0, i - 1))}")
    for a, b in itertools.combinations(range(count), 2):
        if draw(st.integers(0, 3)) == 0 and frozenset((f"s{a}", f"s{b}")) not in {
            frozenset((link.a, link.b)) for link in builder.links
        }:
            builder.link(f"s{a}", f"s{b}")
    hosts = draw(st.integers(2, 7))
    for _ in range(hosts):
        builder.link(builder.add_host(), f"s{draw(st.integers(0, count - 1))}")
    network = builder.build()
    return network, PlanRequest(
        1,
        1,
        tuple(network.hosts)[1:],
        tuple(network.hosts)[:1],
        results=draw(st.sampled_from(Results)),
        algorithm=draw(st.sampled_from(SwitchRole)),
    )


@pytest.mark.slow
@settings(max_examples=examples(40, of=150))
@given(small_networks(plain=True))
def test_random_plans_hold(case: tuple[Network, PlanRequest]) -> None:
    network, asked = case
    check_plans(network, [plan_job(network, asked)])


@pytest.mark.slow
@settings(max_examples=examples(33, of=100))
@given(small_networks(plain=False))
def test_trees_are_close_to_the_smallest(case: tuple[Network, PlanRequest]) -> None:
    network, asked = case
    asked = replace(asked, algorithm=SwitchRole.IN_NETWORK, results=Results.REPLICATED)
    tree = plan_job(network, asked).trees[0]
    terminals = sorted({network.access_switch(host) for host in (*asked.workers, *asked.servers)})
    optimum = steiner_optimum(network, terminals)
    links = len(tree.parts) - 1
    assert optimum <= links <= max(optimum, 1.5 * optimum)


def broken(plan: JobPlan, **fields: object) -> JobPlan:
    tree = replace(plan.trees[0], **fields)  # type: ignore[arg-type]
    return replace(plan, trees=(tree,))


def fat_tree_plan(results: Results = Results.REPLICATED) -> tuple[Network, JobPlan]:
    network = load_network("fat-tree:4")
    return network, plan_job(network, request(network, 6, results=results))


def with_hop(plan: JobPlan, w: int, index: int, **change: object) -> JobPlan:
    stacks = [list(stack) for stack in plan.trees[0].up]
    stacks[w][index] = replace(stacks[w][index], **change)  # type: ignore[arg-type]
    return broken(plan, up=tuple(tuple(stack) for stack in stacks))


def test_the_checker_finds_faults_in_stacks_up() -> None:
    network, plan = fat_tree_plan()
    assert plan_faults(network, plan) == []
    first = plan.trees[0].up[0][0]
    cases = {
        "the entry leads to port": with_hop(plan, 0, 0, port=first.port % 4 + 1),
        "child 1 is not admitted at port": with_hop(plan, 0, 0, child=1),
        "the entry's fan-in is 3": with_hop(plan, 0, 0, fan_in=3),
        "it would wait": with_hop(plan, 0, 0, aggregate=False),
        "expected 0..511": with_hop(plan, 0, 0, child=512),
        "summed packets leave by 2 ways": with_hop(plan, 0, -1, fan_in=2),
        "stack ends before the server": broken(
            plan, up=(plan.trees[0].up[0][-1:], *plan.trees[0].up[1:])
        ),
    }
    for message, wrong in cases.items():
        assert any(message in fault for fault in plan_faults(network, wrong)), message


def test_the_checker_finds_a_worker_summed_twice_or_never() -> None:
    network, plan = fat_tree_plan()
    tree = plan.trees[0]
    twice = broken(plan, server_children=((0, 1, 2, 3, 4),))
    assert any("other workers" in fault for fault in plan_faults(network, twice))
    ends = tuple((*stack[:-1], Hop(fan_in=2)) for stack in tree.up)
    assert any(
        "fan-in is 1, the entry's 2" in f for f in plan_faults(network, broken(plan, up=ends))
    )
    copied = broken(plan, up=(tree.up[1], *tree.up[1:]))
    assert plan_faults(network, copied)


def test_the_checker_finds_faults_in_results() -> None:
    network, plan = fat_tree_plan()
    tree = plan.trees[0]
    down = (tree.down[1], *tree.down[1:])
    assert any("towards another node" in f for f in plan_faults(network, broken(plan, down=down)))
    unclear = tuple(tuple(replace(hop, clear=False) for hop in stack) for stack in tree.down)
    assert any("clear is False" in f for f in plan_faults(network, broken(plan, down=unclear)))
    name = network.access_switch("h1")
    part = tree.parts[name]
    fewer = {**tree.parts, name: replace(part, ports_down=part.ports_down[:1])}
    assert any("exactly one" in f for f in plan_faults(network, broken(plan, parts=fewer)))
    groupless = {**tree.parts, name: replace(part, group=0)}
    assert any("no multicast" in f for f in plan_faults(network, broken(plan, parts=groupless)))
    closed = {**tree.parts, name: replace(part, ports_up=part.ports_up[1:])}
    assert any(
        "does not admit contributions" in f
        for f in plan_faults(network, broken(plan, parts=closed))
    )
    strange = {**tree.parts, name: replace(part, ports_down=(*part.ports_down, 4))}
    assert any("not expected" in f for f in plan_faults(network, broken(plan, parts=strange)))


def test_the_checker_finds_shared_slots_and_groups() -> None:
    network = load_network("star:2", slots=300)
    plan = plan_job(network, request(network))
    for fault in (
        "slots of job 2, tree 0 overlap those of job 1",
        "multicast group 2 is used twice",
    ):
        with pytest.raises(PlanError, match=fault):
            check_plans(network, [plan, replace(plan, job=2)])
    part = replace(plan.trees[0].parts["s1"], slot_base=100)
    with pytest.raises(PlanError, match=r"slots 100\.\.355 of job 1; it has 300"):
        check_plans(network, [broken(plan, parts={"s1": part})])


def test_the_checker_finds_a_cycle() -> None:
    network, plan = fat_tree_plan()
    parents = dict(plan.trees[0].parents)
    edge = network.access_switch("h1")
    parents[parents[edge]] = edge
    assert any("cycle" in f for f in plan_faults(network, broken(plan, parents=parents)))
