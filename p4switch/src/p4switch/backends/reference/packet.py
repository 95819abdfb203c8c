"""State of a packet on its way through the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

INSTANCE_NORMAL = 0
INSTANCE_INGRESS_CLONE = 1
INSTANCE_EGRESS_CLONE = 2
INSTANCE_RECIRCULATED = 4
INSTANCE_REPLICATION = 5
INSTANCE_RESUBMITTED = 6
"""Values of standard_metadata.instance_type, BMv2's simple_switch.h."""


@dataclass(slots=True)
class CloneRequest:
    """`clone...`: the session, and the field list to preserve (None: nothing)."""

    session: int
    field_list: int | None


@dataclass(slots=True)
class FieldListRequest:
    """`resubmit...` or `recirculate...`: the field list to preserve (None: nothing)."""

    field_list: int | None


@dataclass(slots=True)
class Work:
    """Steps used so far by a received packet and all packets derived from it."""

    steps: int = 0


@dataclass(slots=True)
class PacketState:
    """A packet in the pipeline.

    `data` is the frame before parsing, `rest` what the parser has not consumed (a `PacketIn`);
    `headers`, `metadata` and `standard` are the program's structs.
    """

    data: bytes
    rest: Any
    headers: Any
    metadata: Any
    standard: Any
    ingress_length: int
    """Bytes at ingress, which counters and meters count."""
    length: int
    """BMv2's packet length register: follows setValid and setInvalid, read at egress."""
    now_us: int
    arrival_port: int = 0
    """v1model's ingress_port before ingress, which may change the field."""
    checksum_error: int = 0
    truncate: int | None = None
    """Maximum bytes that may leave."""
    clone: CloneRequest | None = None
    resubmit: FieldListRequest | None = None
    recirculate: FieldListRequest | None = None
    work: Work = field(default_factory=Work)
    """Shared with its copies."""
    branch: Any = None
    """Where a traced packet's events go (`trace.Branch`)."""

    def limit(self, length: int) -> None:
        """`truncate(length)`; of several calls the smallest counts."""
        self.truncate = length if self.truncate is None else min(length, self.truncate)
