"""The packet replication engine: multicast groups and clone sessions (P4Runtime 1.5, 9.5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4switch.midend.architecture import V1MODEL, architecture_of
from p4switch.p4runtime.bytestrings import decode, encode
from p4switch.p4runtime.entities import UpdateKind, bad, check_known
from p4switch.p4runtime.pipeline import Pipeline
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import CloneSession, ControlError, Replica

PORT_BITS = 32
"""Width of a replica's port on the wire; the engine defines which ports exist."""


class ReplicationWriter:
    """Writes multicast groups and clone sessions of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._engine = pipeline.engine
        self._notes = pipeline.notes

    def entry(self, kind: UpdateKind, message: p4r.PacketReplicationEngineEntry) -> None:
        """Apply an update of either."""
        which = message.WhichOneof("type")
        if which == "multicast_group_entry":
            self._multicast(kind, message.multicast_group_entry)
        elif which == "clone_session_entry":
            self._clone(kind, message.clone_session_entry)
        else:
            raise bad("the replication engine entry has neither a multicast group nor a session")

    def _multicast(self, kind: UpdateKind, message: p4r.MulticastGroupEntry) -> None:
        group = message.multicast_group_id
        where = f"multicast group {group}"
        if not group:
            raise bad("multicast group 0 means no replication: ids are from 1")
        check_known(kind, group in self._notes.multicast, where)
        if kind == p4r.Update.DELETE:
            self._engine.set_multicast_group(group, None)
            del self._notes.multicast[group]
            return
        self._engine.set_multicast_group(group, _replicas(where, message.replicas))
        self._notes.multicast[group] = _canonical(message)

    def _clone(self, kind: UpdateKind, message: p4r.CloneSessionEntry) -> None:
        session = message.session_id
        where = f"clone session {session}"
        if not session:
            raise bad("clone session 0 is for wildcard reads: ids are from 1")
        check_known(kind, session in self._notes.clones, where)
        if kind == p4r.Update.DELETE:
            self._engine.set_clone_session(session, None)
            del self._notes.clones[session]
            return
        service = message.class_of_service
        if service and architecture_of(self._engine.program.package) is V1MODEL:
            raise ControlError(
                "UNIMPLEMENTED", f"{where}: v1model's clones have no class of service"
            )
        replicas = _replicas(where, message.replicas)
        value = CloneSession(replicas, message.packet_length_bytes, service)
        self._engine.set_clone_session(session, value)
        self._notes.clones[session] = _canonical(message)


def _replicas(where: str, messages: Iterable[p4r.Replica]) -> tuple[Replica, ...]:
    replicas = []
    for message in messages:
        if message.backup_replicas:
            raise ControlError("UNIMPLEMENTED", f"{where}: backup replicas are not supported")
        kind = message.WhichOneof("port_kind")
        if kind == "port":
            port = decode(message.port, PORT_BITS, f"{where}: port")
        elif kind == "egress_port":
            port = message.egress_port
        else:
            raise bad(f"{where}: a replica has no port")
        replicas.append(Replica(port, message.instance))
    return tuple(replicas)


def _canonical(message: Any) -> Any:
    """Return a copy with ports in canonical form."""
    kept = type(message)()
    kept.CopyFrom(message)
    for replica in kept.replicas:
        if replica.WhichOneof("port_kind") == "port":
            replica.port = encode(int.from_bytes(replica.port, "big"))
    return kept
