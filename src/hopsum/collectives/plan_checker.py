"""Proves that a plan's contributions reach the server exactly once and results return.

The checker follows the packets, not the planner's reasoning: it walks the stacks over the ports of
the network, sums sets of workers where an entry says so, and copies results as the groups say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hopsum.collectives.choices import window_fault
from hopsum.collectives.plan import JobPlan, PlanError, Results, SwitchPart, TreePlan
from hopsum.collectives.schedule import ScheduleError
from hopsum.collectives.tree import Tree
from hopsum.network.model import Network, NetworkError, shorten
from hopsum.protocol.wire import (
    ADMISSION_SIZE,
    MAX_CHILDREN,
    Hop,
    LayoutError,
    check_lanes,
    pack_stack,
)


def check_plans(network: Network, plans: Iterable[JobPlan]) -> None:
    """Check plans that are installed together; PlanError lists every fault found."""
    plans = list(plans)
    faults = [fault for plan in plans for fault in plan_faults(network, plan)]
    _refuse([*faults, *_shared_resource_faults(network, plans)])


def check_together(network: Network, plans: Iterable[JobPlan]) -> None:
    """Check what plans that are each valid share at switches; errors as of `check_plans`."""
    _refuse(list(_shared_resource_faults(network, list(plans))))


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise PlanError("the plan does not hold:\n  " + "\n  ".join(faults))


def plan_faults(network: Network, plan: JobPlan) -> list[str]:
    """Return the faults of one plan, one line each; empty if it is correct."""
    faults = list(_job_faults(network, plan))
    if faults:
        return faults
    for tree in plan.trees:
        where = f"job {plan.job}, epoch {plan.epoch}, tree {tree.tree}"
        faults += [f"{where}: {fault}" for fault in _tree_faults(network, plan, tree)]
    return faults


def _job_faults(network: Network, plan: JobPlan) -> Iterator[str]:
    where = f"job {plan.job}, epoch {plan.epoch}"
    if not (1 <= plan.job <= 0xFFFF and 1 <= plan.epoch <= 0xFFFF):
        yield f"{where}: expected numbers from 1 to 65535"
    if fault := window_fault(plan.window):
        yield f"{where}: {fault}"
    try:
        check_lanes(plan.lanes)
    except LayoutError as error:
        yield f"{where}: {error}"
    if len(set(plan.workers)) != len(plan.workers):
        yield f"{where}: a worker is named twice"
    for name in (*plan.workers, *plan.auxiliary):
        if name not in network.hosts:
            yield f"{where}: there is no host {name!r}"
    if [tree.tree for tree in plan.trees] != list(range(len(plan.trees))):
        yield f"{where}: trees are not numbered 0, 1, ..."
    if (plan.trees or not plan.host_parts) and abs(sum(t.share for t in plan.trees) - 1) > 1e-9:
        yield f"{where}: the trees' shares are not 1 together"
    yield from (f"{where}: {fault}" for fault in _host_part_faults(plan))


def _host_part_faults(plan: JobPlan) -> Iterator[str]:
    weights = ", ".join(str(part.weight) for part in plan.host_parts)
    rest = plan.tree_weight
    if any(part.weight <= 0 for part in plan.host_parts) or (rest < 0 if plan.trees else rest):
        left = "at most 1, for the trees sum the rest" if plan.trees else "1"
        if plan.host_parts:
            yield f"weights {weights} of parts of hosts: expected above 0 each, together {left}"
    for number, part in enumerate(plan.host_parts):
        if part.order:
            if sorted(part.order) != sorted(plan.workers):
                yield f"part {number} of hosts: a ring of other hosts than the workers"
            continue
        try:
            Tree(part.root, part.parents).check_ranks(plan.workers)
        except ScheduleError as error:
            yield f"part {number} of hosts: {error}"


@dataclass(slots=True)
class _Flow:
    """Packets in flight: the workers that they sum, and the rest of their stack."""

    via: str
    workers: frozenset[int]
    stack: tuple[Hop, ...]


def _tree_faults(network: Network, plan: JobPlan, tree: TreePlan) -> Iterator[str]:
    count = len(plan.workers)
    if len(tree.up) != count or len(tree.down) != count:
        yield f"{len(tree.up)} stacks up and {len(tree.down)} down for {count} workers"
        return
    for w, stacks in enumerate(zip(tree.up, tree.down, strict=True)):
        for stack in stacks:
            try:
                pack_stack(stack)
            except LayoutError as error:
                yield f"worker {plan.workers[w]}: {error}"
                return
    try:
        order = _leaves_first(network, tree)
        yield from _upward_faults(network, plan, tree, order)
        for w in range(count):
            yield from _stack_down_faults(network, plan, tree, w)
        if plan.results is Results.REPLICATED:
            yield from _replication_faults(network, plan, tree)
    except (NetworkError, PlanError) as error:
        yield str(error)


def _leaves_first(network: Network, tree: TreePlan) -> list[str]:
    """Return the tree's switches, each before the next one towards the server."""
    depth: dict[str, int] = {}
    for name in tree.parts:
        node, steps = name, 0
        while node != tree.server:
            if steps > len(tree.parts):
                raise PlanError(f"from switch {name} the parents form a cycle")
            if node not in tree.parents:
                raise PlanError(f"node {node} has no parent in the tree")
            network.port(node, tree.parents[node])
            node, steps = tree.parents[node], steps + 1
        depth[name] = steps
    return sorted(tree.parts, key=lambda name: -depth[name])


