"""The journey of one fragment: what each worker, switch and server did with it, and when."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

import numpy as np

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Flag, Kind, frame_bytes, frame_view, is_hopsum
from p4switch.targets.v1model.engine import Engine

KINDS = {int(kind): kind.name.lower().replace("_", " ") for kind in Kind}
COUNTER = "outcomes"
"""The counter of hopsum.p4 whose cells are `Outcome`."""
MOST_STEPS = 100_000
"""Maximum frames of a trace; a fragment in a small network takes tens."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A frame of the fragment on one link.

    `sent`, `arrived`: times of the last bit in seconds; `arrived` None: lost or still in flight.
    `outcomes`: counts of the switch at the far end. `sequence`: its sequence number on the link.
    """

    source: str
    target: str
    sent: float
    arrived: float | None
    kind: str
    tree: int
    epoch: int
    worker: int
    weight: int
    flags: tuple[str, ...]
    sequence: int | None = None
    outcomes: tuple[Outcome, ...] = ()

    def label(self) -> str:
        """Return the frame in a few words."""
        flags = f" [{'+'.join(self.flags)}]" if self.flags else ""
        of = f" of worker {self.worker}" if self.weight <= 1 and "contribution" in self.kind else ""
        number = "" if self.sequence is None else f", sequence {self.sequence}"
        return f"{self.kind}{of}, weight {self.weight}{number}{flags}"


@dataclass
class FragmentTrace:
    """An `Observer` that follows fragment number `fragment` of a job's trees."""

    fragment: int
    job: int = 1
    hops: list[Hop] = field(default_factory=list)
    """Hops in the order in which they were queued."""
    _flying: defaultdict[tuple[str, bytes], deque[int]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    _handling: tuple[int, tuple[int, ...]] | None = None
    """The hop whose frame a switch handles, and the switch's counters before."""

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """See `Observer`."""
        hop = self.hop_of(frame)
        if hop is None or len(self.hops) >= MOST_STEPS:
            return
        if not lost:
            self._flying[target, frame].append(len(self.hops))
        self.hops.append(replace(hop, source=source, target=target, sent=time))

    def entered(
        self, time: float, node: str, port: int, frame: bytes, engine: Engine | None
    ) -> None:
        """See `Observer`."""
        flying = self._flying.get((node, frame))
        self._handling = None
        if flying:
            number = flying.popleft()
            self.hops[number] = replace(self.hops[number], arrived=time)
            if engine is not None:
                self._handling = number, _counts(engine)

    def handled(self, time: float, switch: str, frame: bytes, engine: Engine) -> None:
        """See `Observer`."""
        if self._handling is None:
            return
        number, before = self._handling
        after = _counts(engine)
        counted = tuple(outcome for outcome in Outcome if after[outcome] > before[outcome])
        self.hops[number] = replace(self.hops[number], outcomes=counted)

    def hop_of(self, frame: bytes) -> Hop | None:
        """Return a frame's hop without ends and times; None for another fragment.

        Requests do not count: a request is a copy of the frame that revealed the loss of another.
        """
        size = frame_bytes(0, 0)
        raw = np.frombuffer(frame[:size], dtype=np.uint8)[None, :]
        if len(frame) < size or not is_hopsum(raw)[0]:
            return None
        record = frame_view(raw, 0, 0)[0]
        if (int(record["job"]), int(record["fragment"])) != (self.job, self.fragment):
            return None
        kind = int(record["version_kind"]) & 0xF
        if kind == Kind.REQUEST:
            return None
        flags = int(record["flags"])
        return Hop(
            source="",
            target="",
            sent=0.0,
            arrived=None,
            kind=KINDS.get(kind, f"kind {kind}"),
            tree=int(record["tree"]),
            epoch=int(record["epoch"]),
            worker=int(record["worker"]),
            weight=int(record["weight"]),
            flags=tuple(
                flag.name.lower()
                for flag in Flag
                if flag & flags and flag is not Flag.SEQUENCED and flag.name
            ),
            sequence=int(record["sequence"]) if flags & Flag.SEQUENCED else None,
        )


def _counts(engine: Engine) -> tuple[int, ...]:
    return tuple(engine.read_counter(COUNTER, cell).packets for cell in Outcome)
