"""The jobs of a cluster, from their submission to their end, by number and by name.

No input or output but the file that keeps the last job number; times are seconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from collectives.algorithms.catalogue import SCHEDULES
from controller.planners.request import Algorithm, PlanRequest

LAST_JOB = 0xFFFF
"""Of the job numbers in a packet."""
KEPT = 1000
"""Jobs that are over and still known."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class JobError(ValueError):
    """A job that cannot be, or is not there; the message says why and what was expected."""


class JobState(StrEnum):
    """How far a job is."""

    QUEUED = "queued"
    """Other jobs hold what it needs."""
    WAITING = "waiting"
    """Its rules are installed; not all of its agents are ready."""
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job asks for. `algorithm`: of `Algorithm`, or a schedule among its workers.

    `workers`, `servers`: names, or how many. `lanes`, `window` None: the cluster's choice.
    `task`: JSON that its agents understand.
    """

    name: str
    workers: tuple[str, ...] | int
    servers: tuple[str, ...] | int = 1
    algorithm: str = Algorithm.IN_NETWORK
    planner: str = "multi-hop"
    lanes: int | None = None
    window: int | None = None
    task: str = "{}"

    @property
    def among_hosts(self) -> bool:
        """Whether the workers sum among themselves, without trees."""
        return self.algorithm in SCHEDULES


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
    reports: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that have a part in it."""
        return tuple(dict.fromkeys((*self.request.workers, *self.request.servers)))

    def end(self, state: JobState, now: float, reason: str = "") -> None:
        """It is over."""
        self.state, self.ended, self.reason = state, now, reason


class JobBook:
    """All jobs. `file` keeps the last number, because no pair of job and epoch is used twice."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._jobs: dict[int, Job] = {}
        self._last = 0
        if file is not None and file.exists():
            text = file.read_text(encoding="utf-8").strip()
            if not text.isdecimal() or int(text) > LAST_JOB:
                raise JobError(
                    f"{file}: {text[:40]!r}; expected the number of the last job, 0 to {LAST_JOB}; "
                    "remove it only when all switches have been restarted"
                )
            self._last = int(text)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def check(self, spec: JobSpec) -> None:
        """Raise JobError for a name or an algorithm that cannot be."""
        if not _NAME.fullmatch(spec.name):
            raise JobError(
                f"job name {spec.name!r}: expected 1 to 63 letters, digits, '.', '_' or '-', the "
                "first a letter or digit"
            )
        for job in self._jobs.values():
            if job.spec.name == spec.name and not job.state.over:
                raise JobError(
                    f"there is a job {spec.name!r} already: number {job.number}, {job.state}; "
                    "give this one another name, or cancel that one"
                )
        known = [*Algorithm, *SCHEDULES]
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
                f"{self._file or 'nothing'}, and restart the controller"
            )
        self._last += 1
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.write_text(f"{self._last}\n", encoding="utf-8")
            new.replace(self._file)
        return self._last

    def add(self, job: Job) -> None:
        """Take a job in; the oldest that are over are forgotten beyond `KEPT`."""
        self._jobs[job.number] = job
        over = [number for number, known in self._jobs.items() if known.state.over]
        for number in over[:-KEPT]:
            del self._jobs[number]

    def find(self, number: int = 0, name: str = "") -> Job:
        """A job by its number, or the last one of a name; JobError if there is none."""
        if number in self._jobs:
            return self._jobs[number]
        for job in reversed(self._jobs.values()):
            if name and job.spec.name == name:
                return job
        known = ", ".join(f"{job.number} ({job.spec.name})" for job in self._jobs.values())
        raise JobError(f"there is no job {name or number}; jobs: {known or 'none'}")

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
