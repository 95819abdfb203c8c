"""What people ask a running controller: jobs, switches, slots, and why a job is stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from collectives.messages import network_from, plan_from
from collectives.network import Network
from collectives.plan import JobPlan
from controller.rendezvous import address_file, find_controller
from controller.slots import SlotState, slot_from
from controller.stuck import Missing, find_missing, job_slots
from protocol import hopsum_pb2 as pb
from protocol import hopsum_pb2_grpc as pb_grpc
from protocol.channel import CHANNEL_OPTIONS, ControllerError, in_words

TIMEOUT = 30.0

_R = TypeVar("_R")


class ControllerQueries:
    """Questions to the controller at an address (None: the user's running one).

    Every method raises ControllerError if it cannot be reached or cannot answer.
    """

    def __init__(self, address: str | None = None) -> None:
        found = address or find_controller()
        if found is None:
            raise ControllerError(
                f"no controller is running ({address_file()} names none); "
                "start one with `hopsum run --world mininet`, or give --controller ADDRESS"
            )
        self.address = found

    def status(self) -> list[pb.JobStatus]:
        """Every job and its agents."""
        return list(self._ask(lambda stub: stub.Status(pb.StatusRequest(), timeout=TIMEOUT)).jobs)

    def describe(self, job: int) -> tuple[Network, JobPlan]:
        """A job's network and current plan."""
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
        request = pb.InspectRequest(switch=switch, first=first, count=count, lanes=lanes)
        reply: pb.InspectReply = self._ask(lambda stub: stub.Inspect(request, timeout=TIMEOUT))
        return [slot_from(slot) for slot in reply.slots]

    def missing(self, job: int) -> list[Missing]:
        """What the incomplete slots of a job wait for."""
        network, plan = self.describe(job)
        slots = {
            switch: [
                state for part in ranges for state in self.slots(switch, part.start, len(part))
            ]
            for switch, ranges in job_slots(plan).items()
        }
        return find_missing(network, plan, slots)

    def _ask(self, question: Callable[[Any], _R]) -> _R:
        with grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            try:
                return question(pb_grpc.ControllerStub(channel))
            except grpc.RpcError as error:
                words = in_words(error)
                raise ControllerError(f"controller at {self.address}: {words}") from None
