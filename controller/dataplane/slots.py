"""Contents of a switch's slots, read in-band (P4Runtime cannot read registers on BMv2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import (
    MAX_CHILDREN,
    Address,
    Header,
    Kind,
    Width,
    frame_bytes,
    frame_template,
    frame_view,
)

OPCODE_SEND = 0
OPCODE_INSPECT = 1
_NOWHERE = Address(bytes(6), bytes(4))


@dataclass(frozen=True)
class SlotState:
    """A slot's owner and progress. `bitmap`: children seen; `valid` False: never used.

    `lanes`: the values in them, each of `width`.
    """

    slot: int
    valid: bool
    cleared: bool
    job: int
    tree: int
    epoch: int
    fragment: int
    bitmap: int
    count: int
    fan_in: int
    weight: int
    flags: int
    exponent: int
    width: Width
    lanes: NDArray[np.int32]

    @property
    def complete(self) -> bool:
        """Whether every child is in."""
        return self.valid and self.count == self.fan_in

    def missing(self) -> list[int]:
        """Return the indices of missing children."""
        return [child for child in range(self.fan_in) if not self.bitmap >> child & 1]


def inspect_frame(lanes: int) -> bytes:
    """Return the payload of the packet-out that reads a slot: a full-size INSPECT frame."""
    header = Header(Kind.INSPECT, job=0, tree=0, epoch=0, fragment=0)
    return frame_template(_NOWHERE, _NOWHERE, header, (), lanes).tobytes()


def slot_state(metadata: Mapping[str, int], payload: bytes, lanes: int) -> SlotState:
    """Parse the answering packet-in; ValueError if it is too short."""
    size = frame_bytes(lanes, 0)
    if len(payload) < size:
        raise ValueError(f"a slot's answer of {len(payload)} bytes; expected {size}")
    raw = np.frombuffer(payload, dtype=np.uint8)[:size][None, :]
    record = frame_view(raw, lanes, 0)[0]
    width = Width(int(record["reduction"]) & 0x0F)
    return SlotState(
        slot=metadata["slot"],
        valid=bool(metadata["valid"]),
        cleared=bool(metadata["cleared"]),
        job=int(record["job"]),
        tree=int(record["tree"]),
        epoch=int(record["epoch"]),
        fragment=int(record["fragment"]),
        bitmap=metadata["bitmap"],
        count=metadata["count"],
        fan_in=metadata["fan_in"],
        weight=int(record["weight"]),
        flags=int(record["flags"]),
        exponent=int(record["exponent"]),
        width=width,
        lanes=record["lanes"].view(f">i{width.bits // 8}").astype(np.int32),
    )


def slot_message(state: SlotState, lanes: bool) -> pb.Slot:
    """Return the message of a slot's state, with or without its values."""
    return pb.Slot(
        slot=state.slot,
        valid=state.valid,
        cleared=state.cleared,
        job=state.job,
        tree=state.tree,
        epoch=state.epoch,
        fragment=state.fragment,
        bitmap=state.bitmap.to_bytes(MAX_CHILDREN // 8, "big"),
        count=state.count,
        fan_in=state.fan_in,
        weight=state.weight,
        flags=state.flags,
        exponent=state.exponent,
        width=state.width.bits,
        lanes=state.lanes.tolist() if lanes else (),
    )


def slot_from(message: pb.Slot) -> SlotState:
    """Return the slot's state of a message."""
    return SlotState(
        slot=message.slot,
        valid=message.valid,
        cleared=message.cleared,
        job=message.job,
        tree=message.tree,
        epoch=message.epoch,
        fragment=message.fragment,
        bitmap=int.from_bytes(message.bitmap, "big"),
        count=message.count,
        fan_in=message.fan_in,
        weight=message.weight,
        flags=message.flags,
        exponent=message.exponent,
        width=next(width for width in Width if width.bits == message.width),
        lanes=np.array(message.lanes, dtype=np.int32),
    )
