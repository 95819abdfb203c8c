"""Links between switches that go down and come back, where switches are BMv2."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.mininet_topos.bmv2_links import WAKING, Bmv2Links
from hopsum.mininet_topos.emulation import Emulation
from hopsum.network.loaders import load_network
from tests.support.bmv2 import need_bmv2
from tests.support.emulated_cluster import emulated_cluster
from tests.support.machine import until

pytestmark = pytest.mark.network
ENDS = ("s1", "s2")


def set_link(interface: str, state: str) -> None:
    subprocess.run(["ip", "link", "set", interface, state], check=True)


def test_a_frame_goes_both_ways_over_a_link_that_has_come_up(tmp_path: Path) -> None:
    network = load_network("line:2x1")
    with Emulation(network, log_folder=tmp_path) as emulation:
        links = Bmv2Links(emulation)
        there, back = (emulation.interface(*ends) for ends in (ENDS, ENDS[::-1]))
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)) as heard:
            heard.setblocking(False)

            def arrived() -> list[str]:
                """Interfaces at which one has arrived since."""
                found = []
                while True:
                    try:
                        frame, (interface, _, kind, *_) = heard.recvfrom(100)
                    except BlockingIOError:
                        return sorted(found)
                    if frame == WAKING and kind != socket.PACKET_OUTGOING:
                        found.append(interface)

            until(lambda: links.states()[ENDS], "the link")
            arrived()
            assert links.states()[ENDS]
            assert arrived() == []
            set_link(there, "down")
            assert not links.states()[ENDS]
            assert arrived() == []
            set_link(there, "up")
            until(lambda: links.states()[ENDS], "the link's return")
            assert arrived() == sorted((there, back))
            # Too quickly to be seen down.
            set_link(back, "down")
            set_link(back, "up")
            until(lambda: links.states()[ENDS], "the link's return")
            assert arrived() == sorted((there, back))
            links.states()
            assert arrived() == []


def test_jobs_run_while_a_link_is_down_at_the_switch_and_after(tmp_path: Path) -> None:
    need_bmv2()
    network = load_network("line:2x3")
    uplink, downlink = (f"s2-eth{network.port('s2', peer)}" for peer in ("s1", "h6"))
    options = ("--engine", "bmv2", "--link-rate", "5Mbit")
    with emulated_cluster(tmp_path, "line:2x3", *options) as up:

        def planned_around() -> bool:
            return any("planned around" in link.health for link in up.queries.use().links)

        def run(name: str, workers: str, server: str) -> None:
            up.queries.submit(make_submission(name, workers, server, elements=2000))
            up.finished(name)

        set_link(uplink, "down")
        up.wait_until(planned_around, "the link's failure")
        run("same-switch", "h4,h5", "h6")
        set_link(uplink, "up")
        up.wait_until(lambda: not any(link.health for link in up.queries.use().links), "its return")
        run("over", "h1,h4", "ps")
        set_link(downlink, "down")
        run("across", "h1,h4", "ps")
