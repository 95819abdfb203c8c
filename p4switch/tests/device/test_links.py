"""Links of interfaces, as a selector's members watch them."""

from __future__ import annotations

import queue
import subprocess

from p4switch.device.links import LinkMonitor
from tests.support.machine import PATIENCE


def test_a_link_that_goes_comes_back_and_is_removed(veth: tuple[str, str]) -> None:
    news: queue.Queue[tuple[int, bool]] = queue.Queue()

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", "link", *arguments], check=True)

    monitor = LinkMonitor({7: veth[0]}, lambda port, up: news.put((port, up)))
    try:
        assert news.empty(), "it is up"
        ip("set", veth[1], "down")
        assert news.get(timeout=PATIENCE) == (7, False), "the peer's end counts"
        ip("set", veth[1], "up")
        assert news.get(timeout=PATIENCE) == (7, True)
        ip("delete", veth[0])
        assert news.get(timeout=PATIENCE) == (7, False)
    finally:
        monitor.close()


def test_a_link_that_is_down_at_the_start_is_reported_at_once(veth: tuple[str, str]) -> None:
    subprocess.run(["ip", "link", "set", veth[0], "down"], check=True)
    news: list[tuple[int, bool]] = []
    LinkMonitor({1: veth[0], 2: "nonesuch"}, lambda port, up: news.append((port, up))).close()
    assert news == [(1, False), (2, False)]
