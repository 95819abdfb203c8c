"""The jobs of a cluster by number and by name: the one place that keeps and changes them.

No input or output but the journal, which keeps jobs over a restart of the controller.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from hopsum.collectives.algorithms.catalogue import SCHEDULES
from hopsum.collectives.choices import MULTI_TREE
from hopsum.collectives.messages import plan_from, plan_message
from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.jobs.job import Job, move
from hopsum.controller.jobs.job_request import planner_request
from hopsum.controller.jobs.job_spec import JobSpec, spec_from, submission_of
from hopsum.controller.jobs.job_state import LAST_JOB, MOST_NAME, JobError, JobState
from hopsum.controller.jobs.journal import Journal, Record, UnrecordedError, journal_of
from hopsum.controller.telemetry.event_log import EventKind, EventLog
from hopsum.controller.telemetry.health import Element
from hopsum.planning.model.request import EmbeddingOptions, PlanRequest, SwitchRole
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import Reduction

LOGGER = logging.getLogger("hopsum.jobs")

KEPT = 1000
"""Number of finished jobs that are kept."""
MOST_ACTIVE = 1000
"""Maximum number of active jobs, including queued ones."""
MOST_OWNED = 200
"""Maximum active jobs of one caller who is not an operator, to leave room for others."""
NEAR_NAMES = 3
"""Maximum number of suggested jobs in an error."""
MANY_LINES = 10 * KEPT
"""Lines above which a journal is compacted to one line per job."""
RESERVED = "reserved"
"""In a record without a job: no number up to its own is free (`journal_recovery`)."""
HISTORY = "history"
"""In a record without a job and with number 0: identifies this sequence of job numbers."""
HISTORY_BYTES = 8
_UNRECORDED = frozenset({JobState.QUEUED, JobState.INSTALLING, JobState.CHANGING})
"""Steps that a restarted controller takes again: a record of the job has all that they need."""
_EVENTS = {
    JobState.QUEUED: EventKind.QUEUED,
    JobState.FINISHED: EventKind.FINISHED,
    JobState.FAILED: EventKind.FAILED,
    JobState.CANCELLED: EventKind.CANCELLED,
}
_WORDS = {
    EventKind.SUBMITTED: "submitted",
    EventKind.QUEUED: "queued",
    EventKind.STARTED: "started",
    EventKind.FINISHED: "finished",
    EventKind.FAILED: "failed",
    EventKind.CANCELLED: "cancelled",
    EventKind.PLANNED: "planned",
    EventKind.FAILOVER: "failed over",
    EventKind.REPLAN: "replanned",
    EventKind.PREEMPTED: "preempted",
}
_EPOCHS = frozenset({EventKind.PLANNED, EventKind.FAILOVER, EventKind.REPLAN, EventKind.PREEMPTED})
"""Events that start an epoch."""
_HISTORY = re.compile(f"[0-9a-f]{{{2 * HISTORY_BYTES}}}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class JobTable:
    """All jobs, including those that an earlier controller recorded in the journal or its file.

    In one `history` no job number is used twice, so no pair of job and epoch recurs; a table that
    starts without the journal starts another history. Only the owner of the journal may make the
    table, which compacts the file. `date`: seconds since 1970. `new_key`: random bytes. Raises
    JobError, JournalError for a journal that cannot be read, UnrecordedError for one that cannot be
    written.
    """

    def __init__(
        self,
        journal: Path | Journal | None = None,
        date: Callable[[], float] = time.time,
        new_key: Callable[[], bytes] = secrets.token_bytes,
    ) -> None:
        self._date = date
        self.history = ""
        self.events = EventLog(date)
        """Events of the jobs and their resources."""
        self._jobs: dict[int, Job] = {}
        self._journal = journal_of(journal)
        self._late: dict[int, Record] = {}
        """Pending records by job, for example because the disk was full."""
        self._many_lines = MANY_LINES
        self._reserved = 0
        """The largest used number."""
        self._refused = False
        """Whether a failure of the journal has prevented the adoption of a plan."""
        if self._journal is not None:
            # A job's later records come after its earlier ones.
            for record in self._journal.read():
                self._restore(record, self._journal.name)
        self.history = self.history or new_key()[:HISTORY_BYTES].hex()
        if self._journal is not None:
            self._rewrite(self._journal)
        self._last = max(self._reserved, *self._jobs, 0)

    def _restore(self, record: Record, where: str) -> None:
        if HISTORY in record:
            self.history = history_of(record, where)
        elif RESERVED in record:
            self._reserved = reserved_number(record, where)
        else:
            job = job_from_record(record, where)
            self._jobs[job.number] = job

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def _check_room(self, spec: JobSpec) -> None:
        active = sum(not job.state.over for job in self._jobs.values())
        if active >= MOST_ACTIVE:
            raise JobError(
                f"job {spec.name}: {active} jobs are queued or running; expected fewer than "
                f"{MOST_ACTIVE}: cancel some, or wait until they end"
            )

    def check_owned(self, spec: JobSpec, companion: str = "") -> None:
        """Raise JobError if a limited owner has too many jobs for one more.

        `companion`: name of a job that is to be submitted with it, and counts too.
        """
        owned, most = self.owned(spec.owner), MOST_OWNED - bool(companion)
        if spec.limited and owned >= most:
            why = f", as {companion} is a job too" if companion else ""
            raise JobError(
                f"job {spec.name}: {spec.owner} has {owned} jobs queued or running; expected "
                f"fewer than {most}{why}: cancel some, or wait until they end"
            )

    def owned(self, owner: str) -> int:
        """Return the number of active jobs of an owner."""
        return sum(job.spec.owner == owner and not job.state.over for job in self._jobs.values())

    def check(self, spec: JobSpec) -> None:
        """Raise JobError for an invalid name or algorithm, and for too many jobs."""
        self._check_room(spec)
        self.check_owned(spec)
        if len(spec.name) > MOST_NAME or not _NAME.fullmatch(spec.name):
            raise JobError(
                f"job name {spec.name!r}: expected 1 to {MOST_NAME} letters, digits, '.', '_' or "
                "'-', not starting with '.'"
            )
        if spec.name.isdecimal():
            raise JobError(
                f"job name {spec.name!r} is a number, which would be read as a job's number; use "
                "a name with at least one letter"
            )
        for job in self._jobs.values():
            if job.spec.name == spec.name and job.outcome is None:
                raise JobError(
                    f"a job {spec.name!r} exists already: number {job.number}, {job.state}; "
                    "choose another name, or cancel that job"
                )
        known = [*SwitchRole, *SCHEDULES, MULTI_TREE]
        if spec.algorithm not in known:
            raise JobError(
                f"job {spec.name}: algorithm {spec.algorithm!r}: expected one of {', '.join(known)}"
            )
        for role, hosts in (("worker", spec.workers), ("server", spec.servers)):
            if isinstance(hosts, int):
                continue
            for host, count in Counter(hosts).items():
                if count > 1:
                    raise JobError(f"job {spec.name}: {role} {host:.80} is named more than once")

    def next_number(self) -> int:
        """Return a job number that was never used; JobError when there are no more."""
        if self._last == LAST_JOB:
            raise JobError(
                f"all {LAST_JOB} job numbers have been used; remove "
                f"{self._journal.name if self._journal else 'nothing'}, and restart the controller"
            )
        self._last += 1
        return self._last

    def add(self, job: Job) -> None:
        """Add a job, not yet recorded; forget the oldest finished jobs beyond `KEPT`."""
        self._jobs[job.number] = job
        self._log_event(job, EventKind.SUBMITTED)
        self._forget()

    def drop(self, job: Job) -> None:
        """Forget a job that was not recorded."""
        del self._jobs[job.number]

    def move(
        self, job: Job, to: JobState, reason: str = "", outcome: JobState | None = None
    ) -> None:
        """Move a job to its next state (`job.move`), and record it if a restart needs it."""
        started = job.started
        move(job, to, self._date(), reason, outcome)
        if to in _EVENTS:
            self._log_event(job, _EVENTS[to])
        elif job.started != started:
            self._log_event(job, EventKind.STARTED)
        if to not in _UNRECORDED:
            self.note(job)

    def start(self, job: Job) -> None:
        """Note that all its agents are ready: it runs, or will after the change of its plan."""
        if job.state is JobState.CHANGING:
            job.started = self._date()
            self._log_event(job, EventKind.STARTED)
            self.note(job)
        else:
            self.move(job, JobState.RUNNING)

    def resume(self, job: Job) -> None:
        """End the change of a job's plan, if there is one."""
        if job.state is JobState.CHANGING:
            self.move(job, JobState.RUNNING if job.started else JobState.WAITING)

    def drain(
        self,
        job: Job,
        outcome: JobState,
        reason: str = "",
        reports: Mapping[str, pb.Report] | None = None,
    ) -> None:
        """Record how a job has ended, and its agents' reports; its rules are to be removed."""
        if reports is not None:
            job.reports = reports
        self.move(job, JobState.DRAINING, reason, outcome)

    def drained(self, job: Job) -> None:
        """Finish a draining job, whose rules are removed: its state becomes its outcome."""
        assert job.outcome is not None
        self.move(job, job.outcome)

    def adopt(
        self,
        job: Job,
        request: PlanRequest,
        plan: JobPlan,
        bypassed: Collection[str] = (),
        avoided: Collection[Element] = (),
        cause: tuple[EventKind, str] = (EventKind.PLANNED, ""),
    ) -> None:
        """Give a job its next plan, recorded before it takes effect.

        `cause`: why it has another one, for people.
        Raises PlanError, caused by UnrecordedError, and changes nothing, where that cannot be: a
        controller that was restarted would use the epoch again, for another plan.
        """
        left, lost = frozenset(bypassed), frozenset(avoided)
        try:
            self.keep(replace(job, request=request, plan=plan, bypassed=left, avoided=lost))
        except UnrecordedError as error:
            self._refused = True
            raise PlanError(
                f"job {plan.job}: epoch {plan.epoch} cannot begin without a record: {error}; it is "
                "retried; free some space there"
            ) from error
        job.request, job.plan, job.bypassed, job.avoided = request, plan, left, lost
        self._log_event(job, *cause)

    def _log_event(self, job: Job, kind: EventKind, why: str = "") -> None:
        """Publish an event of a job."""
        words = f"job {job.spec.name} {_WORDS[kind]}"
        if kind in _EPOCHS:
            words += f", epoch {job.epoch}"
        text = ": ".join(filter(None, (words, why or job.reason)))
        self.events.add(kind, text, job.number, job.epoch)

    def keep(self, job: Job) -> None:
        """Record a job before acting on its state.

        Raises UnrecordedError: what would follow must not be done then.
        """
        if self._journal is None:
            return
        self._journal.append(_record(job))
        self._late.pop(job.number, None)
        if self._journal.lines > self._many_lines:
            try:
                self._rewrite(self._journal)
                self._many_lines = MANY_LINES
            except UnrecordedError as error:
                self._many_lines = 2 * self._journal.lines
                LOGGER.warning("the journal cannot be compacted: %s", error)

    def note(self, job: Job) -> None:
        """Record a job; if that fails, `catch_up` does it later."""
        try:
            self.keep(job)
        except UnrecordedError as error:
            self._late[job.number] = _record(job)
            LOGGER.error(
                "job %d is %s, which a restarted controller would not know: %s",
                job.number,
                job.state,
                error,
            )

    def catch_up(self) -> bool:
        """Write pending records, as far as possible now.

        Return whether the record of a plan has failed since the last time, so that its job may be
        tried again.
        """
        refused, self._refused = self._refused, False
        while self._journal is not None and self._late:
            number, record = next(iter(self._late.items()))
            try:
                self._journal.append(record)
            except UnrecordedError:
                break
            del self._late[number]
            LOGGER.info("job %d is recorded now", number)
        return refused

    def _rewrite(self, journal: Journal) -> None:
        self._forget()
        records: list[Record] = [{"number": 0, HISTORY: self.history}]
        records += [_record(self._jobs[number]) for number in sorted(self._jobs)]
        if self._reserved > max(self._jobs, default=0):
            records.append({"number": self._reserved, RESERVED: True})
        journal.rewrite(records)

    def _forget(self) -> None:
        over = [number for number, known in self._jobs.items() if known.state.over]
        for number in over[:-KEPT]:
            del self._jobs[number]

    def get(self, number: int) -> Job | None:
        """Return a job by its number, if it is known."""
        return self._jobs.get(number)

    def find(self, number: int = 0, name: str = "") -> Job:
        """Return the latest job of a name, else the job of that number; JobError if none."""
        for job in reversed(self._jobs.values()):
            if name and job.spec.name == name:
                return job
        if number in self._jobs:
            return self._jobs[number]
        raise JobError(f"there is no job {name or number}; {self._nearest(name or str(number))}")

    def _nearest(self, name: str) -> str:
        """Return suggestions for an unknown job.

        Near names, and how many jobs.
        """
        names = dict.fromkeys(job.spec.name for job in reversed(self._jobs.values()))
        near = get_close_matches(name, names, NEAR_NAMES)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        count = len(self._jobs)
        known = f"{count} job{'s are' if count > 1 else ' is'} known" if count else "none is known"
        return f"{meant}{known}, `hopsum jobs` lists them"

    def queued(self) -> list[Job]:
        """Return the jobs that wait for others to end, the oldest first."""
        return [job for job in self._jobs.values() if job.state is JobState.QUEUED]

    def loads(self) -> dict[str, int]:
        """Return the number of active jobs of each host."""
        counts: dict[str, int] = {}
        for job in self._jobs.values():
            if job.outcome is None:
                for host in job.hosts:
                    counts[host] = counts.get(host, 0) + 1
        return counts


