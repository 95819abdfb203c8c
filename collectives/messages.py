"""Plans, networks and workloads as control messages, and back. A round trip changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from enum import Enum
from fractions import Fraction
from typing import Any, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from collectives.algorithms.rooted import RootedTree
from collectives.algorithms.trees import SharedTree
from collectives.choices import DataType, FormOptions, Shape, Siblings
from collectives.plan import HostPart, JobPlan, Results, SwitchPart, TreePlan
from collectives.workload import WorkloadError, WorkloadSpec
from network.model import Host, Link, Network, Switch
from protocol import hopsum_pb2 as pb
from protocol.wire import Hop, Reduction

Key = TypeVar("Key", str, int)
Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=Enum)

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
        hosts=[pb.Host(name=h.name, ip=h.ip, mac=h.mac) for h in network.hosts.values()],
        switches=[
            pb.Switch(name=s.name, aggregates=s.aggregates, slots=s.slots)
            for s in network.switches.values()
        ],
        links=[
            pb.Link(
                a=link.a,
                b=link.b,
                a_port=link.a_port,
                b_port=link.b_port,
                bandwidth=link.bandwidth,
                latency=link.latency,
            )
            for link in network.links
        ],
    )


def network_from(message: pb.Network) -> Network:
    """Return the network of a message; NetworkError if its parts do not fit together."""
    return Network(
        message.name,
        {h.name: Host(h.name, h.ip, h.mac) for h in message.hosts},
        {s.name: Switch(s.name, s.aggregates, s.slots) for s in message.switches},
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


def workload_message(spec: WorkloadSpec) -> pb.Workload:
    """Return the message of a workload."""
    return pb.Workload(**asdict(spec) | {"dtype": spec.dtype.name})


def workload_from(message: pb.Workload) -> WorkloadSpec:
    """Return the workload of a message. ValueError, or WorkloadError, that names the field."""
    fields = given(message)
    needed = [field.name for field in pb.Workload.DESCRIPTOR.fields if field.has_presence]
    for name in needed:
        if name not in fields:
            raise WorkloadError(f"workload: {name} is missing; it has {', '.join(needed)}")
    fields["dtype"] = choice("workload: dtype", message.dtype, pb.DataType, DataType)
    fields["ranks"] = tuple(message.ranks)
    return WorkloadSpec(**fields)


def given(message: Message) -> dict[str, Any]:
    """Return the fields that are set in a message, by name."""
    return {field.name: value for field, value in message.ListFields()}


def shared_tree_message(shared: SharedTree) -> pb.SharedTree:
    """Return the message of a tree and its share."""
    tree = shared.tree
    return pb.SharedTree(root=tree.root, parents=dict(tree.parents), share=str(shared.share))


def shared_tree_from(message: pb.SharedTree) -> SharedTree:
    """Return the tree of a message; ScheduleError if invalid, ValueError for an invalid share."""
    if not _FRACTION.fullmatch(message.share):
        raise ValueError(f"share {message.share!r:.40}: expected a fraction, such as 3/8")
    tree = RootedTree(message.root, _in_order(message.parents))
    return SharedTree(tree, Fraction(message.share))


def form_message(form: FormOptions) -> pb.LevelWise:
    """Return the message of level-wise options."""
    siblings = None if form.siblings is None else form.siblings.name
    return pb.LevelWise(form=form.shape.name, siblings=siblings)


def form_from(message: pb.LevelWise) -> FormOptions:
    """Return the level-wise options of a message. Raises ValueError."""
    siblings = choice("siblings", message.siblings, pb.LevelWise.Siblings, Siblings)
    return FormOptions(
        choice("form", message.form, pb.LevelWise.Shape, Shape),
        siblings if message.HasField("siblings") else None,
    )


def choice(field: str, number: int, numbers: EnumTypeWrapper, kinds: type[Kind]) -> Kind:
    """Return the enum member for a protobuf number, which may be invalid."""
    if number not in numbers.values():
        raise ValueError(f"{field} {number}: expected one of {', '.join(numbers.keys())}")
    return kinds[numbers.Name(number)]
