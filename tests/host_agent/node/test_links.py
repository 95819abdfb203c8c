"""The links that a job's frames take from a host in real time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hopsum.host_agent.node.real import RealEnvironment
from hopsum.host_agent.task import TaskError
from tests.support.memory_port import MemoryPort

LINKS = {0: "s1", 1: "s2"}


class SeveralLinks(MemoryPort):
    """A port with an interface a link."""

    def __init__(self, interfaces: Mapping[int, str]) -> None:
        super().__init__()
        self.interfaces = interfaces
        self.used: dict[int, Mapping[int, int]] = {}

    def use_links(self, job: int, ports: Mapping[int, int]) -> None:
        self.used[job] = ports


def environment(port: MemoryPort) -> RealEnvironment:
    return RealEnvironment("h1", lambda number: None, lambda number: None, port=port)


def test_trees_take_the_interfaces_of_their_links() -> None:
    port = SeveralLinks({0: "eth1", 1: "eth2"})
    here = environment(port)
    try:
        here.use_links(7, {0: 1, 1: 0}, LINKS)
        assert port.used == {7: {0: 1, 1: 0}}
    finally:
        here.close()


@pytest.mark.parametrize("interfaces", [{}, {0: "eth1"}])
def test_a_link_without_an_interface_is_an_error(interfaces: dict[int, str]) -> None:
    """Else frames would leave by a link where switches drop them."""
    here = environment(SeveralLinks(interfaces))
    try:
        with pytest.raises(
            TaskError, match=r"links to s1, s2, .* --interface 0@NAME --interface 1"
        ):
            here.use_links(7, {0: 1}, LINKS)
        here.use_links(7, {}, LINKS)  # a job without trees
        if not interfaces:
            here.use_links(7, {0: 0}, {0: "s1"})
    finally:
        here.close()