# -- Records of the journal


def _record(job: Job) -> Record:
    """Return a job as JSON data.

    Of its request only the fields that the cluster has assigned: the others follow from the job.
    """
    request = job.request
    record = {
        item.name: getattr(job, item.name)
        for item in fields(job)
        if item.name not in ("spec", "request", "plan", "sent", "resent", "summed")
    }
    return record | {
        "bypassed": sorted(job.bypassed),
        "avoided": sorted((list(e) if isinstance(e, tuple) else e for e in job.avoided), key=str),
        # As JSON the times of many tensors would keep the controller from all else for seconds.
        "reports": {
            host: b64encode(report.SerializeToString()).decode()
            for host, report in job.reports.items()
        },
        "spec": _in_order(MessageToDict(submission_of(job.spec))),
        "request": {
            "epoch": request.epoch,
            "workers": request.workers,
            "servers": request.servers,
            "algorithm": request.algorithm,
            "lanes": request.lanes,
            "window": request.window,
            "max_trees": request.forest.max_trees,
            "reduction": request.reduction,
            "embedding": {
                "auxiliary": request.embedding.auxiliary,
                "relays": request.embedding.relays,
                "period": request.embedding.period,
            },
        },
        "plan": None if job.plan is None else _in_order(MessageToDict(plan_message(job.plan))),
    }


