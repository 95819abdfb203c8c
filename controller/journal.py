"""A journal: records as lines of JSON in a file, that outlive the process that wrote them.

What is appended counts once its line is whole: a process that dies in mid-line loses that one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("hopsum.journal")

Record = dict[str, Any]


class JournalError(ValueError):
    """A file that is no journal; the message names it, and the line."""


class Journal:
    """The records of `file`, which is made when there is none. Raises JournalError, OSError."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines = 0

    def read(self) -> list[Record]:
        """All records, the oldest first; a broken last line is left out."""
        if not self.file.exists():
            return []
        lines = self.file.read_text(encoding="utf-8", errors="replace").split("\n")
        records = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise JournalError(
                    f"{self.file}:{number}: {line[:40]!r}: expected a record, one JSON object a "
                    "line; give another file, or mend this one"
                )
            records.append(record)
        if lines[-1]:
            LOGGER.warning("%s: the last record is cut short, and left out", self.file)
        self.lines = len(records)
        return records

    def append(self, record: Record) -> None:
        """Add a record."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.lines += 1

    def rewrite(self, records: Iterable[Record]) -> None:
        """Let the file hold these records only; at no time there is less in it than before."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        texts = [json.dumps(record) + "\n" for record in records]
        new = self.file.with_name(self.file.name + ".new")
        new.write_text("".join(texts), encoding="utf-8")
        new.replace(self.file)
        self.lines = len(texts)
