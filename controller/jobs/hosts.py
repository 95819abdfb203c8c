"""The hosts' agent processes: the jobs they are to attend, their priorities, and their reports."""

from __future__ import annotations

from hopsum.controller.jobs import events
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.priorities import JobLevel
from hopsum.controller.telemetry.diagnosis import cut_off
from hopsum.controller.telemetry.state import ReportError
from hopsum.protocol import hopsum_pb2 as pb

MOST_FEATURES = 4096
"""Maximum number of jobs in one report of a host, and of those that it awaits."""


class Hosts:
    """The hosts of an engine's network."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def in_reach(self) -> tuple[str, ...]:
        """Return the hosts that have an agent and can reach most others, in the network's order."""
        apart = cut_off(self._state.plans.working(), self._state.network.hosts)
        return tuple(host for host in self._state.nodes.attached if host not in apart)

    def invite(self, host: str) -> None:
        """Let a host attend the jobs that lack its agent.

        If its agent takes part in one, that comes back by itself; if its part has failed, it
        reports that again.
        """
        for active in self._state.plans.active.values():
            if host in active.absent:
                self._attend(host, active.job)

    def summon(self, active: ActiveJob) -> None:
        """Let the hosts whose agents a job lacks attend it."""
        for host in active.absent:
            self._attend(host, active.job)

    def _attend(self, host: str, job: Job) -> None:
        command = pb.NodeCommand(attend=pb.AttendJob(job=job.number))
        self._state.send(events.SendToHost(host, command))
        level = self._state.priorities.job_level(job.number)
        if level is not None:
            self._assign_level(host, job, level)

    def _assign_level(self, host: str, job: Job, level: JobLevel) -> None:
        """Assign a job's frames at a host to the send queues of a level; 0 is served first.

        Workers know when their first iterations are over, before the controller does.
        """
        priority = pb.Priority(job=job.number, level=level.now)
        if host in job.request.workers:
            early = self._state.priorities.policy.early_iterations * job.iteration_tensors
            priority = pb.Priority(job=job.number, level=level.later, early_tensors=early)
        self._state.send(events.SendToHost(host, pb.NodeCommand(priority=priority)))

    def take_report(self, host: str, report: pb.NodeReport) -> bool:
        """Keep a host's report; return whether the carriers of its interfaces have changed.

        Raises ReportError for a report that cannot be true.
        """
        for verb, jobs in (("reports on", report.jobs), ("awaits", report.awaited)):
            if len(jobs) > MOST_FEATURES:
                raise ReportError(
                    f"{host} {verb} {len(jobs)} jobs; expected at most {MOST_FEATURES}"
                )
        before = _carriers(self._state.nodes.node(host).report)
        self._state.nodes.take(host, report, self._state.now)
        return before != _carriers(report)

    def take_progress(self, host: str, report: pb.NodeReport) -> None:
        """Process what a host reports of its jobs; they change their level with their progress.

        Raises PriorityError for a report that cannot be true.
        """
        priorities, now = self._state.priorities, self._state.now
        levels = priorities.levels()
        for features in report.jobs:
            # A job that has just ended is still reported on.
            if features.job not in levels:
                continue
            job = self._state.jobs.find(features.job)
            if host not in job.hosts:
                # It has no part in the job, or no longer, and no say in its priority.
                continue
            if host in job.request.workers:
                iteration = features.round // job.iteration_tensors
                priorities.report(features.job, host, iteration, features.sent_bytes, now)
            else:
                priorities.sent_only(features.job, host, features.sent_bytes, now)
            job.take_features(host, features)
        for number, level in priorities.update(now).items():
            job = self._state.jobs.find(number)
            for receiver in job.hosts:
                self._assign_level(receiver, job, level)


def _carriers(report: pb.NodeReport | None) -> list[tuple[str, bool]]:
    """Return the interfaces that a host has reported, and whether they lack a carrier."""
    interfaces = () if report is None else report.interfaces
    return [(interface.peer, interface.no_carrier) for interface in interfaces]
