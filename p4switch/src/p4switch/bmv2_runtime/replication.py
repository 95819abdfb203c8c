"""Multicast groups of nodes, and mirroring sessions, as in BMv2's packet replication engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from p4switch.bmv2_runtime.records import MIRRORING, MULTICAST, Fault, MirroringCode, MulticastCode
from p4switch.targets.v1model.engine import CloneSession, ControlError, Engine, Replica


@dataclass(frozen=True, slots=True)
class Node:
    """A node: the instance of its copies, its ports, and the link aggregation groups besides."""

    rid: int
    ports: tuple[int, ...]
    lags: tuple[int, ...] = ()


class Replication:
    """Nodes and groups of one engine; those that P4Runtime has made or changed are adopted.

    Of a link aggregation group (LAG) the first port gets a copy, not one chosen by a hash.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = count()
        self._nodes: dict[int, Node] = {}
        self._groups: dict[int, list[int]] = {}
        self._lags: dict[int, tuple[int, ...]] = {}
        self._mirrored_groups: dict[int, int] = {}
        """The group of each mirroring session that has one."""

    # --- groups

    def create_group(self, group: int) -> int:
        """Create a group and return its handle, which is its number."""
        self._adopt()
        if group in self._groups:
            raise Fault(MULTICAST, MulticastCode.ERROR, f"there is a group {group} already")
        self._groups[group] = []
        try:
            self._install(group)
        except Fault:
            del self._groups[group]
            raise
        return group

    def destroy_group(self, group: int) -> None:
        """Remove a group; its nodes stay."""
        self._nodes_of(group)
        self._engine.set_multicast_group(group, None)
        del self._groups[group]
        self._refresh_sessions(group)

    def create_node(self, rid: int, ports: str, lags: str = "") -> int:
        """Create a node and return its handle. `ports`: `1` at place p from the right is port p."""
        node = next(self._numbers)
        self._nodes[node] = Node(rid, places(ports), places(lags))
        return node

    def destroy_node(self, node: int) -> None:
        """Remove a node, and its ports from all groups."""
        self._node(node)
        for group in self._groups_of(node):
            self.dissociate(group, node)
        del self._nodes[node]

    def update_node(self, node: int, ports: str, lags: str = "") -> None:
        """Change the ports of a node."""
        before = self._node(node)
        self._nodes[node] = Node(before.rid, places(ports), places(lags))
        try:
            for group in self._groups_of(node):
                self._install(group)
        except Fault:
            self._nodes[node] = before
            raise

    def associate(self, group: int, node: int) -> None:
        """Add a node to a group."""
        self._node(node)
        nodes = self._nodes_of(group)
        nodes.append(node)
        try:
            self._install(group)
        except Fault:
            nodes.pop()
            raise

    def dissociate(self, group: int, node: int) -> None:
        """Remove a node from a group."""
        nodes = self._nodes_of(group)
        if node not in nodes:
            raise Fault(MULTICAST, MulticastCode.INVALID_L1_HANDLE, f"no node {node} in {group}")
        nodes.remove(node)
        self._install(group)

    def set_lag(self, lag: int, ports: str) -> None:
        """Set the ports of a link aggregation group."""
        self._lags[lag] = places(ports)
        for group, nodes in self._groups.items():
            if any(lag in self._nodes[node].lags for node in nodes):
                self._install(group)

    def entries(self) -> str:
        """Return groups and nodes as the JSON of bm_mc_get_entries."""
        self._adopt()
        groups, nodes, lags = self._groups.items(), self._nodes.items(), self._lags.items()
        return json.dumps(
            {
                "mgrps": [{"id": group, "l1_handles": each} for group, each in groups],
                "l1_handles": [{"handle": n, "rid": e.rid, "l2_handle": n} for n, e in nodes],
                "l2_handles": [{"handle": n, "lags": e.lags, "ports": e.ports} for n, e in nodes],
                "lags": [{"id": lag, "ports": ports} for lag, ports in lags],
            }
        )

    def _nodes_of(self, group: int) -> list[int]:
        self._adopt()
        if group not in self._groups:
            raise Fault(MULTICAST, MulticastCode.INVALID_MGRP_HANDLE, f"no group {group}")
        return self._groups[group]

    def _groups_of(self, node: int) -> list[int]:
        return [group for group, nodes in self._groups.items() if node in nodes]

    def _node(self, node: int) -> Node:
        if node not in self._nodes:
            raise Fault(MULTICAST, MulticastCode.INVALID_L1_HANDLE, f"no node {node}")
        return self._nodes[node]

    def _replicas(self, group: int) -> tuple[Replica, ...]:
        found = []
        for node in (self._nodes[number] for number in self._groups[group]):
            firsts = [self._lags[lag][0] for lag in node.lags if self._lags.get(lag)]
            found += [Replica(port, node.rid) for port in (*node.ports, *firsts)]
        return tuple(dict.fromkeys(found))

    def _install(self, group: int) -> None:
        try:
            self._engine.set_multicast_group(group, self._replicas(group))
        except ControlError as error:
            raise Fault(MULTICAST, MulticastCode.INVALID_MGID, str(error)) from error
        self._refresh_sessions(group)

    def _adopt(self) -> None:
        """Follow the groups that exist, with a node for each instance of one made elsewhere."""
        installed = self._engine.multicast_groups()
        for group in [group for group in self._groups if group not in installed]:
            del self._groups[group]
        for group, replicas in installed.items():
            if group in self._groups and set(self._replicas(group)) == set(replicas):
                continue
            self._groups[group] = []
            for rid in sorted({replica.instance for replica in replicas}):
                node = next(self._numbers)
                ports = tuple(r.port for r in replicas if r.instance == rid)
                self._nodes[node] = Node(rid, ports)
                self._groups[group].append(node)

    # --- mirroring

    def mirror(self, session: int, port: int | None, group: int | None) -> None:
        """Set a mirroring session: its packets go to a port, to a group, or both."""
        self._adopt()
        replicas = [] if port is None else [Replica(port)]
        if group is not None and group in self._groups:
            replicas += self._replicas(group)
        try:
            self._engine.set_clone_session(session, CloneSession(tuple(replicas)))
        except ControlError as error:
            raise Fault(MIRRORING, MirroringCode.SESSION_NOT_FOUND, str(error)) from error
        self._mirrored_groups.pop(session, None)
        if group is not None:
            self._mirrored_groups[session] = group

    def remove_mirror(self, session: int) -> None:
        """Remove a mirroring session."""
        try:
            self._engine.set_clone_session(session, None)
        except ControlError as error:
            raise Fault(MIRRORING, MirroringCode.SESSION_NOT_FOUND, str(error)) from error
        self._mirrored_groups.pop(session, None)

    def mirrored(self, session: int) -> tuple[int | None, int | None]:
        """Return port and group of a mirroring session."""
        found = self._engine.clone_sessions().get(session)
        if found is None:
            raise Fault(MIRRORING, MirroringCode.SESSION_NOT_FOUND, f"no session {session}")
        group = self._mirrored_groups.get(session)
        of_group = self._replicas(group) if group in self._groups else ()
        ports = [replica.port for replica in found.replicas if replica not in of_group]
        return (ports[0] if ports else None), group

    def _refresh_sessions(self, group: int) -> None:
        for session in [s for s, each in self._mirrored_groups.items() if each == group]:
            port, _ = self.mirrored(session)
            self.mirror(session, port, group)


def places(bits: str) -> tuple[int, ...]:
    """Return where a map of ports or LAGs has a `1`, counted from the right."""
    if set(bits) - {"0", "1"}:
        raise Fault(MULTICAST, MulticastCode.ERROR, f"{bits!r} is no map of 0 and 1")
    return tuple(place for place, bit in enumerate(reversed(bits)) if bit == "1")


def place_map(found: Sequence[int]) -> str:
    """Return the map with a `1` at some places."""
    return "".join("1" if p in found else "0" for p in range(max(found, default=-1), -1, -1))
