"""Two controllers of one cluster, with etcd: one is killed, one hangs, etcd is away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.api.client import ControllerClient
from controller.ha.etcd import Etcd
from mininet_topos.emulation import Emulation
from network.loaders import load_network
from protocol.channel import ControllerError
from tests.support.etcd import EtcdServer, etcd_server, needs_etcd
from tests.support.jobs import GOING
from tests.support.machine import until
from tests.support.served_cluster import LINK_RATE, TOPOLOGY, ServedCluster

pytestmark = [pytest.mark.network, pytest.mark.long, needs_etcd]

LEADS = "controller of star:4 at "
ROUNDS = 320


@dataclass
class Pair:
    """Two controllers, and a client that knows of both."""

    etcd: EtcdServer
    controllers: list[ServedCluster]

    @property
    def addresses(self) -> str:
        return ",".join(f"unix:{each.folder}/controller" for each in self.controllers)

    def start(self, number: int) -> None:
        one = self.controllers[number]
        one.serve(f"unix:{one.folder}/controller", "--jobs", str(self.etcd.address))
        one.address = self.addresses

    def said(self, number: int) -> str:
        return self.controllers[number].log_file.read_text()

    def until_said(self, number: int, what: str) -> None:
        until(lambda: what in self.said(number), f"{what!r} of controller {number}")

    def send(self, number: int, what: signal.Signals) -> None:
        process = self.controllers[number].controller
        assert process is not None
        process.send_signal(what)
        if what is signal.SIGKILL:
            process.wait()

    def rounds(self) -> int:
        """The job's progress; the last known while no controller answers."""
        try:
            return ControllerClient(self.addresses).job("long").round
        except ControllerError:
            return 0

    def go_on(self) -> None:
        """Wait until the job has gone on for some rounds."""
        until(lambda: self.rounds() > 0, "an answer")
        seen = self.rounds()
        until(lambda: self.rounds() > seen + 2, "rounds")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    network = load_network(TOPOLOGY, link_rate=LINK_RATE)
    environment = {**os.environ, "COLUMNS": "200"}
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with etcd_server(tmp_path) as etcd, Emulation(network) as emulation:
        controllers = [
            ServedCluster(
                folder, network, emulation, environment | {"XDG_RUNTIME_DIR": str(folder)}
            )
            for folder in folders
        ]
        try:
            yield Pair(etcd, controllers)
        finally:
            for each in controllers:
                if each.controller is not None and each.controller.poll() is None:
                    each.controller.kill()
                    each.controller.wait()


def test_a_job_goes_on_in_its_epoch_whichever_controller_leads(pair: Pair) -> None:
    one, two = pair.controllers
    pair.start(0)
    pair.start(1)
    assert LEADS in pair.said(0)
    pair.until_said(1, f"standing by: the controller at unix:{one.folder}/controller")
    for host in one.network.hosts:
        one.attach(host, pair.addresses)
    until(lambda: one.attached() == set(one.network.hosts), "all agents")
    options = ("--rounds", str(ROUNDS), "--elements", "10000")
    # Its options name the one that stands by first: commands go on to the one that leads.
    two.address = ",".join(reversed(pair.addresses.split(",")))
    two.ask("submit", "long", "--workers", "h1,h2,h3", *options)
    pair.go_on()

    pair.send(0, signal.SIGKILL)
    pair.until_said(1, LEADS)
    pair.go_on()

    # One that hangs keeps its connections; its lease ends, and agents ask in vain.
    pair.start(0)
    pair.until_said(0, "standing by")
    pair.send(1, signal.SIGSTOP)
    pair.until_said(0, LEADS)
    pair.go_on()
    pair.send(1, signal.SIGCONT)
    pair.until_said(1, "no longer leader")

    # Without etcd there is no leader; the job continues.
    pair.etcd.pause()
    pair.until_said(0, "no longer leader: etcd has not answered for 3 s")
    pair.etcd.go_on()
    pair.go_on()

    until(lambda: ControllerClient(pair.addresses).job("long").state not in GOING, "the end")
    job = one.ask("job", "long")
    assert job["state"] == "finished", job
    assert (job["checked"], job["wrong"]) == (3 * ROUNDS * 10_000, 0)
    assert job["epoch"] == 1
    kept = Etcd(pair.etcd.address).below(pair.etcd.address.key("jobs", ""))
    # The history of job numbers, and the job.
    assert list(kept) == [pair.etcd.address.key("jobs", f"{n:08}") for n in (0, 1)]
