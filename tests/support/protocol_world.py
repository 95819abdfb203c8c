"""A small world for the agents' tests: virtual time, faulty links, reference switches.

`World` joins workers, servers and switches; everything follows from one seed. `tree_plan` and
`make_tree` build small jobs, `contribution` and `result` single packets.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, SwitchPart, TreePlan
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.server import Server
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Host, Link, Network
from hopsum.network.model import Switch as SwitchNode
from hopsum.protocol.wire import (
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    carries_lanes,
    frame_bytes,
    frame_template,
    frame_view,
)
from tests.oracles.reference_switch import ReferenceSwitch, without
from tests.packet.hopsum.switches import Build, Switch
from tests.support.columns import are_bare, flags_of, kinds_of

LANES = 32
SLOTS = 1024
SERVER = "ps"
SPARE = "spare"
LINK_FLAGS = Flag.SEQUENCED | Flag.REPAIR


def make_network(access: Mapping[str, str], switches: Sequence[str]) -> Network:
    """Hosts at their switches, and a link between every two switches."""
    hosts = {
        name: Host(name, f"10.0.0.{i + 1}", f"02:00:00:00:00:{i + 1:02x}")
        for i, name in enumerate(access)
    }
    ports = {name: count(1) for name in switches}
    links = [Link(host, switch, 0, next(ports[switch])) for host, switch in access.items()]
    for i, a in enumerate(switches):
        for b in switches[i + 1 :]:
            links.append(Link(a, b, next(ports[a]), next(ports[b])))
    return Network("world", hosts, {name: SwitchNode(name) for name in switches}, tuple(links))


def make_tree(
    network: Network,
    workers: Sequence[str],
    parents: Mapping[str, str],
    aggregates: Sequence[str],
    *,
    tree: int = 0,
    server: str = SERVER,
    window: int = 4,
    share: float = 1.0,
    singles: bool = False,
) -> TreePlan:
    """The tree in which each switch's next node is `parents[switch]` and some switches sum.

    A worker at whose host the server is has no switch on its way, and is the server's last child.
    """
    access = {host: network.access_switch(host) for host in (*workers, server)}
    up_path = {w: [access[w]] for w in workers if w != server}
    for path in up_path.values():
        while path[-1] != access[server]:
            path.append(parents[path[-1]])
    depth = {node: i for path in up_path.values() for i, node in enumerate(reversed(path))}
    flows: dict[str, list[tuple[str, tuple[int, ...]]]] = {node: [] for node in (*depth, server)}
    for w, name in enumerate(workers):
        if name in up_path:
            flows[access[name]].append((name, (w,)))
    children: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for node in sorted(depth, key=lambda n: (-depth[n], n)):
        arriving = children[node] = flows[node]
        after = server if node == access[server] else parents[node]
        if node in aggregates and not singles:
            flows[after].append((node, tuple(w for _, group in arriving for w in group)))
        else:
            flows[after].extend((node, group) for _, group in arriving)

    flows[server] += [(name, (w,)) for w, name in enumerate(workers) if name == server]

    def child_at(node: str, w: int) -> int:
        return next(i for i, (_, group) in enumerate(flows[node]) if w in group)

    up, down = [], []
    for w, name in enumerate(workers):
        at_server = Hop(child=child_at(server, w), fan_in=len(flows[server]))
        if name == server:
            up.append((at_server,))
            down.append(())
            continue
        path = up_path[name]
        way_up = []
        for node, after in zip(path, [*path[1:], server], strict=True):
            port = network.port(node, after)
            if node in aggregates and not singles:
                way_up.append(Hop(True, False, child_at(node, w), len(children[node]), port))
            else:
                way_up.append(Hop(port=port))
        up.append((*way_up, Hop(child=0, fan_in=0) if singles else at_server))
        way_down = [
            Hop(clear=node in aggregates and not singles, port=network.port(node, before))
            for node, before in zip(reversed(path), [*reversed(path[:-1]), name], strict=True)
        ]
        down.append(tuple(way_down))
    parts = {}
    for node in depth:
        after = server if node == access[server] else parents[node]
        sums = node in aggregates and not singles
        parts[node] = SwitchPart(
            node,
            sums,
            {i: network.port(node, via) for i, (via, _) in enumerate(children[node])}
            if sums
            else {},
            tuple(sorted({network.port(node, via) for via, _ in children[node]})),
            network.port(node, after),
            tuple(sorted({network.port(node, via) for via, _ in children[node]})),
            tree * window,
            tree + 1,
        )
    return TreePlan(
        tree,
        server,
        {**parents, **{w: access[w] for w in up_path}, access[server]: server},
        parts,
        tuple(up),
        tuple(down),
        tuple(group for _, group in flows[server]),
        share,
    )


def star_plan(workers: int = 2, **changes: Any) -> tuple[JobPlan, Network]:
    """Workers and server at one switch that sums nothing: every worker is a child of the server."""
    return tree_plan(
        {f"w{i}": "s0" for i in range(workers)} | {SERVER: "s0", SPARE: "s0"},
        {},
        changes.pop("aggregates", ()),
        **changes,
    )


def tree_plan(
    access: Mapping[str, str],
    parents: Mapping[str, str],
    aggregates: Sequence[str],
    *,
    window: int = 4,
    server: str = SERVER,
    singles: bool = False,
    **changes: Any,
) -> tuple[JobPlan, Network]:
    """A job of one tree and its network: `window` fragments in flight; `changes` go into the
    JobPlan.
    """
    switches = sorted({*access.values(), *parents, *parents.values()})
    network = make_network(access, switches)
    workers = tuple(host for host in access if host.startswith("w"))
    tree = make_tree(
        network, workers, parents, aggregates, window=2 * window, server=server, singles=singles
    )
    plan = JobPlan(1, 1, workers, (tree,), LANES, 2 * window)
    return replace(plan, **changes), network


# Scripted packets.


def values_of(value: int | Sequence[int]) -> NDArray[np.int32]:
    """Lanes of one value, or as given and padded."""
    lanes = np.zeros(LANES, dtype=np.int32)
    lanes[: LANES if isinstance(value, int) else len(value)] = value
    return lanes


def frame(
    plan: JobPlan,
    network: Network,
    kind: Kind,
    fragment: int,
    value: int | Sequence[int],
    stack: Sequence[Hop] = (),
    **fields: Any,
) -> Frames:
    """One frame of a job as it arrives at an agent; `fields` go into the header."""
    hosts = network.hosts
    here = Address(hosts[plan.workers[0]].mac_bytes, hosts[plan.workers[0]].ip_bytes)
    fields = {"job": plan.job, "tree": 0, "epoch": plan.epoch, **fields}
    header = Header(kind, fragment=fragment, **fields)
    up = kind is Kind.CONTRIBUTION or (kind is Kind.REQUEST and bool(stack))
    lanes = plan.lanes if carries_lanes(header.reduction, up=up) else 0
    row = frame_template(here, here, header, stack, lanes)[None, :]
    frame_view(row, lanes, len(stack))["lanes"] = values_of(value)[:lanes]
    return row


def lanes_in(batch: Frames, lanes: int) -> int:
    """How many lanes frames have on the wire, of a job of so many: all of a batch alike."""
    return 0 if are_bare(batch[:1])[0] else lanes


def contribution(
    plan: JobPlan,
    network: Network,
    worker: int,
    fragment: int,
    value: int | Sequence[int],
    **fields: Any,
) -> Frames:
    """A frame to the server on a worker's path: a sum if `weight` is that of the subtree."""
    last = plan.trees[0].up[worker][-1]
    return frame(
        plan, network, Kind.CONTRIBUTION, fragment, value, (last,), worker=worker, **fields
    )


