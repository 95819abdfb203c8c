"""Recovery of a journal that is damaged in the middle, as far as that is safe.

A lost record may have been the latest of a job, with an epoch that switches and agents know, or its
only one. So no job of the journal continues, and no number that a lost record may have had is
reused: no pair of job and epoch is used twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from hopsum.controller.jobs.job_state import LAST_JOB, JobState
from hopsum.controller.jobs.job_table import (
    HISTORY,
    RESERVED,
    history_of,
    job_from_record,
    reserved_number,
)
from hopsum.controller.jobs.journal import REAL_DISK, FileJournal, JournalError, Record

LEAST_RECORD = 256
"""Minimum bytes of a job's record."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of a recovery. `damaged`: numbers of lines, from 1. `ended`: names of jobs."""

    jobs: int
    ended: tuple[str, ...]
    damaged: tuple[int, ...]
    reserved: int
    kept_as: Path | None


def recover(file: Path) -> Recovery:
    """Rewrite a journal from its readable records; keep the damaged file as FILE.damaged.

    A journal without damage stays as it is. Raises JournalError for a file that cannot be read or
    of which nothing can, and for a damaged one that a controller uses; UnrecordedError for one that
    cannot be written.
    """
    journal = FileJournal(file)
    found = _examine(file)
    with contextlib.ExitStack() as stack:
        if found.damaged:
            stack.enter_context(journal.owned())
            found = _examine(file)
        if not found.damaged:
            return Recovery(len(found.jobs), (), (), 0, None)
        if not found.latest:
            raise JournalError(f"{file}: it contains no records; is it a journal?")
        backup = _back_up(journal.file)
        ended = [_end(job, found.damaged[0]) for job in found.jobs if not _over(job)]
        reserved = min(max(found.latest) + found.lost, LAST_JOB)
        journal.rewrite([*found.latest.values(), {"number": reserved, RESERVED: True}])
    return Recovery(len(found.jobs), tuple(ended), tuple(found.damaged), reserved, backup)


@dataclass(frozen=True, slots=True)
class _Findings:
    """A journal's latest records by number, its damaged lines, and the most that they were."""

    latest: dict[int, Record]
    damaged: list[int]
    lost: int

    @property
    def jobs(self) -> list[Record]:
        return [record for record in self.latest.values() if _is_job(record)]


def _examine(file: Path) -> _Findings:
    try:
        content = REAL_DISK.read(file)
    except OSError as error:
        raise JournalError(f"{file}: cannot be read: {error.strerror}") from None
    latest: dict[int, Record] = {}
    damaged: list[int] = []
    lost = 0
    # A last line cut short by a crash does not count as damage.
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        record = _record(line)
        if record is not None:
            latest[record["number"]] = record
        else:
            damaged.append(number)
            lost += 1 + len(line) // LEAST_RECORD
    return _Findings(latest, damaged, lost)


def _back_up(file: Path) -> Path:
    backup = file.with_name(file.name + ".damaged")
    try:
        backup.hardlink_to(file)
    except FileExistsError:
        raise JournalError(f"{backup} exists already; move it away first") from None
    except OSError as error:
        raise JournalError(f"{backup}: cannot be written: {error.strerror}") from None
    return backup


def _record(line: bytes) -> Record | None:
    """Return the record of a line; None if it is not a valid record."""
    try:
        record: Record = json.loads(line)
        if HISTORY in record:
            history_of(record, "")
        elif RESERVED in record:
            reserved_number(record, "")
        else:
            job_from_record(record, "")
    except (ValueError, TypeError, RecursionError):
        return None
    return record


def _is_job(record: Record) -> bool:
    return HISTORY not in record and RESERVED not in record


def _over(record: Record) -> bool:
    return JobState(record["state"]).over


def _end(record: Record, line: int) -> str:
    """Mark a job as failed; return its name."""
    record["state"] = record["outcome"] = JobState.FAILED.value
    record["ended"] = time.time()
    record["reason"] = f"the journal was damaged at line {line}: its outcome is unknown"
    return str(record["spec"]["name"])
