"""The path of a packet through a PSA switch, between the program's blocks.

After the PSA specification 1.2, section 6 ("Packet Path Details"), with the order of BMv2's
psa_switch (targets/psa_switch/psa_switch.cpp) where the specification leaves it open.
"""

from __future__ import annotations

from typing import Any

from p4switch.backends.reference.blocks import copy_place
from p4switch.backends.reference.packet import CloneRequest, PacketState
from p4switch.backends.reference.packets import PacketIn
from p4switch.backends.reference.pipeline import Pipeline
from p4switch.targets.psa.ports import (
    PACKET_PATHS,
    RECIRCULATE_QUEUE,
    engine_port,
    program_port,
)
from p4switch.targets.v1model.engine import Packet

_PATHS = {name: value for value, name in enumerate(PACKET_PATHS)}


class PsaPipeline(Pipeline):
    """Ingress and egress of PSA: each parses what it gets, and deparses what it passes on."""

    multicast_type = _PATHS["NORMAL_MULTICAST"]
    clone_stage = "ingress clone"

    def _get(self, packet: PacketState, name: str) -> int:
        struct, field = self._blocks.architecture.standard[name].split(".")
        return int(packet.standard.fields[struct].fields[field])

    def _set(self, packet: PacketState, name: str, value: int) -> None:
        place = self._blocks.architecture.standard.get(name)
        if place is not None:
            struct, field = place.split(".")
            packet.standard.fields[struct].fields[field] = value

    def _egress_details(self, port: int, packet: PacketState) -> dict[str, Any]:
        path = PACKET_PATHS[self._get(packet, "instance_type")]
        return {"port": program_port(port, self._options), "packet_path": path}

    def _packet(self, data: bytes, path: str, stage: str) -> PacketState:
        """Return a packet that comes to the parser of a stage in some way."""
        packet = self._blocks.fresh(data)
        packet.now_us = self._now_us
        packet.standard.fields[f"{stage}_parser_input"].fields["packet_path"] = _PATHS[path]
        return packet

    def _next(
        self, packet: PacketState, data: bytes, path: str, stage: str, metadata: str
    ) -> PacketState:
        """Return a packet made of another one, with a part of its metadata."""
        made = self._packet(data, path, stage)
        made.work = packet.work
        copy_place(packet, made, ("metadata", metadata))
        return made

    def _arrive(self, port: int, data: bytes) -> PacketState:
        packet = self._packet(data, "NORMAL", "ingress")
        self._set(packet, "ingress_port", program_port(port, self._options))
        return packet

    def _parse(self, packet: PacketState, stage: str) -> dict[str, Any]:
        """Run the parser of a stage; return the output metadata of its control."""
        standard = packet.standard.fields
        packet.rest = PacketIn(packet.data)  # That of replicas was shared.
        error = self._blocks.parse(packet, f"{stage}_parser")
        if error:
            self._externs.statistics.parser_errors += 1
            self._rejected(error)
        given = {f"{stage}_timestamp": self._now_us, "parser_error": error}
        standard[f"{stage}_input"].fields.update(standard[f"{stage}_parser_input"].fields | given)
        output: dict[str, Any] = standard[f"{stage}_output"].fields
        return output

    def _deparse(self, packet: PacketState, stage: str) -> bytes:
        for parameter, place in self._blocks.outputs(f"{stage}_deparser"):
            self._blocks.clear(packet, place, parameter.variable.type)
        return self._blocks.deparse(packet, f"{stage}_deparser")

    # --- ingress

    def _ingress(self, packet: PacketState) -> PacketState | None:
        self._externs.packet = packet
        self._externs.step()
        output = self._parse(packet, "ingress")
        output["drop"] = True
        self._blocks.run("ingress", packet)
        if output["drop"] and not output["clone"]:
            self._dropped("after ingress 'drop' is true")
            return None
        frame = self._deparse(packet, "ingress")
        if output["clone"]:
            self._clone_ingress(packet, CloneRequest(output["clone_session_id"], None))
            self._externs.packet = packet
        if output["drop"]:
            self._dropped("after ingress 'drop' is true")
            return None
        if output["resubmit"]:
            again = self._next(packet, packet.data, "RESUBMIT", "ingress", "resubmit")
            self._set(again, "ingress_port", self._get(packet, "ingress_port"))
            return again
        group = output["multicast_group"]
        path = "NORMAL_MULTICAST" if group else "NORMAL_UNICAST"
        sent = self._next(packet, frame, path, "egress", "normal")
        self._set(sent, "mcast_grp", group)
        self._set(sent, "priority", output["class_of_service"])
        if not group:
            self._enqueue(output["egress_port"], sent)
            return None
        replicas = self._state.multicast.get(group, ())
        if not replicas:
            self._dropped(f"multicast group {group} has no replicas")
        self._replicate(sent, replicas)
        return None

    def _clone_ingress(self, packet: PacketState, request: CloneRequest) -> None:
        """Clone the packet as it came to ingress."""
        self._clone(packet, request.session, "i2e")

    def _clone(self, packet: PacketState, number: int, which: str) -> None:
        session = self._state.sessions.get(number)
        if session is None:
            self._dropped(f"the clone: there is no session {number}")
            return
        data = packet.data[: session.length or None]
        copy = self._next(packet, data, f"CLONE_{which.upper()}", "egress", f"clone_{which}")
        self._set(copy, "priority", session.class_of_service)
        self._replicate(copy, session.replicas)

    def _enqueue(self, port: int, packet: PacketState) -> None:
        """See `Pipeline`; classes of service that there are no queues for count as 0."""
        if self._get(packet, "priority") >= self._options.priority_queues:
            self._set(packet, "priority", 0)
        queue = engine_port(port, self._options)
        if queue is None:
            self._dropped(f"there is no port {port}")
        else:
            super()._enqueue(queue, packet)

    # --- egress

    def _egress(self, port: int, packet: PacketState, depth: int, out: list[Packet]) -> None:
        self._externs.packet = packet
        self._externs.step()
        standard = packet.standard.fields
        number = program_port(port, self._options)
        for stage in ("egress_parser", "egress_deparser"):
            standard[f"{stage}_input"].fields["egress_port"] = number
        output = self._parse(packet, "egress")
        self._blocks.run("egress", packet)
        if output["drop"] and not output["clone"]:
            self._dropped("after egress 'drop' is true")
            return
        frame = packet.data = self._deparse(packet, "egress")
        if output["clone"]:
            self._clone_egress(packet, CloneRequest(output["clone_session_id"], None))
            self._externs.packet = packet
        if output["drop"]:
            self._dropped("after egress 'drop' is true")
        elif port == RECIRCULATE_QUEUE:
            again = self._next(packet, frame, "RECIRCULATE", "ingress", "recirculate")
            self._set(again, "ingress_port", number)
            self._recirculated.append(again)
        else:
            out.append((port, frame))

    def _clone_egress(self, packet: PacketState, request: CloneRequest) -> None:
        """Clone the packet as it leaves; the clone passes egress again."""
        self._clone(packet, request.session, "e2e")