def result(
    plan: JobPlan, network: Network, fragment: int, value: int | Sequence[int], **fields: Any
) -> Frames:
    """A frame from the server to a worker."""
    fields = {"weight": len(plan.workers), **fields}
    return frame(plan, network, Kind.RESULT, fragment, value, **fields)


def at_server(batch: Frames, lanes: int = LANES) -> Frames:
    """A worker's frames as the server gets them from switches that sum nothing."""
    return _passed_on(batch, lanes, 1)


def at_worker(batch: Frames, lanes: int = LANES) -> Frames:
    """A server's frames as a worker gets them from switches."""
    frames = _passed_on(batch, lanes, 0)
    flags_of(frames)[kinds_of(frames) == Kind.RESULT] &= 0xFF & ~int(LINK_FLAGS)
    return frames


def _passed_on(batch: Frames, lanes: int, left: int) -> Frames:
    rows = []
    for row in range(len(batch)):
        frames = batch[row : row + 1]
        hops = (frames.shape[1] - frame_bytes(lanes_in(frames, lanes), 0)) // 4
        if hops > left:
            frames = np.frombuffer(without(frames.tobytes(), hops - left), np.uint8)[None]
        rows.append(frames)
    return np.concatenate(rows)


@dataclass(frozen=True)
class Seen:
    """One frame's fields, for assertions."""

    kind: Kind
    fragment: int
    epoch: int
    worker: int
    weight: int
    flags: Flag
    exponent: int
    hops: int
    lanes: tuple[int, ...]
    destination: bytes
    sequence: int | None = field(default=None, compare=False)
    """The number on the link, if it has one."""
    repair: bool = field(default=False, compare=False)

    @property
    def value(self) -> int:
        """The first lane; 0 of none."""
        return self.lanes[0] if self.lanes else 0


