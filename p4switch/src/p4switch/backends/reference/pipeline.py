"""The path of a packet through a v1model switch, between the program's blocks.

After BMv2's simple_switch (targets/simple_switch/simple_switch.cpp and docs/simple_switch.md,
"after-ingress" and "after-egress" pseudocode), with queues that drain a batch at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from p4switch.backends.reference.externs import BudgetSpent, Externs
from p4switch.backends.reference.packet import (
    INSTANCE_EGRESS_CLONE,
    INSTANCE_INGRESS_CLONE,
    INSTANCE_NORMAL,
    INSTANCE_RECIRCULATED,
    INSTANCE_REPLICATION,
    INSTANCE_RESUBMITTED,
    CloneRequest,
    FieldListRequest,
    PacketState,
)
from p4switch.targets.v1model.engine import EngineOptions, Packet, Replica
from p4switch.targets.v1model.state import ControlState


class Blocks(Protocol):
    """A program's six blocks, ready to run, and the factory of their packets."""

    standard_fields: frozenset[str]
    """Names of the declared fields of standard_metadata."""

    def fresh(self, data: bytes) -> PacketState:
        """Return a packet with invalid headers and zero metadata."""

    def twin(self, packet: PacketState, with_metadata: bool) -> PacketState:
        """Return a copy of the packet, with zero metadata unless `with_metadata`."""

    def preserve(self, source: PacketState, target: PacketState, field_list: int) -> None:
        """Copy the metadata of a field list."""

    def parse(self, packet: PacketState) -> int:
        """Run the parser; return its P4 error (0: none)."""

    def verify(self, packet: PacketState) -> None:
        """Run VerifyChecksum."""

    def ingress(self, packet: PacketState) -> None:
        """Run Ingress."""

    def egress(self, packet: PacketState) -> None:
        """Run Egress."""

    def compute(self, packet: PacketState) -> None:
        """Run ComputeChecksum."""

    def deparse(self, packet: PacketState) -> bytes:
        """Run Deparser and append the payload."""


class Queue:
    """The queues of one egress port, one per priority."""

    def __init__(self, priorities: int) -> None:
        self.by_priority: list[deque[PacketState]] = [deque() for _ in range(priorities)]

    def take(self) -> tuple[PacketState, int] | None:
        """Return the next packet, of the highest priority, and the queue's remaining length."""
        for waiting in reversed(self.by_priority):
            if waiting:
                return waiting.popleft(), len(waiting)
        return None


