"""Digest lists: buffering, duplicates, acknowledgements (P4Runtime specification 1.5, 9.10)."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4switch.p4runtime.names import DigestType
from p4switch.p4runtime.p4data import to_message
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError

Values = tuple[int, ...]


@dataclass(slots=True)
class _Unacknowledged:
    sent_ns: int
    values: frozenset[Values]


@dataclass(slots=True)
class _Stream:
    """A digest type to which a controller subscribes. Times are nanoseconds of one clock."""

    kind: DigestType
    entry: p4r.DigestEntry
    buffer: dict[Values, None] = field(default_factory=dict)
    first_ns: int = 0
    next_list: int = 1
    unacknowledged: dict[int, _Unacknowledged] = field(default_factory=dict)

    def expire(self, now_ns: int) -> None:
        """Forget lists that were not acknowledged in time; the oldest one comes first."""
        while self.unacknowledged:
            number, sent = next(iter(self.unacknowledged.items()))
            if now_ns - sent.sent_ns < self.entry.config.ack_timeout_ns:
                return
            del self.unacknowledged[number]

    def is_sent(self, values: Values) -> bool:
        return any(values in sent.values for sent in self.unacknowledged.values())

    def is_due(self, now_ns: int) -> bool:
        if not self.buffer:
            return False
        full = 0 < self.entry.config.max_list_size <= len(self.buffer)
        return full or now_ns - self.first_ns >= self.entry.config.max_timeout_ns

    def deadline(self) -> int | None:
        return self.first_ns + self.entry.config.max_timeout_ns if self.buffer else None


class Digests:
    """The digest lists of one pipeline.

    Times are nanoseconds of one monotonic clock. Not locked: the caller serialises.
    """

    def __init__(self, types: dict[int, DigestType]) -> None:
        self._types = types
        self._ids = {kind.source: number for number, kind in types.items()}
        self._streams: dict[int, _Stream] = {}

    def _kind(self, digest_id: int) -> DigestType:
        if digest_id not in self._types:
            # BMv2's code; ids of other kinds are INVALID_ARGUMENT there too.
            raise ControlError("NOT_FOUND", f"no digest has id {digest_id:#010x}")
        return self._types[digest_id]

    def insert(self, entry: p4r.DigestEntry) -> None:
        """Begin sending lists; ALREADY_EXISTS if already configured."""
        kind = self._kind(entry.digest_id)
        if entry.digest_id in self._streams:
            raise ControlError("ALREADY_EXISTS", f"digest {kind.name!r} is configured already")
        self._streams[entry.digest_id] = _Stream(kind, self._checked(entry))

    def modify(self, entry: p4r.DigestEntry) -> None:
        """Change the configuration; NOT_FOUND if there is none."""
        self._stream(entry.digest_id).entry = self._checked(entry)

    def delete(self, entry: p4r.DigestEntry) -> None:
        """Stop sending lists; NOT_FOUND if not configured."""
        self._stream(entry.digest_id)
        del self._streams[entry.digest_id]

    def read(self, digest_id: int) -> list[p4r.DigestEntry]:
        """Return the configured entry of an id, or all for 0."""
        if digest_id:
            self._kind(digest_id)
        return [
            stream.entry for number, stream in self._streams.items() if digest_id in (0, number)
        ]

    def _stream(self, digest_id: int) -> _Stream:
        kind = self._kind(digest_id)
        if digest_id not in self._streams:
            raise ControlError("NOT_FOUND", f"digest {kind.name!r} is not configured")
        return self._streams[digest_id]

    @staticmethod
    def _checked(entry: p4r.DigestEntry) -> p4r.DigestEntry:
        config = entry.config
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise ControlError("INVALID_ARGUMENT", "digest configuration: a number is negative")
        kept = p4r.DigestEntry()
        kept.CopyFrom(entry)
        return kept

    # --- messages

    def add(self, name: str, values: Values, now_ns: int) -> None:
        """Process a digest from the data plane; unwanted and duplicate ones are dropped."""
        stream = self._streams.get(self._ids.get(name, 0))
        if stream is None:
            return
        stream.expire(now_ns)
        if stream.is_sent(values):
            return
        if not stream.buffer:
            stream.first_ns = now_ns
        stream.buffer[values] = None

    def due(self, now_ns: int) -> list[p4r.DigestList]:
        """Return the lists to send now; forget those not acknowledged in time."""
        lists = []
        for digest_id, stream in self._streams.items():
            stream.expire(now_ns)
            while stream.is_due(now_ns):
                size = stream.entry.config.max_list_size or len(stream.buffer)
                values = tuple(stream.buffer)[:size]
                for item in values:
                    del stream.buffer[item]
                lists.append(
                    p4r.DigestList(
                        digest_id=digest_id,
                        list_id=stream.next_list,
                        data=[to_message(stream.kind.type, iter(item)) for item in values],
                    )
                )
                if stream.entry.config.ack_timeout_ns:
                    stream.unacknowledged[stream.next_list] = _Unacknowledged(
                        now_ns, frozenset(values)
                    )
                stream.next_list += 1
        return lists

    def acknowledge(self, message: p4r.DigestListAck) -> None:
        """Process a client's acknowledgement; INVALID_ARGUMENT for an unknown digest."""
        stream = self._streams.get(message.digest_id)
        if stream is None:
            raise ControlError(
                "INVALID_ARGUMENT", f"no digest {message.digest_id:#010x} is configured"
            )
        stream.unacknowledged.pop(message.list_id, None)

    def deadline(self) -> int | None:
        """Return when `due` will have something to send without further events; None: never."""
        deadlines = [d for s in self._streams.values() if (d := s.deadline()) is not None]
        return min(deadlines, default=None)
