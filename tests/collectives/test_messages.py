"""Plans and networks as messages, there and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.messages import network_from, network_message, plan_from, plan_message
from hopsum.collectives.plan import Results
from hopsum.network.loaders import load_network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import LANE_REDUCTIONS, Reduction
from tests.support.search import examples


@pytest.mark.slow
@settings(max_examples=examples(13, of=40))
@given(
    spec=st.sampled_from(["star:1", "star:5", "star:40", "leaf-spine:2x2", "fat-tree:4"]),
    servers=st.integers(1, 2),
    algorithm=st.sampled_from(SwitchRole),
    results=st.sampled_from(Results),
    reduction=st.sampled_from(LANE_REDUCTIONS),
    lanes=st.sampled_from([32, 256, 352]),
    window=st.sampled_from([1, 32, 1024]),
    job=st.integers(1, 65535),
    epoch=st.integers(1, 65535),
    split=st.floats(0, 1),
)
def test_plans_survive_the_round_trip(
    spec: str,
    servers: int,
    algorithm: SwitchRole,
    results: Results,
    reduction: Reduction,
    lanes: int,
    window: int,
    job: int,
    epoch: int,
    split: float,
) -> None:
    network = load_network(spec, servers=servers)
    placement = place(network, None, servers)
    shares = (split, 1 - split) if servers == 2 else None
    plan = plan_job(
        network,
        PlanRequest(
            job,
            epoch,
            placement.workers,
            placement.servers,
            algorithm,
            lanes,
            window,
            results,
            reduction,
            shares,
        ),
    )
    wire = plan_message(plan).SerializeToString()
    assert plan_from(pb.Plan.FromString(wire)) == plan


@pytest.mark.parametrize("spec", ["star:3", "torus:2x3", "dragonfly:1"])
def test_networks_survive_the_round_trip(spec: str) -> None:
    network = load_network(spec, link_rate=1e8 / 3, latency=0.1, plain=())
    again = network_from(pb.Network.FromString(network_message(network).SerializeToString()))
    assert again == network
    unlimited = load_network(spec)
    assert network_from(network_message(unlimited)) == unlimited


def test_labels_survive_the_round_trip() -> None:
    network = load_network("star:1")
    hosts = {host.name: replace(host, label="Reykjavík") for host in network.hosts.values()}
    switches = {s.name: replace(s, label="Los Angeles") for s in network.switches.values()}
    labelled = replace(network, hosts=hosts, switches=switches)
    assert network_from(network_message(labelled)) == labelled
