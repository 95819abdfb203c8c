"""A journal in etcd: the last record of each job under the job's number, written by the leader.

A record counts once etcd has replicated it. Those of one job replace each other.
"""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from hopsum.controller.ha.election import Leadership
from hopsum.controller.ha.etcd import MOST_CHANGES, Etcd, EtcdError
from hopsum.controller.jobs.journal import JournalError, Record, UnrecordedError
from hopsum.protocol import hopsum_pb2 as pb

KEY = "number"
"""What identifies a record."""
MOST_BYTES = 1 << 20
"""Of a record, and of a transaction: etcd takes 1.5 MiB unless it is configured otherwise."""


class EtcdJournal:
    """The records of a cluster, as its leader reads and writes them."""

    def __init__(self, etcd: Etcd, leadership: Leadership) -> None:
        self._etcd = etcd
        self._leadership = leadership
        self._prefix = etcd.address.key("jobs", "")
        self.lines = 0
        self._kept: dict[str, bytes] = {}
        """Values in etcd by key."""

    @property
    def name(self) -> str:
        """Its location, for messages."""
        return str(self._etcd.address)

    def owned(self) -> AbstractContextManager[None]:
        """Do nothing: the leader owns it, for its term."""
        return contextlib.nullcontext()

    def read(self) -> list[Record]:
        """Return all records by identity. Raises JournalError for an invalid one, EtcdError."""
        self._kept = self._etcd.below(self._prefix)
        self.lines = len(self._kept)
        return [self._parse(key, value) for key, value in self._kept.items()]

    def _parse(self, key: str, value: bytes) -> Record:
        try:
            record = json.loads(value)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or KEY not in record:
            shown = value[:40].decode(errors="backslashreplace")
            raise JournalError(
                f"{self.name}: key {key}: {shown!r}: expected a record, a JSON object with "
                f"{KEY!r}; give another name, or remove the key with etcdctl"
            )
        return record

    def append(self, record: Record) -> None:
        """Store a record, replacing the last one of the same identity.

        Raises UnrecordedError if that fails; if another controller leads now, this one's term ends.
        """
        self._change({self._place(record): _encoded(record)}, ())
        self.lines += 1

    def rewrite(self, records: Iterable[Record]) -> None:
        """Keep only these records; UnrecordedError if that fails, and others may remain."""
        wanted = {self._place(record): _encoded(record) for record in records}
        new = {key: value for key, value in wanted.items() if self._kept.get(key) != value}
        for part in _parts(new):
            self._change(part, ())
        for part in _parts(dict.fromkeys(self._kept.keys() - wanted.keys(), b"")):
            self._change({}, part)
        self.lines = len(wanted)

    def _place(self, record: Record) -> str:
        return f"{self._prefix}{record[KEY]:08}"

    def _change(self, puts: Mapping[str, bytes], deletes: Iterable[str]) -> None:
        gone = list(deletes)
        try:
            led = self._etcd.change(puts, gone, self._leadership.fence)
        except EtcdError as error:
            raise UnrecordedError(f"{self.name} cannot be written: {error}") from error
        if not led:
            self._leadership.lose("another controller leads")
            raise UnrecordedError(f"{self.name} is written by another controller, which leads now")
        self._kept |= puts
        for key in gone:
            self._kept.pop(key, None)


def _encoded(record: Record) -> bytes:
    """Return a record as JSON; one that is too large without the times of the job's tensors."""
    value = json.dumps(record).encode()
    if len(value) <= MOST_BYTES or not record.get("reports"):
        return value
    reports = {host: _without_times(text) for host, text in record["reports"].items()}
    return json.dumps(record | {"reports": reports}).encode()


def _without_times(text: str) -> str:
    report = pb.Report.FromString(b64decode(text))
    report.ClearField("intervals")
    return b64encode(report.SerializeToString()).decode()


def _parts(changes: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield changes in parts that fit into one transaction."""
    part: dict[str, bytes] = {}
    size = 0
    for key, value in changes.items():
        if part and (len(part) == MOST_CHANGES or size + len(value) > MOST_BYTES):
            yield part
            part, size = {}, 0
        part[key] = value
        size += len(value)
    if part:
        yield part