def _upward_faults(
    network: Network, plan: JobPlan, tree: TreePlan, order: Sequence[str]
) -> Iterator[str]:
    waiting: dict[str, list[_Flow]] = {}
    for w, worker in enumerate(plan.workers):
        flow = _Flow(worker, frozenset((w,)), tree.up[w])
        if worker != tree.server and worker not in tree.parents:
            yield f"worker {worker} has no parent in the tree"
            return
        first = tree.parents.get(worker, worker)
        waiting.setdefault(first, []).append(flow)
    for name in order:
        leaving = []
        slots: dict[int, list[_Flow]] = {}
        for flow in waiting.pop(name, []):
            for fault in _entry_faults(network, tree.parts[name], flow):
                yield f"at switch {name}, {_who(plan, flow)}: {fault}"
                return
            if flow.stack[0].aggregate:
                slots.setdefault(flow.stack[0].child, []).append(flow)
            else:
                leaving.append(flow)
        if slots:
            yield from _sum_faults(plan, tree.parts[name], slots)
            summed = [flow for flows in slots.values() for flow in flows]
            rests = {(flow.stack[0].port, flow.stack[1:]) for flow in summed}
            if len(rests) > 1:
                yield f"at switch {name}: the summed packets leave by {len(rests)} ways"
                return
            workers = frozenset().union(*(flow.workers for flow in summed))
            leaving.append(_Flow(name, workers, summed[0].stack))
        for flow in leaving:
            peer = network.neighbour(name, flow.stack[0].port)
            if peer != tree.parents[name]:
                yield f"switch {name} sends to {peer}, but its parent is {tree.parents[name]}"
                return
            waiting.setdefault(peer, []).append(_Flow(name, flow.workers, flow.stack[1:]))
    yield from _server_faults(plan, tree, waiting.pop(tree.server, []))
    for name, flows in waiting.items():
        yield f"{_who(plan, flows[0])} end at {name}, which is not on the tree"


def _who(plan: JobPlan, flow: _Flow) -> str:
    return f"packets of {shorten(plan.workers[w] for w in sorted(flow.workers))}"


def _entry_faults(network: Network, part: SwitchPart, flow: _Flow) -> Iterator[str]:
    if len(flow.stack) < 2:
        yield "the stack ends before the server"
        return
    entry = flow.stack[0]
    ingress = network.port(part.switch, flow.via)
    if ingress not in part.ports_up:
        yield f"port {ingress} does not admit contributions"
    if entry.port != part.port_server:
        yield f"the entry leads to port {entry.port}, the server is at port {part.port_server}"
    if not entry.aggregate:
        return
    if not network.switches[part.switch].aggregates:
        yield "this switch cannot aggregate"
    if not part.aggregate:
        yield "the entry aggregates, the switch's part does not"
    if part.children.get(entry.child) != ingress:
        yield f"child {entry.child} is not admitted at port {ingress}"
    if entry.fan_in != part.fan_in:
        yield f"the entry's fan-in is {entry.fan_in}, the switch's {part.fan_in}"


def _sum_faults(plan: JobPlan, part: SwitchPart, slots: dict[int, list[_Flow]]) -> Iterator[str]:
    for child, flows in slots.items():
        if len(flows) > 1:
            yield (
                f"at switch {part.switch}, child {child} is {len(flows)} flows: "
                f"{_who(plan, flows[0])} and {_who(plan, flows[1])}"
            )
    missing = sorted(set(part.children) - set(slots))
    if missing:
        yield f"at switch {part.switch} nothing comes in as child {missing[0]}: it would wait"
    if not 1 <= part.fan_in <= MAX_CHILDREN:
        yield f"at switch {part.switch} the fan-in is {part.fan_in}; at most {MAX_CHILDREN}"
    everyone = [w for flows in slots.values() for flow in flows for w in flow.workers]
    if len(everyone) != len(set(everyone)):
        yield f"at switch {part.switch} some worker is summed twice"


