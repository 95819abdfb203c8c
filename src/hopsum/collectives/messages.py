"""Plans, trees and networks as control messages, and back. Converting back gives an equal value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

from hopsum.collectives.algorithms.trees import SharedTree
from hopsum.collectives.plan import HostPart, JobPlan, Results, SwitchPart, TreePlan
from hopsum.collectives.task_messages import choice
from hopsum.collectives.tree import Tree
from hopsum.network.model import Host, Link, Network, Switch
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import Hop, Reduction

Key = TypeVar("Key", str, int)
Value = TypeVar("Value")

_FRACTION = re.compile("-?[0-9]{1,1000}(/0*[1-9][0-9]{0,999})?")
"""Python accepts others too, such as 1e9999999, and computes for a long time."""


def plan_message(plan: JobPlan) -> pb.Plan:
    """Return the message of a plan."""
    return pb.Plan(
        job=plan.job,
        epoch=plan.epoch,
        workers=plan.workers,
        trees=[_tree_message(tree) for tree in plan.trees],
        lanes=plan.lanes,
        window=plan.window,
        results=plan.results.name,
        reduction=plan.reduction.name,
        host_parts=[
            pb.HostPart(
                weight=str(part.weight),
                order=part.order,
                root=part.root,
                parents=dict(part.parents),
            )
            for part in plan.host_parts
        ],
        period=plan.period,
        integrity=plan.integrity,
    )


def _in_order(entries: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return a map in key order: protobuf's order is random."""
    return {key: entries[key] for key in sorted(entries)}


def plan_from(message: pb.Plan) -> JobPlan:
    """Return the plan of a message."""
    return JobPlan(
        job=message.job,
        epoch=message.epoch,
        workers=tuple(message.workers),
        trees=tuple(_tree_from(tree) for tree in message.trees),
        lanes=message.lanes,
        window=message.window,
        results=choice("results", message.results, pb.Results, Results),
        reduction=choice("reduction", message.reduction, pb.Reduction, Reduction),
        host_parts=tuple(
            HostPart(Fraction(part.weight), tuple(part.order), part.root, _in_order(part.parents))
            for part in message.host_parts
        ),
        period=message.period,
        integrity=message.integrity,
    )


def _tree_message(tree: TreePlan) -> pb.Tree:
    return pb.Tree(
        tree=tree.tree,
        server=tree.server,
        parents=dict(tree.parents),
        parts=[
            pb.Part(
                switch=part.switch,
                aggregate=part.aggregate,
                children=dict(part.children),
                ports_up=part.ports_up,
                port_server=part.port_server,
                ports_down=part.ports_down,
                slot_base=part.slot_base,
                group=part.group,
            )
            for part in tree.parts.values()
        ],
        up=[_stack_message(stack) for stack in tree.up],
        down=[_stack_message(stack) for stack in tree.down],
        server_children=[pb.Workers(workers=workers) for workers in tree.server_children],
        share=tree.share,
    )


def _stack_message(stack: Iterable[Hop]) -> pb.Stack:
    return pb.Stack(hops=[hop.pack() for hop in stack])


def _stack_from(message: pb.Stack) -> tuple[Hop, ...]:
    return tuple(Hop.unpack(word) for word in message.hops)


def _tree_from(message: pb.Tree) -> TreePlan:
    return TreePlan(
        tree=message.tree,
        server=message.server,
        parents=_in_order(message.parents),
        parts={
            part.switch: SwitchPart(
                switch=part.switch,
                aggregate=part.aggregate,
                children=_in_order(part.children),
                ports_up=tuple(part.ports_up),
                port_server=part.port_server,
                ports_down=tuple(part.ports_down),
                slot_base=part.slot_base,
                group=part.group,
            )
            for part in message.parts
        },
        up=tuple(_stack_from(stack) for stack in message.up),
        down=tuple(_stack_from(stack) for stack in message.down),
        server_children=tuple(tuple(child.workers) for child in message.server_children),
        share=message.share,
    )


def network_message(network: Network) -> pb.Network:
    """Return the message of a network."""
    return pb.Network(
        name=network.name,
        hosts=[
            pb.Host(name=h.name, ip=h.ip, mac=h.mac, label=h.label) for h in network.hosts.values()
        ],
        switches=[
            pb.Switch(name=s.name, aggregates=s.aggregates, slots=s.slots, label=s.label)
            for s in network.switches.values()
        ],
        links=map(link_message, network.links),
    )


def link_message(link: Link) -> pb.Link:
    """Return the message of a link."""
    return pb.Link(
        a=link.a,
        b=link.b,
        a_port=link.a_port,
        b_port=link.b_port,
        bandwidth=link.bandwidth,
        latency=link.latency,
    )


def network_from(message: pb.Network) -> Network:
    """Return the network of a message; NetworkError if its parts do not fit together."""
    return Network(
        message.name,
        {h.name: Host(h.name, h.ip, h.mac, h.label) for h in message.hosts},
        {s.name: Switch(s.name, s.aggregates, s.slots, s.label) for s in message.switches},
        tuple(
            Link(
                link.a,
                link.b,
                link.a_port,
                link.b_port,
                link.bandwidth if link.HasField("bandwidth") else None,
                link.latency,
            )
            for link in message.links
        ),
    )


def shared_tree_message(shared: SharedTree) -> pb.SharedTree:
    """Return the message of a tree and its share."""
    tree = shared.tree
    return pb.SharedTree(root=tree.root, parents=dict(tree.parents), share=str(shared.share))


def shared_tree_from(message: pb.SharedTree) -> SharedTree:
    """Return the tree of a message; ScheduleError if invalid, ValueError for an invalid share."""
    if not _FRACTION.fullmatch(message.share):
        raise ValueError(f"share {message.share!r:.40}: expected a fraction, such as 3/8")
    tree = Tree(message.root, _in_order(message.parents))
    return SharedTree(tree, Fraction(message.share))
