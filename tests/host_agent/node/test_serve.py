"""A host's agent as a service."""

from __future__ import annotations

import resource

from host_agent.io.process_socket import most_memories_of_user
from host_agent.node.serve import raise_descriptor_limit


def test_the_agent_has_descriptors_for_many_processes() -> None:
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        few = most_memories_of_user()
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert most_memories_of_user() >= few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