def _server_faults(plan: JobPlan, tree: TreePlan, flows: Sequence[_Flow]) -> Iterator[str]:
    seen: list[int] = []
    for flow in flows:
        seen += flow.workers
        if len(flow.stack) != 1:
            yield f"{_who(plan, flow)} reach the server with {len(flow.stack)} entries, not 1"
            continue
        last = flow.stack[0]
        if tree.singles:
            if last.fan_in != 0 or len(flow.workers) != 1:
                yield f"{_who(plan, flow)} reach the server as a sum among single packets"
        elif last.fan_in != len(tree.server_children):
            yield f"the server's fan-in is {len(tree.server_children)}, the entry's {last.fan_in}"
        elif set(tree.server_children[last.child]) != flow.workers:
            yield f"the server takes child {last.child} for other workers than {_who(plan, flow)}"
    if sorted(seen) != list(range(len(plan.workers))):
        wrong = [w for w in range(len(plan.workers)) if seen.count(w) != 1]
        names = shorten(plan.workers[w] for w in wrong)
        yield f"contributions that do not reach the server exactly once: {names}"


def _stack_down_faults(network: Network, plan: JobPlan, tree: TreePlan, w: int) -> Iterator[str]:
    """Follow a result's stack over the switches of the path up; it must clear their slots."""
    worker = plan.workers[w]
    way: list[str] = []
    node = tree.parents.get(worker, tree.server)
    while node != tree.server:
        way.append(node)
        node = tree.parents[node]
    entries = tree.down[w]
    if len(entries) != len(way) or len(tree.up[w]) != len(way) + 1:
        yield f"worker {worker}: {len(entries)} entries down, {len(way)} switches on the way"
        return
    for below, name, entry, up in zip(
        [worker, *way], way, reversed(entries), tree.up[w], strict=False
    ):
        if network.neighbour(name, entry.port) != below:
            yield f"worker {worker}: at {name} the result leaves towards another node"
        if entry.clear != up.aggregate:
            yield f"worker {worker}: at {name} clear is {entry.clear}, aggregate {up.aggregate}"


def _replication_faults(network: Network, plan: JobPlan, tree: TreePlan) -> Iterator[str]:
    # A worker that is the server has it already.
    copies = {worker: int(worker == tree.server) for worker in plan.workers}
    root = tree.root
    arriving = [(tree.server, root)]
    visited: set[str] = set()
    while arriving:
        before, name = arriving.pop()
        if name in copies:
            copies[name] += 1
            continue
        if name not in tree.parts or name in visited:
            yield f"a replicated result reaches {name}, where it is not expected"
            return
        visited.add(name)
        part = tree.parts[name]
        if network.port(name, before) != part.port_server:
            yield f"switch {name} expects results at port {part.port_server} only"
        if part.group < 1:
            yield f"switch {name} has no multicast group"
        arriving += [(name, network.neighbour(name, port)) for port in part.ports_down]
    wrong = [worker for worker, count in copies.items() if count != 1]
    if wrong:
        yield f"workers that do not get exactly one replicated result: {shorten(wrong)}"


def _shared_resource_faults(network: Network, plans: Sequence[JobPlan]) -> Iterator[str]:
    """Yield slot ranges that do not fit or overlap, groups used twice at a switch, and switches
    that would have too many entries.
    """
    admissions = Counter[str]()
    ranges: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
    groups: dict[str, dict[int, tuple[int, int, int]]] = {}
    for plan in plans:
        for tree in plan.trees:
            for name, part in tree.parts.items():
                if name not in network.switches:
                    continue
                # One for each port that contributions come by, one for results.
                admissions[name] += len(part.ports_up) + 1
                if part.aggregate:
                    ranges.setdefault(name, {})[plan.job, tree.tree] = (part.slot_base, plan.window)
                key = (plan.job, plan.epoch, tree.tree)
                if part.group and groups.setdefault(name, {}).setdefault(part.group, key) != key:
                    yield f"switch {name}: multicast group {part.group} is used twice"
    for name, entries in admissions.items():
        if entries > ADMISSION_SIZE:
            yield f"switch {name}: {entries} admission entries; it has room for {ADMISSION_SIZE}"
    for name, held in ranges.items():
        slots = network.switches[name].slots
        end, owner = 0, (0, 0)
        for (job, number), (base, size) in sorted(held.items(), key=lambda item: item[1]):
            if base < end:
                yield (
                    f"switch {name}: the slots of job {job}, tree {number} overlap "
                    f"those of job {owner[0]}, tree {owner[1]}"
                )
            end, owner = base + size, (job, number)
            if base < 0 or end > slots:
                yield f"switch {name}: slots {base}..{end - 1} of job {job}; it has {slots}"
