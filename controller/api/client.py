"""What people ask a running controller: jobs, switches, slots, and why a job is stuck."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from controller.api.rendezvous import address_file, find_controller
from protocol import hopsum_pb2 as pb
from protocol.channel import ControllerError, Tls, ask_controller, tls_of_environment

if TYPE_CHECKING:
    from collectives.plan import JobPlan
    from controller.dataplane.slots import SlotState
    from controller.telemetry.slot_diagnosis import Missing
    from network.model import Network

TIMEOUT = 30.0
SUBMIT_TIMEOUT = 300.0
"""All switches must take a job's rules, one job after the other."""

SLOTS_TIMEOUT = 120.0
"""All slots of a job are read, one after the other."""

_NUMBER = re.compile("[0-9]{1,9}")
"""Of a job; what is longer is none."""

_R = TypeVar("_R")


class ControllerClient:
    """Questions to the controller at an address (None: the user's running one).

    Of several addresses, with commas between, that of the controller that leads.

    `tls` None: what the environment says (`tls_of_environment`), but at a Unix socket none.

    Every method raises ControllerError if it cannot be reached or cannot answer.
    """

    def __init__(self, address: str | None = None, tls: Tls | None = None) -> None:
        found = address or find_controller()
        if found is None:
            raise ControllerError(
                f"no controller is running ({address_file()} names none); "
                "start one with `hopsum cluster star:4` (as root), or give --controller ADDRESS"
            )
        self.address = found
        self._tls = tls if tls or found.startswith("unix:") else tls_of_environment()

    def status(self) -> list[pb.JobStatus]:
        """Every job and its agents."""
        return list(self._ask(lambda stub: stub.Status(pb.StatusRequest(), timeout=TIMEOUT)).jobs)

    def describe(self, job: int) -> tuple[Network, JobPlan]:
        """Return a job's network and current plan."""
        from collectives.messages import network_from, plan_from

        request = pb.DescribeRequest(job=job)
        reply: pb.Description = self._ask(lambda stub: stub.Describe(request, timeout=TIMEOUT))
        return network_from(reply.network), plan_from(reply.plan)

    def switches(self, counters: bool = False) -> list[pb.SwitchStatus]:
        """Every switch, with its counters if asked."""
        request = pb.SwitchesRequest(counters=counters)
        reply: pb.SwitchesReply = self._ask(lambda stub: stub.Switches(request, timeout=TIMEOUT))
        return list(reply.switches)

    def slots(self, switch: str, first: int, count: int, lanes: bool = False) -> list[SlotState]:
        """Slots of a switch, read in-band."""
        from controller.dataplane.slots import slot_from

        request = pb.InspectRequest(switch=switch, first=first, count=count, lanes=lanes)
        reply: pb.InspectReply = self._ask(lambda stub: stub.Inspect(request, timeout=TIMEOUT))
        return [slot_from(slot) for slot in reply.slots]

    def missing(self, job: int) -> list[Missing]:
        """Return what the incomplete slots of a job wait for."""
        from controller.telemetry.slot_diagnosis import missing_from

        request = pb.WhyStuckRequest(job=job)
        reply: pb.WhyStuckReply = self._ask(
            lambda stub: stub.WhyStuck(request, timeout=SLOTS_TIMEOUT)
        )
        return [missing_from(message) for message in reply.missing]

    def submit(self, submission: pb.Submission) -> pb.JobInfo:
        """Hand a job in; returns once its rules are on the switches, or it is queued."""
        info: pb.JobInfo = self._ask(lambda stub: stub.Submit(submission, timeout=SUBMIT_TIMEOUT))
        return info

    def cancel(self, job: str) -> pb.JobInfo:
        """End a job, given as `job_query` reads it."""
        query = job_query(job)
        info: pb.JobInfo = self._ask(lambda stub: stub.Cancel(query, timeout=SUBMIT_TIMEOUT))
        return info

    def job(self, job: str | int) -> pb.JobInfo:
        """Return a job with its workers' reports, by number, or as `job_query` reads a text."""
        query = job_query(job)
        info: pb.JobInfo = self._ask(lambda stub: stub.JobDetails(query, timeout=TIMEOUT))
        return info

    def jobs(self) -> list[pb.JobInfo]:
        """All jobs the controller knows, the oldest first."""
        request = pb.JobsRequest()
        reply: pb.JobsReply = self._ask(lambda stub: stub.Jobs(request, timeout=TIMEOUT))
        return list(reply.jobs)

    def nodes(self) -> list[pb.NodeInfo]:
        """All hosts, and what their agents reported."""
        request = pb.NodesRequest()
        reply: pb.NodesReply = self._ask(lambda stub: stub.Nodes(request, timeout=TIMEOUT))
        return list(reply.nodes)

    def use(self) -> pb.UseReply:
        """Return what links carry, and who holds slots."""
        reply: pb.UseReply = self._ask(lambda stub: stub.Use(pb.UseRequest(), timeout=TIMEOUT))
        return reply

    def state(self) -> pb.ClusterState:
        """Return all that is known of the cluster but what its slots hold."""
        state: pb.ClusterState = self._ask(
            lambda stub: stub.State(pb.StateRequest(), timeout=TIMEOUT)
        )
        return state

    def _ask(self, question: Callable[[Any], _R]) -> _R:
        return ask_controller(self.address, self._tls, question)


def job_query(job: str | int) -> pb.JobQuery:
    """Return a job by its number, or as people name it.

    The job of that name, else of that number.
    """
    if isinstance(job, int):
        return pb.JobQuery(job=job)
    number = int(job) if _NUMBER.fullmatch(job) else 0
    return pb.JobQuery(job=number, name=job)
