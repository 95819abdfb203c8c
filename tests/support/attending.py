"""An agent of one host that attends a single job until it ends."""

from __future__ import annotations

from hopsum.host_agent.io.controller_client import AgentStream
from hopsum.host_agent.io.port import FramePort
from hopsum.host_agent.node.real import HostLoop


def attend(client: AgentStream, port: FramePort) -> None:
    """Play this host's part in a client's job until it is released; raises what ends it here."""
    loop = HostLoop(port, client.host)
    loop.join(client)
    while loop.agent.members and not loop.agent.failures:
        loop.turn()
    failures = list(loop.agent.failures.values())
    loop.close()
    for failure in failures:
        raise failure
