"""The path of a packet through a switch: batches, replication and queues.

Ingress and egress are the architecture's (`v1model`, `psa`). Queues drain a batch at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from p4switch.backends.reference.blocks import ProgramBlocks
from p4switch.backends.reference.externs import BudgetSpent, Externs
from p4switch.backends.reference.packet import CloneRequest, PacketState
from p4switch.targets.v1model.engine import EngineOptions, Packet, Replica
from p4switch.targets.v1model.state import ControlState


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

    multicast_type: int
    """Type of instance that replicas of multicast groups have."""
    clone_stage: str
    """What a trace calls the stage of clones made in ingress."""

    def __init__(
        self, blocks: ProgramBlocks, state: ControlState, externs: Externs, options: EngineOptions
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
        """Set a field of `standard`, by v1model's name, if the program declares it."""
        if name in self._blocks.standard_fields:
            packet.standard.fields[name] = value

    def _get(self, packet: PacketState, name: str) -> int:
        return int(packet.standard.fields.get(name, 0))

    # --- the architecture's part

    def _egress_details(self, port: int, packet: PacketState) -> dict[str, Any]:
        """Return what a trace shows of a packet that comes to egress."""
        return {"port": port, "instance_type": self._get(packet, "instance_type")}

    def _arrive(self, port: int, data: bytes) -> PacketState:
        """Return the packet of a received frame."""
        raise NotImplementedError

    def _ingress(self, packet: PacketState) -> PacketState | None:
        """Run ingress and the steps after it; return the packet to resubmit, if any."""
        raise NotImplementedError

    def _egress(self, port: int, packet: PacketState, depth: int, out: list[Packet]) -> None:
        """Run egress and the steps after it; `depth`: packets left in the queue."""
        raise NotImplementedError

    def _clone_ingress(self, packet: PacketState, request: CloneRequest) -> None:
        """Send clones of a packet as it came to ingress to egress."""
        raise NotImplementedError

    def _clone_egress(self, packet: PacketState, request: CloneRequest) -> None:
        """Send clones of a packet as it leaves egress there again."""
        raise NotImplementedError

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