class Pipeline:
    """Takes batches of packets through ingress, queues and egress."""

    def __init__(
        self, blocks: Blocks, state: ControlState, externs: Externs, options: EngineOptions
    ) -> None:
        self._blocks = blocks
        self._state = state
        self._externs = externs
        self._options = options
        self._queues: dict[int, Queue] = {}
        self.depths: dict[tuple[int, int], int] = {}
        """Packets that a queue, by port and priority, holds, if not as many as the options say."""
        self.waiting: dict[int, tuple[int, ...]] = {}
        """Packets in the interface, by port and priority."""
        self._recirculated: list[PacketState] = []
        self._now_us = 0
        self._no_egress_spec = options.drop_port + 1 & 0x1FF

    def run(self, packets: Sequence[Packet], now_us: int) -> list[Packet]:
        """See `Engine.process`. Recirculated packets form the next batch."""
        self._now_us = now_us
        out: list[Packet] = []
        batch = [self._arrive(port, data) for port, data in packets]
        while batch:
            for packet in batch:
                again: PacketState | None = packet
                while again is not None:
                    try:
                        again = self._ingress(again)
                    except BudgetSpent:
                        self._over_budget()
                        again = None
            self._drain(out)
            batch, self._recirculated = self._recirculated, []
        return out

    def _over_budget(self) -> None:
        self._externs.count_over_budget()
        self._dropped("the packet and its copies have used up their steps (--packet-budget)")

    # --- hooks for a traced pipeline

    def _rejected(self, error: int) -> None:
        """Note that the parser ended with an error."""

    def _dropped(self, reason: str) -> None:
        """Note that the current packet, or a copy of it that was requested, is dropped."""

    # --- standard metadata

    def _set(self, packet: PacketState, name: str, value: int) -> None:
        """Set a field of standard_metadata if the program declares it."""
        if name in self._blocks.standard_fields:
            packet.standard.fields[name] = value

    def _get(self, packet: PacketState, name: str) -> int:
        return int(packet.standard.fields.get(name, 0))

    def _arrive(self, port: int, data: bytes) -> PacketState:
        packet = self._blocks.fresh(data)
        packet.now_us = self._now_us
        self._set(packet, "ingress_port", port)
        self._set(packet, "packet_length", len(data))
        self._set(packet, "instance_type", INSTANCE_NORMAL)
        self._set(packet, "ingress_global_timestamp", self._now_us & (1 << 48) - 1)
        return packet

    # --- ingress

    def _ingress(self, packet: PacketState) -> PacketState | None:
        """Run ingress and the steps after it; return the packet to resubmit, if any."""
        self._externs.packet = packet
        self._externs.step()
        ingress_port = self._get(packet, "ingress_port")
        error = self._blocks.parse(packet)
        if error:
            self._externs.statistics.parser_errors += 1
            self._rejected(error)
        self._set(packet, "parser_error", error)
        self._blocks.verify(packet)
        self._set(packet, "checksum_error", packet.checksum_error)
        self._blocks.ingress(packet)

        if packet.clone is not None:
            request, packet.clone = packet.clone, None
            self._clone_ingress(packet, request, ingress_port)
            self._externs.packet = packet
        if packet.resubmit is not None:
            return self._resubmitted(packet, packet.resubmit)
        group = self._get(packet, "mcast_grp")
        if group:
            self._set(packet, "instance_type", INSTANCE_REPLICATION)
            replicas = self._state.multicast.get(group, ())
            if not replicas:
                self._dropped(f"multicast group {group} has no replicas")
            self._replicate(packet, replicas)
        else:
            port = self._get(packet, "egress_spec")
            if port != self._options.drop_port:
                self._set(packet, "instance_type", INSTANCE_NORMAL)
                self._enqueue(port, packet)
            else:
                self._dropped(f"after ingress egress_spec is the drop port {port}")
        return None

    def _clone_ingress(self, packet: PacketState, request: CloneRequest, ingress_port: int) -> None:
        """Clone the packet as it entered ingress, to be parsed again."""
        session = self._state.sessions.get(request.session)
        if session is None:
            self._dropped(f"the clone: there is no session {request.session}")
            return
        copy = self._blocks.fresh(packet.data)
        copy.now_us = self._now_us
        copy.ingress_length = packet.ingress_length
        copy.work = packet.work
        self._set(copy, "ingress_port", ingress_port)
        self._externs.packet = copy
        try:
            self._blocks.parse(copy)
        except BudgetSpent:
            self._over_budget()
            return
        clean = self._blocks.fresh(packet.data)
        copy.metadata, copy.standard = clean.metadata, clean.standard
        self._enqueue_clones(packet, copy, request, INSTANCE_INGRESS_CLONE)

    def _enqueue_clones(
        self, packet: PacketState, copy: PacketState, request: CloneRequest, instance_type: int
    ) -> None:
        session = self._state.sessions[request.session]
        if request.field_list is not None:
            self._blocks.preserve(packet, copy, request.field_list)
        self._set(copy, "instance_type", instance_type)
        if session.length:
            copy.limit(session.length)
        self._replicate(copy, session.replicas)

    def _resubmitted(self, packet: PacketState, request: FieldListRequest) -> PacketState:
        copy = self._again(packet, packet.data, request, INSTANCE_RESUBMITTED)
        copy.ingress_length = packet.ingress_length
        return copy

    def _again(
        self, packet: PacketState, data: bytes, request: FieldListRequest, instance_type: int
    ) -> PacketState:
        """Return the packet for another pass; its metadata are new except for the field list.

        As in BMv2 the ingress port is not preserved.
        """
        copy = self._blocks.fresh(data)
        copy.now_us = self._now_us
        copy.work = packet.work
        if request.field_list is not None:
            self._blocks.preserve(packet, copy, request.field_list)
        self._set(copy, "instance_type", instance_type)
        self._set(copy, "packet_length", len(data))
        return copy

    # --- queues

    def _replicate(self, packet: PacketState, replicas: Sequence[Replica]) -> None:
        self._externs.packet = packet
        for replica in replicas:
            try:
                self._externs.step()
            except BudgetSpent:
                self._over_budget()
                return
            copy = self._blocks.twin(packet, with_metadata=True)
            self._set(copy, "egress_rid", replica.instance)
            self._enqueue(replica.port, copy)

    def _enqueue(self, port: int, packet: PacketState) -> None:
        """Enqueue the packet; tail-drop if the queue of its port and priority is full."""
        priority = self._get(packet, "priority")
        queue = self._queues.get(port)
        if queue is None:
            queue = self._queues[port] = Queue(self._options.priority_queues)
        if priority >= len(queue.by_priority):
            self._externs.statistics.queue_drops += 1
            self._dropped(f"port {port} has no queue of priority {priority}")
            return
        waiting = queue.by_priority[priority]
        if len(waiting) >= self.depths.get((port, priority), self._options.queue_depth):
            self._externs.statistics.queue_drops += 1
            self._dropped(f"the queue of port {port} is full")
            return
        self._set(packet, "enq_timestamp", self._now_us & 0xFFFFFFFF)
        depth = len(waiting) + sum(self.waiting.get(port, ())[priority:])
        self._set(packet, "enq_qdepth", depth)
        waiting.append(packet)

    def _drain(self, out: list[Packet]) -> None:
        """Drain the ports in ascending order; clones made meanwhile wait for their port's turn."""
        while True:
            busy = [port for port, queue in self._queues.items() if any(queue.by_priority)]
            if not busy:
                return
            for port in sorted(busy):
                queue = self._queues[port]
                while (taken := queue.take()) is not None:
                    try:
                        self._egress(port, *taken, out)
                    except BudgetSpent:
                        self._over_budget()

    # --- egress

    def _egress(self, port: int, packet: PacketState, depth: int, out: list[Packet]) -> None:
        self._externs.packet = packet
        self._externs.step()
        self._set(packet, "egress_global_timestamp", self._now_us & (1 << 48) - 1)
        self._set(packet, "deq_timedelta", 0)
        self._set(packet, "deq_qdepth", depth)
        self._set(packet, "egress_port", port)
        self._set(packet, "egress_spec", self._no_egress_spec)
        self._set(packet, "packet_length", packet.length)
        self._blocks.egress(packet)

        if packet.clone is not None:
            request, packet.clone = packet.clone, None
            self._clone_egress(packet, request)
            self._externs.packet = packet
        if self._get(packet, "egress_spec") == self._options.drop_port:
            self._dropped(f"after egress egress_spec is the drop port {self._options.drop_port}")
            return
        self._blocks.compute(packet)
        frame = self._blocks.deparse(packet)
        if packet.truncate is not None:
            frame = frame[: packet.truncate]
        if packet.recirculate is not None:
            again = self._again(packet, frame, packet.recirculate, INSTANCE_RECIRCULATED)
            self._recirculated.append(again)
        else:
            out.append((port, frame))

    def _clone_egress(self, packet: PacketState, request: CloneRequest) -> None:
        """Clone the packet as it is at the end of egress; the clone passes egress again."""
        if request.session not in self._state.sessions:
            self._dropped(f"the clone: there is no session {request.session}")
            return
        copy = self._blocks.twin(packet, with_metadata=False)
        self._enqueue_clones(packet, copy, request, INSTANCE_EGRESS_CLONE)
