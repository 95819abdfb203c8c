"""The jobs of a cluster, from their submission to their end, by number and by name.

No input or output but the journal, which keeps them over a restart of the controller; times are
seconds since 1970.
"""

from __future__ import annotations

import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from collectives.algorithms.catalogue import SCHEDULES
from collectives.choices import MULTI_TREE
from collectives.messages import plan_from, plan_message
from collectives.plan import JobPlan
from controller.jobs.job_spec import JobSpec, spec_from, submission_of
from controller.jobs.job_state import LAST_JOB as LAST_JOB
from controller.jobs.job_state import JobError as JobError
from controller.jobs.job_state import JobState as JobState
from controller.jobs.journal import Journal, Record, Unrecorded
from planning.model.request import Algorithm, PlanRequest
from protocol import hopsum_pb2 as pb
from protocol.wire import Reduction

LOGGER = logging.getLogger("hopsum.jobs")

KEPT = 1000
"""Jobs that are over and still known."""
NEAR_NAMES = 3
"""Of jobs that may have been meant, in an error."""
MANY_LINES = 10 * KEPT
"""A journal with more is written anew, with one line a job."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}")


@dataclass(slots=True)
class Job:
    """A job of the cluster. `request` is its plan's, with the hosts that were chosen."""

    number: int
    spec: JobSpec
    request: PlanRequest
    state: JobState
    submitted: float
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""
    round: int = 0
    epoch: int = 1
    elements: int = 0
    """Of its largest tensor that agents have reported."""
    plan: JobPlan | None = None
    """Of its present epoch; None before the first, and where its workers sum among themselves."""
    bypassed: tuple[str, ...] = ()
    """Switches where it has given up its slots to others (`sharing`)."""
    reports: Mapping[str, pb.Report] = field(default_factory=dict)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """The hosts that have a part in it and are no workers: servers and relays."""
        if self.spec.among_hosts:
            return ()
        return self.request.servers if self.plan is None else self.plan.auxiliary

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that have a part in it."""
        return tuple(dict.fromkeys((*self.request.workers, *self.auxiliary)))

    def end(self, state: JobState, now: float, reason: str = "") -> None:
        """It is over."""
        self.state, self.ended, self.reason = state, now, reason
        self.bypassed = ()


class JobBook:
    """All jobs. With `file`, a journal, those that an earlier controller kept are there.

    No job number is used twice, because no pair of job and epoch is. Raises JobError, JournalError
    for a journal that cannot be read, Unrecorded for one that cannot be written.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._jobs: dict[int, Job] = {}
        self._journal = None if file is None else Journal(file, "number")
        self._late: dict[int, Record] = {}
        """By job, what is still to be recorded: the disk was full, say."""
        self._many_lines = MANY_LINES
        if self._journal is not None:
            # A job's later records come after its earlier ones.
            for record in self._journal.read():
                job = _job_from(record, self._journal.file)
                self._jobs[job.number] = job
            self._rewrite(self._journal)
        self._last = max(self._jobs, default=0)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def check(self, spec: JobSpec) -> None:
        """Raise JobError for a name or an algorithm that cannot be."""
        if not _NAME.fullmatch(spec.name):
            raise JobError(
                f"job name {spec.name!r}: expected 1 to 63 letters, digits, '.', '_' or '-', the "
                "first no '.'"
            )
        if spec.name.isdecimal():
            raise JobError(
                f"job name {spec.name!r} is a number, and jobs have numbers of their own; expected "
                "a name with something else in it, such as a letter"
            )
        for job in self._jobs.values():
            if job.spec.name == spec.name and not job.state.over:
                raise JobError(
                    f"there is a job {spec.name!r} already: number {job.number}, {job.state}; "
                    "give this one another name, or cancel that one"
                )
        known = [*Algorithm, *SCHEDULES, MULTI_TREE]
        if spec.algorithm not in known:
            raise JobError(
                f"job {spec.name}: algorithm {spec.algorithm!r}: expected one of {', '.join(known)}"
            )
        for role, hosts in (("worker", spec.workers), ("server", spec.servers)):
            if isinstance(hosts, int):
                continue
            twice = [host for host in dict.fromkeys(hosts) if hosts.count(host) > 1]
            if twice:
                raise JobError(f"job {spec.name}: {role} {twice[0]} is named more than once")

    def next_number(self) -> int:
        """A job number that was never used; JobError when there are no more."""
        if self._last == LAST_JOB:
            raise JobError(
                f"all {LAST_JOB} job numbers have been used; restart the switches, remove "
                f"{self._journal.file if self._journal else 'nothing'}, and restart the controller"
            )
        self._last += 1
        return self._last

    def add(self, job: Job) -> None:
        """Take a job in; the oldest that are over are forgotten beyond `KEPT`.

        Raises Unrecorded, and does not take it in.
        """
        self.keep(job)
        self._jobs[job.number] = job
        self._forget()

    def keep(self, job: Job) -> None:
        """Record how a job is, before what follows from it is done.

        Raises Unrecorded: what would follow must not be done then.
        """
        if self._journal is None:
            return
        self._journal.append(_record(job))
        self._late.pop(job.number, None)
        if self._journal.lines > self._many_lines:
            try:
                self._rewrite(self._journal)
                self._many_lines = MANY_LINES
            except Unrecorded as error:
                self._many_lines = 2 * self._journal.lines
                LOGGER.warning("the journal goes on growing: %s", error)

    def note(self, job: Job) -> None:
        """Record how a job is, where that cannot be helped: if it fails, `catch_up` does it."""
        try:
            self.keep(job)
        except Unrecorded as error:
            self._late[job.number] = _record(job)
            LOGGER.error(
                "job %d is %s, and a restart of the controller would not know: %s",
                job.number,
                job.state,
                error,
            )

    def catch_up(self) -> None:
        """Record what could not be recorded when it happened, as far as it can be now."""
        if self._journal is None:
            return
        while self._late:
            number, record = next(iter(self._late.items()))
            try:
                self._journal.append(record)
            except Unrecorded:
                return
            del self._late[number]
            LOGGER.info("job %d is recorded now", number)

    def _rewrite(self, journal: Journal) -> None:
        self._forget()
        journal.rewrite(_record(self._jobs[number]) for number in sorted(self._jobs))

    def _forget(self) -> None:
        over = [number for number, known in self._jobs.items() if known.state.over]
        for number in over[:-KEPT]:
            del self._jobs[number]

    def get(self, number: int) -> Job | None:
        """A job by its number, if it is known."""
        return self._jobs.get(number)

    def find(self, number: int = 0, name: str = "") -> Job:
        """The last job of a name, else that with the number; JobError if there is none."""
        for job in reversed(self._jobs.values()):
            if name and job.spec.name == name:
                return job
        if number in self._jobs:
            return self._jobs[number]
        raise JobError(f"there is no job {name or number}; {self._nearest(name or str(number))}")

    def _nearest(self, name: str) -> str:
        """What there is instead of a job that is not there: near names, and how many jobs."""
        names = dict.fromkeys(job.spec.name for job in reversed(self._jobs.values()))
        near = get_close_matches(name, names, NEAR_NAMES)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        count = len(self._jobs)
        known = f"{count} job{'s are' if count > 1 else ' is'} known" if count else "none is known"
        return f"{meant}{known}, `hopsum jobs` lists them"

    def queued(self) -> list[Job]:
        """The jobs that wait for others to end, the oldest first."""
        return [job for job in self._jobs.values() if job.state is JobState.QUEUED]

    def loads(self) -> dict[str, int]:
        """In how many jobs that are not over each host has a part."""
        counts: dict[str, int] = {}
        for job in self._jobs.values():
            if not job.state.over:
                for host in job.hosts:
                    counts[host] = counts.get(host, 0) + 1
        return counts