def seen(batches: Sequence[Frames], lanes: int = LANES) -> list[Seen]:
    """The frames of batches, decoded one by one."""
    found = []
    for batch in batches:
        size = lanes_in(batch, lanes)
        hops = (batch.shape[1] - frame_bytes(size, 0)) // 4
        for record in frame_view(batch, size, hops):
            assert int(record["hops"]) == hops
            flags = Flag(int(record["flags"]))
            found.append(
                Seen(
                    Kind(int(record["version_kind"]) & 0xF),
                    int(record["fragment"]),
                    int(record["epoch"]),
                    int(record["worker"]),
                    int(record["weight"]),
                    flags & ~LINK_FLAGS,
                    int(record["exponent"]),
                    hops,
                    tuple(int(v) for v in record["lanes"]),
                    record["dst_ip"].tobytes(),
                    int(record["sequence"]) if flags & Flag.SEQUENCED else None,
                    bool(flags & Flag.REPAIR),
                )
            )
    return found


# Switches.


def install(switch: ReferenceSwitch, plan: JobPlan, name: str) -> None:
    """Give a switch its part of a plan; the replication entries of earlier epochs stay."""
    for admitted in list(switch.admission):
        if admitted[0] == plan.job:
            del switch.admission[admitted]
    grant(switch, plan, name)


def grant(switch: Switch, plan: JobPlan, name: str) -> None:
    """Add a switch's entries of a plan."""
    for tree in plan.trees:
        part = tree.parts.get(name)
        if part is None:
            continue
        place: dict[str, int] = {"base": part.slot_base, "mask": plan.window - 1}
        for port in part.ports_up:
            children = sum(1 << child for child, at in part.children.items() if at == port)
            switch.admit_children(
                port, children, fan_in=part.fan_in, job=plan.job, tree=tree.tree, **place
            )
        switch.admit_results(part.port_server, job=plan.job, tree=tree.tree, **place)
        group = plan.epoch << 4 | tree.tree
        switch.multicast(group, part.ports_down)
        switch.insert(
            "replication",
            {"job": plan.job, "tree": tree.tree, "epoch": plan.epoch},
            "replicate",
            group=group,
            clear=int(part.aggregate),
        )


def withdraw(switch: Switch, plan: JobPlan, name: str) -> None:
    """Remove a switch's admission entries of a plan."""
    for tree in plan.trees:
        part = tree.parts.get(name)
        for port in () if part is None else (*part.ports_up, part.port_server):
            key = {"job": plan.job, "tree": tree.tree, "ingress_port": port}
            switch.delete("admission", key)


# The world.


@dataclass
class Faults:
    """Chances a frame and link, and the spread of its delay in seconds."""

    loss: float = 0.0
    duplication: float = 0.0
    spread: float = 0.0


