"""The path of a packet through a v1model switch, between the program's blocks.

After BMv2's simple_switch (targets/simple_switch/simple_switch.cpp and docs/simple_switch.md,
"after-ingress" and "after-egress" pseudocode), with queues that drain a batch at a time.
"""

from __future__ import annotations

from p4switch.backends.reference.blocks import ProgramBlocks
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
from p4switch.backends.reference.pipeline import Pipeline
from p4switch.targets.v1model.engine import EngineOptions, Packet
from p4switch.targets.v1model.state import ControlState


class V1modelPipeline(Pipeline):
    """Ingress and egress of v1model."""

    multicast_type = INSTANCE_REPLICATION
    clone_stage = "ingress clone, parsed again"

    def __init__(
        self, blocks: ProgramBlocks, state: ControlState, externs: Externs, options: EngineOptions
    ) -> None:
        super().__init__(blocks, state, externs, options)
        self._no_egress_spec = options.drop_port + 1 & 0x1FF

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
        packet.arrival_port = self._get(packet, "ingress_port")
        error = self._blocks.parse(packet)
        if error:
            self._externs.statistics.parser_errors += 1
            self._rejected(error)
        self._set(packet, "parser_error", error)
        self._blocks.run("verify", packet)
        self._set(packet, "checksum_error", packet.checksum_error)
        self._blocks.run("ingress", packet)

        if packet.clone is not None:
            request, packet.clone = packet.clone, None
            self._clone_ingress(packet, request)
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

    def _clone_ingress(self, packet: PacketState, request: CloneRequest) -> None:
        """Clone the packet as it entered ingress, to be parsed again."""
        session = self._state.sessions.get(request.session)
        if session is None:
            self._dropped(f"the clone: there is no session {request.session}")
            return
        copy = self._blocks.fresh(packet.data)
        copy.now_us = self._now_us
        copy.ingress_length = packet.ingress_length
        copy.work = packet.work
        self._set(copy, "ingress_port", packet.arrival_port)
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
        self._blocks.run("egress", packet)

        if packet.clone is not None:
            request, packet.clone = packet.clone, None
            self._clone_egress(packet, request)
            self._externs.packet = packet
        if self._get(packet, "egress_spec") == self._options.drop_port:
            self._dropped(f"after egress egress_spec is the drop port {self._options.drop_port}")
            return
        self._blocks.run("compute", packet)
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
