"""Desired state of switches, as pure data: table entries, multicast groups, clone sessions.

The names are those of p4src/hopsum.p4. The P4Runtime driver makes it so; the simulator and the
packet tests read the same data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopsum.collectives.plan import JobPlan, PlanError, Results, SwitchPart, TreePlan
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes, spanning_tree
from hopsum.planning.model.allocation import FLOOD_GROUP

BROADCAST_MAC = 0xFFFF_FFFF_FFFF
THRESHOLD_MAX = 0xFFFF_FFFF

MatchValue = int | tuple[int, int]
"""An exact value, or (value, prefix length)."""


@dataclass(frozen=True, slots=True, order=True)
class TableEntry:
    """One entry: match fields and action parameters by name, in the order of the P4 program."""

    table: str
    match: tuple[tuple[str, MatchValue], ...]
    action: str
    params: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[str, tuple[tuple[str, MatchValue], ...]]:
        """Key of an entry within a switch."""
        return self.table, self.match


@dataclass(frozen=True, slots=True)
class SwitchRules:
    """The desired state of one switch.

    `groups`: multicast group -> egress ports; `clones`: clone session -> egress port.
    """

    entries: tuple[TableEntry, ...] = ()
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    clones: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loss:
    """Random packet loss from node `u` to its neighbour `v`."""

    u: str
    v: str
    probability: float


def losses_on(network: Network, probability: float) -> list[Loss]:
    """Return this probability on every link, in both directions; 0: no loss."""
    if not probability:
        return []
    return [Loss(u, v, probability) for u, v in network.directed_links()]


def rules_for(
    network: Network, plans: Iterable[JobPlan] = (), losses: Iterable[Loss] = ()
) -> dict[str, SwitchRules]:
    """Return the desired state of all switches for the current plans of all jobs.

    A plan may have parts at switches that the network lacks: its job waits for them. Raises
    PlanError if a job has two plans, NetworkError for a loss where there is no link.
    """
    entries: dict[str, list[TableEntry]] = {name: [] for name in network.switches}
    groups: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in network.switches}
    _plain(network, entries, groups)
    jobs: set[int] = set()
    for plan in plans:
        if plan.job in jobs:
            raise PlanError(f"job {plan.job} has two plans; only its newest is installed")
        jobs.add(plan.job)
        for tree in plan.trees:
            for part in tree.parts.values():
                if part.switch not in network.switches:
                    continue
                entries[part.switch] += _admission(plan, tree, part)
                if plan.results is Results.REPLICATED:
                    entries[part.switch].append(_replication(plan, tree, part))
                    groups[part.switch][part.group] = part.ports_down
    for loss in losses:
        switch, entry = _loss(network, loss)
        entries[switch].append(entry)
    return {
        name: SwitchRules(
            tuple(sorted(entries[name], key=lambda e: (e.table, str(e)))),
            groups[name],
            {clone_session(port): port for port in network.ports(name)},
        )
        for name in network.switches
    }


def clone_session(port: int) -> int:
    """Return the clone session of a port; sessions count from 1."""
    return port + 1


def _plain(
    network: Network,
    entries: Mapping[str, list[TableEntry]],
    groups: Mapping[str, dict[int, tuple[int, ...]]],
) -> None:
    """Add the rules that forward IPv4 and Ethernet to every host.

    Broadcasts flood along a spanning tree.
    """
    routes = PlainRoutes(network)
    for host in network.hosts.values():
        ip = int.from_bytes(host.ip_bytes, "big")
        mac = int.from_bytes(host.mac_bytes, "big")
        for node, towards in routes.next_hops(host.name).items():
            if node not in network.switches:
                continue
            port = network.port(node, towards)
            entries[node] += [
                TableEntry(
                    "ipv4_route",
                    (("dst_addr", (ip, 32)),),
                    "route",
                    (("dst_mac", mac), ("port", port)),
                ),
                TableEntry("l2_forward", (("dst_mac", mac),), "forward", (("port", port),)),
            ]
    tree = spanning_tree(network)
    for name in network.switches:
        groups[name][FLOOD_GROUP] = tuple(
            port for port, peer in network.ports(name).items() if frozenset((name, peer)) in tree
        )
        entries[name].append(
            TableEntry(
                "l2_forward",
                (("dst_mac", BROADCAST_MAC),),
                "flood",
                (("group", FLOOD_GROUP),),
            )
        )


def _admission(plan: JobPlan, tree: TreePlan, part: SwitchPart) -> list[TableEntry]:
    slots = (("slot_base", part.slot_base), ("window_mask", plan.window - 1))
    entries = []
    for port in part.ports_up:
        children = sum(1 << child for child, at in part.children.items() if at == port)
        entries.append(
            TableEntry(
                "admission",
                (("job", plan.job), ("tree", tree.tree), ("ingress_port", port)),
                "admit_children",
                (*slots, ("fan_in", part.fan_in), ("children", children)),
            )
        )
    entries.append(
        TableEntry(
            "admission",
            (("job", plan.job), ("tree", tree.tree), ("ingress_port", part.port_server)),
            "admit_results",
            slots,
        )
    )
    return entries


def _replication(plan: JobPlan, tree: TreePlan, part: SwitchPart) -> TableEntry:
    return TableEntry(
        "replication",
        (("job", plan.job), ("tree", tree.tree), ("epoch", plan.epoch)),
        "replicate",
        (("group", part.group), ("clear", int(part.aggregate))),
    )


def _loss(network: Network, loss: Loss) -> tuple[str, TableEntry]:
    """Return the entry that drops packets of a link: at ingress where it ends if that is a switch,
    else at egress where it begins.
    """
    if not 0 <= loss.probability <= 1:
        raise PlanError(f"loss {loss.u}-{loss.v}: probability {loss.probability}: expected 0 to 1")
    threshold = min(THRESHOLD_MAX, round(loss.probability * (1 << 32)))
    params = (("threshold", threshold),)
    if loss.v in network.switches:
        port = network.port(loss.v, loss.u)
        return loss.v, TableEntry("ingress_loss", (("ingress_port", port),), "lose", params)
    port = network.port(loss.u, loss.v)
    if loss.u not in network.switches:
        raise PlanError(f"loss {loss.u}-{loss.v}: neither end is a switch")
    return loss.u, TableEntry("egress_loss", (("egress_port", port),), "lose", params)
