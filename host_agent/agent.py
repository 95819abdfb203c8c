"""One host of one job as a process: attends the controller until the job is over."""

from __future__ import annotations

from host_agent.controller_client import ControllerClient
from host_agent.node.member import PeerGone as PeerGone
from host_agent.node.members import Members
from host_agent.task import Task as Task
from packet_io import FramePort

PATIENCE_SECONDS = 60.0


def attend(client: ControllerClient, port: FramePort) -> None:
    """Play this host's part in the job that the controller assigns, until it is released.

    Raises ControllerError; a job that fails is reported to the controller and raised.
    """
    members = Members(port)
    members.join(client, PATIENCE_SECONDS)
    while members.members:
        members.turn(PATIENCE_SECONDS)
    failure = members.failures.get(client.job)
    members.close()
    if failure is not None:
        raise failure
