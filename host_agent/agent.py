"""One host of a job as a process: attends the controller until the job is over."""

from __future__ import annotations

from host_agent.io.controller_client import ControllerClient
from host_agent.node.member import PeerGone as PeerGone
from host_agent.node.members import Members
from host_agent.task import Task as Task
from packet_io.port import FramePort

PATIENCE_SECONDS = 60.0


def attend(client: ControllerClient, port: FramePort, *beside: ControllerClient) -> None:
    """Play this host's part in the job that the controller assigns, until it is released.

    `beside`: clients of jobs that this one needs, such as that of its bit vectors. Raises
    ControllerError; a job that fails is reported to the controller and raised, and the others end.
    """
    members = Members(port)
    for each in (client, *beside):
        members.join(each, PATIENCE_SECONDS)
    while members.members and not members.failures:
        members.turn(PATIENCE_SECONDS)
    failures = dict(members.failures)
    for job, failure in failures.items():
        for member in members.members.values():
            member.client.failed(f"job {job} has failed here: {failure}")
    members.close()
    for failure in failures.values():
        raise failure
