"""Client of a running controller: jobs, switches, slots, diagnosis of stuck jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hopsum.controller.api.rendezvous import address_file, find_controller
from hopsum.controller.jobs.job_state import JobState
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError, Tls, ask_controller, tls_of_environment

if TYPE_CHECKING:
    from hopsum.collectives.plan import JobPlan
    from hopsum.controller.dataplane.slots import SlotState
    from hopsum.controller.telemetry.slot_diagnosis import MissingChild
    from hopsum.network.model import Network

POLL_SECONDS = 0.2
"""Time between looks at a job that is waited for."""
TIMEOUT = 30.0
SUBMIT_TIMEOUT = 300.0
"""Timeout of a submission: all switches install rules, one job after another."""

SLOTS_TIMEOUT = 120.0
"""Timeout for reading all slots of a job one by one."""

_NUMBER = re.compile("[0-9]{1,9}")
"""A job number; longer texts are names."""

_R = TypeVar("_R")


class ControllerClient:
    """Client of the controller at an address (None: the user's running one).

    Of several addresses, separated by commas, that of the controller that leads.

    `tls` None: what the environment says (`tls_of_environment`), but at a Unix socket none.

    Every method raises ControllerError if it cannot be reached or cannot answer.
    """

    def __init__(self, address: str | None = None, tls: Tls | None = None) -> None:
        found = address or find_controller()
        if found is None:
            raise ControllerError(
                f"no controller found ({address_file()} is missing or empty); start one with "
                "`hopsum cluster star:4` (as root), or give --controller ADDRESS"
            )
        self.address = found
        self._tls = tls if tls or found.startswith("unix:") else tls_of_environment()

    def status(self) -> list[pb.JobStatus]:
        """Return every job and its agents."""
        return list(self._ask(lambda stub: stub.Status(pb.StatusRequest(), timeout=TIMEOUT)).jobs)

    def describe(self, job: int) -> tuple[Network, JobPlan]:
        """Return a job's network and current plan."""
        from hopsum.collectives.messages import network_from, plan_from

        request = pb.DescribeRequest(job=job)
        reply: pb.Description = self._ask(lambda stub: stub.Describe(request, timeout=TIMEOUT))
        return network_from(reply.network), plan_from(reply.plan)

    def switches(self, counters: bool = False) -> list[pb.SwitchStatus]:
        """Return every switch, with counters on request."""
        request = pb.SwitchesRequest(counters=counters)
        reply: pb.SwitchesReply = self._ask(lambda stub: stub.Switches(request, timeout=TIMEOUT))
        return list(reply.switches)

    def slots(self, switch: str, first: int, count: int, lanes: bool = False) -> list[SlotState]:
        """Return slots of a switch, read in-band."""
        from hopsum.controller.dataplane.slots import slot_from

        request = pb.InspectRequest(switch=switch, first=first, count=count, lanes=lanes)
        reply: pb.InspectReply = self._ask(lambda stub: stub.Inspect(request, timeout=TIMEOUT))
        return [slot_from(slot) for slot in reply.slots]

    def missing(self, job: int) -> list[MissingChild]:
        """Return the missing children of a job's incomplete slots."""
        from hopsum.controller.telemetry.slot_diagnosis import missing_from

        request = pb.WhyStuckRequest(job=job)
        reply: pb.WhyStuckReply = self._ask(
            lambda stub: stub.WhyStuck(request, timeout=SLOTS_TIMEOUT)
        )
        return [missing_from(message) for message in reply.missing]

    def submit(self, submission: pb.Submission) -> pb.JobInfo:
        """Submit a job; return once its rules are on the switches, or it is queued."""
        info: pb.JobInfo = self._ask(lambda stub: stub.Submit(submission, timeout=SUBMIT_TIMEOUT))
        return info

    def cancel(self, job: str) -> pb.JobInfo:
        """Cancel a job, given as for `job_query`."""
        query = job_query(job)
        info: pb.JobInfo = self._ask(lambda stub: stub.Cancel(query, timeout=SUBMIT_TIMEOUT))
        return info

    def job(self, job: str | int) -> pb.JobInfo:
        """Return a job with its workers' reports, by number, or by a text as for `job_query`."""
        return self._details(job_query(job))

    def _details(self, query: pb.JobQuery) -> pb.JobInfo:
        info: pb.JobInfo = self._ask(lambda stub: stub.JobDetails(query, timeout=TIMEOUT))
        return info

    def wait(self, job: int, limit: float | None = None) -> pb.JobInfo:
        """Return a job once it is over; TimeoutError after `limit` seconds."""
        end = None if limit is None else time.monotonic() + limit
        query = pb.JobQuery(job=job, awaited=True)
        while not JobState((info := self._details(query)).state).over:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"job {info.name} is {info.state} after {limit:g} s")
            time.sleep(POLL_SECONDS)
        return info

    def jobs(self) -> list[pb.JobInfo]:
        """Return all jobs that the controller knows, the oldest first."""
        request = pb.JobsRequest()
        reply: pb.JobsReply = self._ask(lambda stub: stub.Jobs(request, timeout=TIMEOUT))
        return list(reply.jobs)

    def nodes(self) -> list[pb.NodeInfo]:
        """Return all hosts, and their agents' reports."""
        request = pb.NodesRequest()
        reply: pb.NodesReply = self._ask(lambda stub: stub.Nodes(request, timeout=TIMEOUT))
        return list(reply.nodes)

    def use(self) -> pb.UseReply:
        """Return the load of links, and the owners of slots."""
        reply: pb.UseReply = self._ask(lambda stub: stub.Use(pb.UseRequest(), timeout=TIMEOUT))
        return reply

    def set_link(self, link: str, *, up: bool) -> pb.Link:
        """Restore a link of an emulation, given as A-B, or cut it."""
        change = pb.LinkChange(link=link, up=up)
        changed: pb.Link = self._ask(lambda stub: stub.SetLink(change, timeout=TIMEOUT))
        return changed

    def state(self) -> pb.ClusterState:
        """Return the state of the cluster, without the contents of slots."""
        state: pb.ClusterState = self._ask(
            lambda stub: stub.State(pb.StateRequest(), timeout=TIMEOUT)
        )
        return state

    def _ask(self, question: Callable[[Any], _R]) -> _R:
        return ask_controller(self.address, self._tls, question)


def job_query(job: str | int) -> pb.JobQuery:
    """Return the query for a job by number, or by a user's text.

    The job of that name, else of that number.
    """
    if isinstance(job, int):
        return pb.JobQuery(job=job)
    number = int(job) if _NUMBER.fullmatch(job) else 0
    return pb.JobQuery(job=number, name=job)
