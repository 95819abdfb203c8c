"""In-network trees in time: as the packet model predicts, and with other traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.collectives.plan import DataType, JobPlan, Results
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.timing.estimate import estimate
from hopsum.timing.routes import LinkArrays
from hopsum.timing.scenario import Scenario, Timing
from hopsum.timing.trees import add_plan
from hopsum.timing.work import Background, PlanWork
from tests.oracles import costs
from tests.support.framing import BARE


def planned(network: Network, servers: int = 1, **fields: object) -> JobPlan:
    placement = place(network, None, servers)
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    return plan_job(network, replace(request, **fields))  # type: ignore[arg-type]


def timed(
    network: Network,
    plan: JobPlan,
    elements: int,
    data_type: DataType = DataType.INT32,
    *background: Background,
) -> Timing:
    scenario = Scenario(LinkArrays(network))
    add_plan(scenario, plan, elements, data_type)
    for traffic in background:
        scenario.add_background(traffic, BARE)
    return scenario.run()


@pytest.mark.parametrize("spec", ["star:5", "line:3x2", "leaf-spine:3x3", "fat-tree:4"])
@pytest.mark.parametrize("latency", [0.0, 1e-4, 0.02])
@pytest.mark.parametrize("algorithm", [SwitchRole.IN_NETWORK, SwitchRole.SERVER])
@pytest.mark.parametrize("elements", [100, 60_000])
def test_one_tree_takes_the_time_of_its_packets(
    spec: str, latency: float, algorithm: SwitchRole, elements: int
) -> None:
    network = load_network(spec, link_rate=1e8, latency=latency)
    results = Results.UNICAST if algorithm is SwitchRole.SERVER else Results.REPLICATED
    plan = planned(network, algorithm=algorithm, window=16, results=results)
    for data_type in DataType:
        predicted = estimate(network, PlanWork(plan, [(elements, data_type)]))
        timing = timed(network, plan, elements, data_type)
        assert timing.seconds == pytest.approx(predicted.seconds, rel=0.06)
        assert timing.loads == pytest.approx(predicted.links)


def test_several_trees_share_their_workers_links() -> None:
    network = load_network("leaf-spine:4x2", link_rate=1e8, latency=1e-5, servers=2)
    plan = planned(network, servers=2)
    predicted = estimate(network, PlanWork(plan, [(2_000_000, DataType.INT32)]))
    timing = timed(network, plan, 2_000_000)
    assert timing.loads == pytest.approx(predicted.links)
    assert timing.seconds == pytest.approx(predicted.seconds, rel=0.02)


def test_a_small_window_limits_the_rate() -> None:
    network = load_network("star:4", link_rate=1e8, latency=0.01)
    plan = planned(network, window=8)
    predicted = estimate(network, PlanWork(plan, [(256 * 803, DataType.INT32)]))
    assert timed(network, plan, 256 * 803).seconds == pytest.approx(predicted.seconds, rel=1e-6)


def test_the_alpha_beta_cost_of_a_tree() -> None:
    network = load_network("fat-tree:4", link_rate=1e9, latency=1e-5)
    plan = planned(network)
    timing = timed(network, plan, 1_000_000)
    hottest = max(timing.loads.values())
    fragment = hottest / -(-1_000_000 // plan.lanes)
    # Up to the server: six links, each of a packet and its latency, and the packet at the server.
    model = costs.AlphaBeta(6 * (1e-5 + 8 * fragment / 1e9), 8 / 1e9)
    assert timing.seconds == pytest.approx(costs.in_network(model, hottest), rel=0.05)


def test_background_slows_the_whole_tree() -> None:
    network = load_network("star:4", link_rate=1e8)
    plan = planned(network, window=256)
    alone = timed(network, plan, 1_000_000).seconds
    crossing = Background("ps", "h1")
    assert timed(network, plan, 1_000_000, DataType.INT32, crossing).seconds == pytest.approx(
        2 * alone, rel=0.1
    )


def test_no_elements_take_no_time() -> None:
    network = load_network("star:2", link_rate=1e8)
    assert timed(network, planned(network), 0).seconds == 0.0
