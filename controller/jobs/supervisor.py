"""Supervision of active jobs: whether they go on as they are, end, or need other hosts or plans."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hopsum.collectives.plan import PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.agent_streams import AgentStreams
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.hosts import Hosts
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.plan_store import Change
from hopsum.controller.jobs.procedures import Procedure
from hopsum.controller.jobs.reoptimization import Reoptimization
from hopsum.controller.jobs.termination import Termination
from hopsum.controller.telemetry.nodes import REPORT_SECONDS
from hopsum.network.model import shorten
from hopsum.protocol import hopsum_pb2 as pb

LOGGER = logging.getLogger("hopsum.engine")

REASON_SECONDS = 0.2
"""Time after a failure in which the job's other agents may report what they know of it."""


class Supervisor:
    """Reviews active jobs."""

    def __init__(
        self,
        state: EngineState,
        epochs: Epochs,
        reoptimization: Reoptimization,
        agents: AgentStreams,
        hosts: Hosts,
        termination: Termination,
    ) -> None:
        self._state = state
        self._epochs = epochs
        self._reoptimization = reoptimization
        self._agents = agents
        self._hosts = hosts
        self._termination = termination

    def review(self, active: ActiveJob) -> None:
        """Review a job: end it, replace its servers, or reconsider its plan.

        A server that is lost may come back for a while; then another host takes its place.
        """
        job, tracker = active.job, active.tracker
        if active.ending or active.progress is None:
            return
        if job.outcome is JobState.FINISHED:
            self._termination.end(job, JobState.FINISHED)
            return
        if not job.active:
            return
        active.note_progress(self._state.now)
        lost, fatal = self._failures(active)
        if not lost and not fatal:
            active.lost_since = None
        elif active.lost_since is None:
            active.lost_since = self._state.now
            self._state.at(self._state.now + self._state.settings.grace)
        if fatal:
            if active.failed_since is None:
                active.failed_since = self._state.now
                self._state.at(self._state.now + REASON_SECONDS)
            if self._state.now >= active.failed_since + REASON_SECONDS or tracker.over:
                self._termination.end(job, JobState.FAILED, _in_short(fatal))
        elif tracker.released:
            self._termination.end(job, JobState.FINISHED)
        elif active.busy:
            return
        elif active.lost_since is not None and self._waited(active.lost_since):
            active.lost_since = None
            self._decide(active, self._serve_elsewhere(active, lost))
        elif self._state.settings.replanning.live and tracker.underway:
            self._reconsider(active)

    def _waited(self, since: float) -> bool:
        """Whether agents have had the time that they are given to come back."""
        return self._state.now >= since + self._state.settings.grace

    def _failures(self, active: ActiveJob) -> tuple[dict[str, str], dict[str, str]]:
        """Return the lost servers of a job that others may replace, and what ends it, by host."""
        tracker = active.tracker
        serving = tracker.plan.servers
        failures = {
            host: why
            for host, why in tracker.failures().items()
            if tracker.agents[host].role != "server" or host in serving
        }
        absent = active.absent
        active.all_back = active.all_back or not absent
        # The journal may lack that it had started; then the first agent that is back says so.
        if tracker.started and not active.all_back and self._waited(self._state.open_since):
            failures = dict.fromkeys(absent, "not attached since the restart") | failures
        fatal = {
            host: why
            for host, why in failures.items()
            if tracker.agents[host].role != "server"
            or host not in serving
            or tracker.agents[host].state == pb.FAILED
        }
        return {host: why for host, why in failures.items() if host not in fatal}, fatal

    def _decide(self, active: ActiveJob, steps: Procedure[None]) -> None:
        """Start a procedure that decides on a job's next plan; one at a time."""
        active.busy = True

        def done(value: Any, error: Exception | None) -> None:
            active.busy = False
            if isinstance(error, DriverError | PlanError | TimeoutError):
                # It continues under its current plan, as far as that is installed.
                LOGGER.warning("job %d keeps its plan: %s", active.job.number, error)
            elif error is not None:
                LOGGER.error("job %d: its plan", active.job.number, exc_info=error)

        self._state.procedures.start(steps, done)

    def _serve_elsewhere(self, active: ActiveJob, lost: Mapping[str, str]) -> Procedure[None]:
        """Replace lost servers by other hosts; the job fails where that is impossible."""
        job, loads = active.job, self._state.jobs.loads()
        free = sorted(
            (host for host in self._hosts.in_reach() if host not in job.hosts),
            key=lambda host: loads.get(host, 0),
        )
        others = dict(zip(lost, free, strict=False))
        if len(others) < len(lost):
            reasons = {h: f"{why}, and no other host can serve" for h, why in lost.items()}
            self._termination.end(job, JobState.FAILED, _in_short(reasons))
            return
        serving = dict.fromkeys((*job.request.servers, *active.plan.servers))
        servers = tuple(others.get(host, host) for host in serving)
        why = ", ".join(f"{other} serves in place of {host}" for host, other in others.items())
        try:
            yield from self._epochs.change(job.number, Change(why, servers))
        except (DriverError, PlanError, TimeoutError) as error:
            if job.outcome is None:
                reasons = {host: f"{why}; {error}" for host, why in lost.items()}
                self._termination.end(job, JobState.FAILED, _in_short(reasons))
            return
        LOGGER.warning("job %d: %s", job.number, why)

    def _reconsider(self, active: ActiveJob) -> None:
        """Check every second whether a job's plan still suits the network's state.

        Occasionally hold a boundary until it is known whether other weights pay off.
        """
        plan, job, tracker = active.plan, active.job, active.tracker
        if not plan.trees and not plan.period:
            return
        if active.replanner is None:
            self._reoptimization.replanner(active, self._state.now)
        elif self._state.now - active.replanner.measured >= REPORT_SECONDS:
            self._decide(active, self._look(active))
        elif plan.period:
            boundary = tracker.open_boundary
            # A job older than this controller may have an answer to its next boundary.
            decided = not active.restored or tracker.decided
            if not tracker.deliberate:
                tracker.deliberate = decided and active.replanner.recut_due(self._state.now)
            elif boundary is not None:
                self._decide(active, self._recut(active, job.elements, boundary))

    def _look(self, active: ActiveJob) -> Procedure[None]:
        job = active.job
        cause = yield from self._reoptimization.look(
            active, job.round, job.elements, job.sent_bytes, self._state.now
        )
        if cause is not None:
            LOGGER.info("job %d: a new epoch after a %s", job.number, cause)

    def _recut(self, active: ActiveJob, elements: int, boundary: int) -> Procedure[None]:
        try:
            yield from self._reoptimization.recut(active, elements, self._state.now)
        except (DriverError, PlanError, TimeoutError) as error:
            LOGGER.warning("job %d: %s", active.job.number, error)
        active.tracker.deliberate = False
        if active.job.active:
            self._agents.tell(active, active.tracker.decide(boundary, active.plan))


def _in_short(failures: Mapping[str, str]) -> str:
    """Return hosts with the reasons for their failures, each reason once."""
    hosts: dict[str, list[str]] = {}
    for host, why in failures.items():
        hosts.setdefault(why, []).append(host)
    return "; ".join(f"{shorten(names)}: {why}" for why, names in hosts.items())
