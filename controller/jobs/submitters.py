"""Submitters of queued jobs: whether somebody still waits for them.

What `hopsum submit --wait` or a training has submitted is of no use once that is gone, and would
take slots for nobody when there is room. A job that has started ends by its agents.
"""

from __future__ import annotations

from dataclasses import dataclass

from hopsum.controller.jobs import events
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.termination import Termination
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.liveness import SILENCE_SECONDS


@dataclass(slots=True)
class _Sign:
    """When a job was last said to be awaited; `host`: by the agent of one of its hosts, or ""."""

    date: float
    host: str = ""


class Submitters:
    """Withdraws queued jobs (`JobSpec.awaited`) whose submitters are gone."""

    def __init__(self, state: EngineState, termination: Termination) -> None:
        self._state = state
        self._termination = termination
        self._signs: dict[int, _Sign] = {}

    def waits(self, number: int) -> None:
        """Note that somebody waits for a job."""
        if number in self._signs:
            self._signs[number].date = self._state.now

    def take_report(self, host: str, report: pb.NodeReport) -> None:
        """Process what a host's processes wait for; one that has gone is missing there."""
        awaited = {*report.awaited}
        if not awaited and not self._signs:
            return
        for job in self._awaited():
            sign = self._signs[job.number]
            if job.number in awaited:
                sign.date = self._state.now
                # Others have no say in the job's end.
                sign.host = host if host in job.hosts else sign.host
            elif sign.host == host:
                self._withdraw(job, f"the process on {host} that submitted it is gone")
        for number in awaited - self._signs.keys():
            known = self._state.jobs.get(number)
            if known is None or known.state.over:
                reason = known.reason if known else "the controller does not know it"
                command = pb.NodeCommand(leave=pb.LeaveJob(job=number, reason=reason))
                self._state.send(events.SendToHost(host, command))

    def check(self) -> None:
        """Withdraw jobs that nobody has waited for in a while."""
        for job in self._awaited():
            silence = self._state.now - self._signs[job.number].date
            if silence > SILENCE_SECONDS:
                self._withdraw(job, f"its submitter has not been heard of for {silence:.0f} s")

    def was_away(self) -> None:
        """Do not count the time in which the controller was stopped."""
        self._signs.clear()

    def _awaited(self) -> list[Job]:
        """Return the queued jobs that depend on their submitters; each has a sign."""
        queued = [job for job in self._state.jobs.queued() if job.spec.awaited]
        signs, now = self._signs, self._state.now
        self._signs = {job.number: signs.get(job.number) or _Sign(now) for job in queued}
        return queued

    def _withdraw(self, job: Job, why: str) -> None:
        self._state.procedures.start(self._termination.cancel(job, f"withdrawn: {why}"))
