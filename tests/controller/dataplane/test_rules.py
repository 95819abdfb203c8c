from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.controller.dataplane.rules import Loss, SwitchRules, TableEntry, rules_for
from hopsum.controller.jobs.sharing import bypassing
from hopsum.network.loaders import load_network
from hopsum.network.model import Network, NetworkError
from hopsum.network.paths import spanning_tree
from hopsum.planning.model.allocation import FLOOD_GROUP
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job


def planned(spec: str, **fields: object) -> tuple[Network, JobPlan]:
    network = load_network(spec)
    placement = place(network)
    request = PlanRequest(1, 1, placement.workers, placement.servers)
    return network, plan_job(network, replace(request, **fields))  # type: ignore[arg-type]


def of(rules: SwitchRules, table: str) -> list[TableEntry]:
    return [entry for entry in rules.entries if entry.table == table]


def test_a_star_in_full() -> None:
    network, plan = planned("star:2", window=8)
    rules = rules_for(network, [plan])["s1"]
    slots = (("slot_base", 0), ("window_mask", 7))
    assert of(rules, "admission") == [
        TableEntry(
            "admission",
            (("job", 1), ("tree", 0), ("ingress_port", 1)),
            "admit_children",
            (*slots, ("fan_in", 2), ("children", 0b01)),
        ),
        TableEntry(
            "admission",
            (("job", 1), ("tree", 0), ("ingress_port", 2)),
            "admit_children",
            (*slots, ("fan_in", 2), ("children", 0b10)),
        ),
        TableEntry(
            "admission",
            (("job", 1), ("tree", 0), ("ingress_port", 3)),
            "admit_results",
            slots,
        ),
    ]
    assert of(rules, "replication") == [
        TableEntry(
            "replication",
            (("job", 1), ("tree", 0), ("epoch", 1)),
            "replicate",
            (("group", 2), ("clear", 1)),
        )
    ]
    assert rules.groups == {FLOOD_GROUP: (1, 2, 3), 2: (1, 2)}
    assert of(rules, "ipv4_route")[0] == TableEntry(
        "ipv4_route",
        (("dst_addr", (0x0A000001, 32)),),
        "route",
        (("dst_mac", 0x02000A000001), ("port", 1)),
    )
    assert len(of(rules, "ipv4_route")) == 3
    assert len(of(rules, "l2_forward")) == 4


def test_a_switch_that_only_forwards_admits_no_children() -> None:
    network = bypassing(load_network("line:2x1"), {"s2"})
    placement = place(network)
    plan = plan_job(network, PlanRequest(1, 1, placement.workers, placement.servers))
    entry = of(rules_for(network, [plan])["s2"], "admission")[0]
    assert dict(entry.params)["fan_in"] == 0
    assert dict(entry.params)["children"] == 0
    clear = dict(of(rules_for(network, [plan])["s2"], "replication")[0].params)["clear"]
    assert clear == 0


def test_a_switch_can_send_a_copy_back_by_every_port() -> None:
    network, plan = planned("star:2")
    assert rules_for(network, [plan])["s1"].clones == {2: 1, 3: 2, 4: 3}


def test_unicast_results_need_no_groups() -> None:
    network, plan = planned("star:2", results=Results.UNICAST)
    rules = rules_for(network, [plan])["s1"]
    assert of(rules, "replication") == []
    assert set(rules.groups) == {FLOOD_GROUP}


@pytest.mark.parametrize("spec", ["star:3", "fat-tree:4", "leaf-spine:3x2", "dragonfly:1"])
def test_plain_packets_reach_every_host_from_everywhere(spec: str) -> None:
    network = load_network(spec)
    rules = rules_for(network)
    for table in ("ipv4_route", "l2_forward"):
        ports = {
            (name, entry.match[0][1]): dict(entry.params)["port"]
            for name, switch in rules.items()
            for entry in of(switch, table)
            if entry.action != "flood"
        }
        for host in network.hosts.values():
            mac = int.from_bytes(host.mac_bytes, "big")
            key = (int.from_bytes(host.ip_bytes, "big"), 32) if table == "ipv4_route" else mac
            for start in network.switches:
                node, steps = start, 0
                while node != host.name:
                    node = network.neighbour(node, ports[node, key])
                    steps += 1
                    assert steps <= len(network.switches)


@pytest.mark.parametrize("spec", ["star:3", "fat-tree:4", "leaf-spine:3x2", "dragonfly:1"])
def test_floods_reach_every_host_once(spec: str) -> None:
    network = load_network(spec)
    rules = rules_for(network)
    for source in network.hosts:
        reached: list[str] = []
        copies = [(source, network.access_switch(source))]
        while copies:
            before, node = copies.pop()
            if node in network.hosts:
                reached.append(node)
                continue
            for port in rules[node].groups[FLOOD_GROUP]:
                if network.neighbour(node, port) != before:
                    copies.append((node, network.neighbour(node, port)))
            assert len(copies) < 1000
        assert sorted(reached) == sorted(set(network.hosts) - {source})


def test_spanning_tree_size() -> None:
    network = load_network("fat-tree:4")
    assert len(spanning_tree(network)) == len(network.hosts) + len(network.switches) - 1


def test_losses() -> None:
    network = load_network("line:2x1")
    losses = [Loss("s1", "s2", 0.5), Loss("h1", "s1", 1.0), Loss("s2", "h2", 0.25)]
    rules = rules_for(network, losses=losses)
    port = network.port("s2", "s1")
    assert of(rules["s2"], "ingress_loss") == [
        TableEntry("ingress_loss", (("ingress_port", port),), "lose", (("threshold", 1 << 31),))
    ]
    assert dict(of(rules["s1"], "ingress_loss")[0].params) == {"threshold": 0xFFFFFFFF}
    assert of(rules["s2"], "egress_loss") == [
        TableEntry(
            "egress_loss",
            (("egress_port", network.port("s2", "h2")),),
            "lose",
            (("threshold", 1 << 30),),
        )
    ]


def test_bad_losses() -> None:
    network = load_network("line:2x1")
    with pytest.raises(PlanError, match=r"probability 1\.5: expected 0 to 1"):
        rules_for(network, losses=[Loss("s1", "s2", 1.5)])
    with pytest.raises(NetworkError, match="no link between 's2' and 'h1'"):
        rules_for(network, losses=[Loss("h1", "s2", 0.5)])


def test_a_job_has_one_plan() -> None:
    network, plan = planned("star:2")
    with pytest.raises(PlanError, match="job 1 has two plans"):
        rules_for(network, [plan, replace(plan, epoch=2)])