def _in_order(value: Any) -> Any:
    """Return a message as JSON with sorted keys: protobuf's order of maps is random."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def job_from_record(record: Record, where: str) -> Job:
    """Return the job of a record; JobError if invalid."""
    try:
        spec = spec_from(ParseDict(record["spec"], pb.Submission()))
        requested = dict(record["request"])
        for hosts in ("workers", "servers"):
            requested[hosts] = tuple(requested[hosts])
        requested["algorithm"] = SwitchRole(requested["algorithm"])
        most = requested.pop("max_trees")
        requested["results"] = spec.results
        requested["integrity"] = spec.integrity
        requested["reduction"] = Reduction(requested["reduction"])
        # Records of earlier versions have none.
        helping = dict(requested.pop("embedding", None) or {})
        if helping.get("auxiliary") is not None:
            helping["auxiliary"] = tuple(helping["auxiliary"])
        _check_scalars(EmbeddingOptions, helping)
        plan = record["plan"]
        reports = {
            host: pb.Report.FromString(b64decode(text, validate=True))
            for host, text in record["reports"].items()
        }
        _check_scalars(PlanRequest, requested)
        request = planner_request(spec, PlanRequest(record["number"], **requested))
        request = replace(
            request,
            forest=replace(request.forest, max_trees=most),
            embedding=replace(request.embedding, **helping),
        )
        known = {
            **record,
            "state": JobState(record["state"]),
            "outcome": None if record["outcome"] is None else JobState(record["outcome"]),
            "bypassed": frozenset(record["bypassed"]),
            "avoided": frozenset(
                tuple(element) if isinstance(element, list) else element
                for element in record.get("avoided", ())
            ),
            "reports": reports,
            "spec": spec,
            "request": request,
            "plan": None if plan is None else plan_from(ParseDict(plan, pb.Plan())),
        }
        _check_scalars(Job, known)
        if not 1 <= known["number"] <= LAST_JOB:
            raise ValueError(f"number {known['number']}, expected 1 to {LAST_JOB}")
        return Job(**known)
    except (AttributeError, KeyError, TypeError, ValueError, DecodeError, ParseError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise JobError(
            f"{where}: job {record.get('number')} cannot be read ({why}); was the journal written "
            "by another version?"
        ) from None


def reserved_number(record: Record, where: str) -> int:
    """Return the largest number that a record reserves; JobError if invalid."""
    number = record.get("number")
    if type(number) is not int or not 0 <= number <= LAST_JOB:
        raise JobError(f"{where}: number {number!r} is reserved; expected 0 to {LAST_JOB}")
    return number


def history_of(record: Record, where: str) -> str:
    """Return the history of a record; JobError if invalid."""
    history = record[HISTORY]
    if record.get("number") != 0 or not isinstance(history, str) or not _HISTORY.fullmatch(history):
        raise JobError(
            f"{where}: {HISTORY} {history!r}: expected {2 * HISTORY_BYTES} hexadecimal digits in "
            "a record of number 0"
        )
    return history


_SCALARS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


def _check_scalars(
    kind: type[Job] | type[PlanRequest] | type[EmbeddingOptions], values: Mapping[str, Any]
) -> None:
    """Raise TypeError if a field of a record has the wrong type: a dataclass accepts anything."""
    for item in fields(kind):
        expected = _SCALARS.get(str(item.type))
        if expected and item.name in values and type(values[item.name]) not in expected:
            raise TypeError(f"{item.name} is {values[item.name]!r}, expected {item.type}")
