"""One host of a job as a process: attends the controller until the job is over."""

from __future__ import annotations

from host_agent.io.controller_client import AgentStream
from host_agent.node.member import PeerGone as PeerGone
from host_agent.node.real import HostLoop
from host_agent.task import Task as Task
from packet_io.port import FramePort

PATIENCE_SECONDS = 60.0


def attend(client: AgentStream, port: FramePort, *beside: AgentStream) -> None:
    """Play this host's part in the job that the controller assigns, until it is released.

    `beside`: clients of jobs that this one needs, such as that of its bit vectors. Raises
    ControllerError; a job that fails is reported to the controller and raised, and the others end.
    """
    loop = HostLoop(port, client.host)
    agent = loop.agent
    # Those that this one needs first: of one level, their frames go first in every turn.
    for each in (*beside, client):
        loop.join(each, PATIENCE_SECONDS)
    while agent.members and not agent.failures:
        loop.turn(PATIENCE_SECONDS)
    failures = dict(agent.failures)
    for job, failure in failures.items():
        for member in agent.members.values():
            member.stream.failed(f"job {job} has failed here: {failure}")
    loop.close()
    for failure in failures.values():
        raise failure