# -- Records of the journal


def _record(job: Job) -> Record:
    """A job as JSON takes it. Of the request what the cluster chooses; the rest is as ever."""
    request = job.request
    record = {
        item.name: getattr(job, item.name)
        for item in fields(job)
        if item.name not in ("spec", "request", "plan")
    }
    return record | {
        # As JSON the times of many tensors would keep the controller from all else for seconds.
        "reports": {
            host: b64encode(report.SerializeToString()).decode()
            for host, report in job.reports.items()
        },
        "spec": _in_order(MessageToDict(submission_of(job.spec))),
        "request": {
            "workers": request.workers,
            "servers": request.servers,
            "algorithm": request.algorithm,
            "lanes": request.lanes,
            "window": request.window,
            "max_trees": request.forest.max_trees,
            "reduction": request.reduction,
        },
        "plan": None if job.plan is None else _in_order(MessageToDict(plan_message(job.plan))),
    }


def _in_order(value: Any) -> Any:
    """A message as JSON with its keys in order: protobuf leaves that of maps to chance."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def _job_from(record: Record, file: Path) -> Job:
    """The job of a record; JobError if it is none."""
    try:
        spec = spec_from(ParseDict(record["spec"], pb.Submission()))
        asked = dict(record["request"])
        for hosts in ("workers", "servers"):
            asked[hosts] = tuple(asked[hosts])
        asked["algorithm"] = Algorithm(asked["algorithm"])
        asked["forest"] = replace(spec.forest, max_trees=asked.pop("max_trees"))
        asked["results"] = spec.results
        asked["reduction"] = Reduction(asked["reduction"])
        plan = record["plan"]
        reports = {
            host: pb.Report.FromString(b64decode(text, validate=True))
            for host, text in record["reports"].items()
        }
        known = {
            **record,
            "state": JobState(record["state"]),
            "bypassed": tuple(record["bypassed"]),
            "reports": reports,
            "spec": spec,
            "request": PlanRequest(record["number"], record["epoch"], **asked),
            "plan": None if plan is None else plan_from(ParseDict(plan, pb.Plan())),
        }
        return Job(**known)
    except (AttributeError, KeyError, TypeError, ValueError, DecodeError, ParseError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise JobError(
            f"{file}: job {record.get('number')} cannot be read ({why}); is the journal another "
            "version's?"
        ) from None