@dataclass
class World:
    """Agents and switches over links of one latency; `run` until all calls are complete."""

    network: Network
    plan: JobPlan
    workers: list[Worker]
    seed: int = 0
    faults: Faults = field(default_factory=Faults)
    latency: float = 0.001
    servers: dict[str, dict[int, Server]] = field(default_factory=dict)
    key: bytes | None = None
    """The servers', of a plan with integrity."""

    def __post_init__(self) -> None:
        self.now = 0.0
        self.frames = 0
        self.filter: Callable[[str, str, Frames], bool] = lambda _a, _b, _f: True
        """Whether a frame from a node to its neighbour gets through; it may change it."""
        self._random = random.Random(self.seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        build = Build(lanes=self.plan.lanes, slots=SLOTS)
        self.switches = {name: ReferenceSwitch(build) for name in self.network.switches}
        self._server_since = self.plan.epoch
        self._installed = dict.fromkeys(self.switches, self.plan.epoch)
        for name, switch in self.switches.items():
            install(switch, self.plan, name)
        for tree in self.plan.trees:
            self.servers.setdefault(tree.server, {})[tree.tree] = Server(
                self.plan, tree.tree, self.network, self.key
            )

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time."""
        heapq.heappush(self._queue, (time, next(self._serial), action))

    def reboot(self, switch: str) -> None:
        """A switch loses its slots; its tables come back at once."""
        self.switches[switch].forget()

    def adopt(self, plan: JobPlan, *, new_server: bool = False, spread: float = 0.01) -> None:
        """A new epoch: switches, servers and workers get it one by one, within `spread`."""
        before = [tree.server for tree in self.plan.trees]
        if new_server or before != [tree.server for tree in plan.trees]:
            self._server_since = plan.epoch
        since = self._server_since
        self.plan = plan

        def at_server() -> None:
            for tree in plan.trees:
                servers = self.servers.setdefault(tree.server, {})
                there = servers.get(tree.tree)
                if there is not None and there.plan.epoch > plan.epoch:
                    continue
                if there is None or there.plan.epoch < since:
                    servers[tree.tree] = Server(plan, tree.tree, self.network, self.key)
                else:
                    there.adopt(plan)

        def at_worker(worker: Worker) -> None:
            worker.adopt(plan, self.now)

        def at_switch(name: str) -> None:
            if self._installed[name] < plan.epoch:
                self._installed[name] = plan.epoch
                install(self.switches[name], plan, name)

        self.at(self._soon(spread), at_server)
        for name in self.switches:
            self.at(self._soon(spread), partial(at_switch, name))
        for worker in self.workers:
            self.at(self._soon(spread), partial(at_worker, worker))

    def _soon(self, spread: float) -> float:
        return self.now + spread * self._random.random()

    def _send(self, node: str, peer: str, data: Frames) -> None:
        self.frames += 1
        if not self.filter(node, peer, data):
            return
        copies = 1
        if self._random.random() < self.faults.loss:
            copies = 0
        elif self._random.random() < self.faults.duplication:
            copies = 2
        for _ in range(copies):
            delay = self.latency + self.faults.spread * self._random.random()
            self.at(self.now + delay, partial(self._arrive, node, peer, data))

    def _arrive(self, node: str, peer: str, data: Frames) -> None:
        if peer in self.switches:
            switch = self.switches[peer]
            port = self.network.port(peer, node)
            for out, sent in switch.send(port, data.tobytes()):
                row = np.frombuffer(bytearray(sent), dtype=np.uint8)[None, :]
                self._send(peer, self.network.neighbour(peer, out), row)
            return
        for worker in self.workers:
            if worker.host == peer:
                worker.receive(data, self.now)
        for server in self.servers.get(peer, {}).values():
            server.receive(data, self.now)

    def _flush(self) -> None:
        for worker in self.workers:
            for batch in worker.take_output():
                self._split(worker.host, batch)
        for host, servers in self.servers.items():
            for server in servers.values():
                for batch in server.take_output():
                    self._split(host, batch)

    def _split(self, host: str, batch: Frames) -> None:
        for row in range(len(batch)):
            self._send(host, self.network.access_switch(host), batch[row : row + 1].copy())

    def run(self, limit: float = 1000.0) -> None:
        """Until every worker is idle; AssertionError when that takes longer than `limit`."""
        self._flush()
        while not all(worker.idle for worker in self.workers):
            assert self._step(), "nothing is on its way and nothing is due: wedged"
            assert self.now < limit, "still not done: wedged"

    def run_for(self, seconds: float) -> None:
        """For a time, or until nothing is on its way and nothing is due."""
        end = self.now + seconds
        self._flush()
        while self.now < end and self._step():
            pass

    def _step(self) -> bool:
        """Do the next thing that is due; whether there was one."""
        deadlines = [d for worker in self.workers if (d := worker.deadline) is not None]
        due = min(deadlines, default=float("inf"))
        if self._queue and self._queue[0][0] <= due:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        elif due < float("inf"):
            self.now = max(self.now, due)
            for worker in self.workers:
                worker.tick(self.now)
        else:
            return False
        for worker in self.workers:
            if worker.failure is not None:
                raise worker.failure
        self._flush()
        return True
