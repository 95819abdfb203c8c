"""Controllers of one cluster, with etcd: leaders are killed, one hangs, etcd is away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hopsum.controller.api.client import ControllerClient
from hopsum.controller.ha.etcd import Etcd
from hopsum.mininet_topos.emulation import Emulation
from hopsum.network.loaders import load_network
from hopsum.protocol.channel import ControllerError
from tests.support.etcd import EtcdServer, etcd_server, needs_etcd
from tests.support.jobs import GOING
from tests.support.machine import until
from tests.support.served_cluster import LINK_RATE, TOPOLOGY, ServedCluster

pytestmark = [pytest.mark.network, needs_etcd]

LEADS = "controller of star:4 at "
ROUNDS = 320
ELEMENTS = 10_000


@dataclass
class Controllers:
    """Three controllers, and a client that knows of all."""

    etcd: EtcdServer
    served: list[ServedCluster]

    @property
    def addresses(self) -> str:
        return ",".join(f"unix:{each.folder}/controller" for each in self.served)

    def start(self, number: int) -> None:
        one = self.served[number]
        one.serve(f"unix:{one.folder}/controller", "--jobs", str(self.etcd.address))
        one.address = self.addresses

    def said(self, number: int) -> str:
        return self.served[number].log_file.read_text()

    def until_said(self, number: int, what: str) -> None:
        until(lambda: what in self.said(number), f"{what!r} of controller {number}")

    def send(self, number: int, what: signal.Signals) -> None:
        process = self.served[number].controller
        assert process is not None
        process.send_signal(what)
        if what is signal.SIGKILL:
            process.wait()

    def rounds(self) -> int:
        """The job's progress; 0 while no controller answers."""
        try:
            return ControllerClient(self.addresses).job("long").round
        except ControllerError:
            return 0

    def check_end(self, rounds: int) -> None:
        """Wait until the job has ended, in its first epoch and with exact sums."""
        client = ControllerClient(self.addresses)
        until(lambda: client.job("long").state not in GOING, "the end")
        job = self.served[0].ask("job", "long")
        assert job["state"] == "finished", job
        assert (job["checked"], job["wrong"]) == (3 * rounds * ELEMENTS, 0)
        assert job["epoch"] == 1

    def attach_all(self) -> None:
        """Start an agent on each host, and wait until the leader knows them."""
        one = self.served[0]
        for host in one.network.hosts:
            one.attach(host, self.addresses)
        until(lambda: one.attached() == set(one.network.hosts), "all agents")

    def submit(self, rounds: int) -> None:
        """Submit a job by a command that asks the controllers in reverse order."""
        last = self.served[-1]
        last.address = ",".join(reversed(self.addresses.split(",")))
        options = ("--rounds", str(rounds), "--elements", str(ELEMENTS))
        last.ask("submit", "long", "--workers", "h1,h2,h3", *options)

    def go_on(self) -> None:
        """Wait until the job has gone on for some rounds."""
        until(lambda: self.rounds() > 0, "an answer")
        seen = self.rounds()
        until(lambda: self.rounds() > seen + 2, "rounds")


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    network = load_network(TOPOLOGY, link_rate=LINK_RATE)
    environment = {**os.environ, "COLUMNS": "200"}
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    with etcd_server(tmp_path) as etcd, Emulation(network) as emulation:
        served = [
            ServedCluster(
                folder, network, emulation, environment | {"XDG_RUNTIME_DIR": str(folder)}
            )
            for folder in folders
        ]
        try:
            yield Controllers(etcd, served)
        finally:
            for each in served:
                if each.controller is not None and each.controller.poll() is None:
                    each.controller.kill()
                    each.controller.wait()


def test_a_job_goes_on_in_its_epoch_as_leaders_are_killed(controllers: Controllers) -> None:
    rounds = ROUNDS // 3
    for number in range(3):
        controllers.start(number)
    assert LEADS in controllers.said(0)
    standing_by = {1, 2}
    for number in standing_by:
        controllers.until_said(number, "standing by: the controller at")
    controllers.attach_all()
    controllers.submit(rounds)
    leader = 0
    while standing_by:
        controllers.go_on()
        controllers.send(leader, signal.SIGKILL)
        until(lambda: any(LEADS in controllers.said(n) for n in standing_by), "another leader")
        [leader] = [number for number in standing_by if LEADS in controllers.said(number)]
        standing_by.remove(leader)
    controllers.check_end(rounds)


@pytest.mark.long
def test_a_job_goes_on_as_a_leader_hangs_and_without_etcd(controllers: Controllers) -> None:
    one = controllers.served[0]
    controllers.start(0)
    controllers.start(1)
    controllers.until_said(1, f"standing by: the controller at unix:{one.folder}/controller")
    controllers.attach_all()
    controllers.submit(ROUNDS)
    controllers.go_on()

    # One that hangs keeps its connections; its lease ends, and agents ask in vain.
    controllers.send(0, signal.SIGSTOP)
    controllers.until_said(1, LEADS)
    controllers.go_on()
    controllers.send(0, signal.SIGCONT)
    controllers.until_said(0, "no longer leader")

    # Without etcd there is no leader; the job continues.
    controllers.etcd.pause()
    controllers.until_said(1, "no longer leader: etcd has not answered for 3 s")
    controllers.etcd.go_on()
    controllers.go_on()
    controllers.check_end(ROUNDS)
    kept = Etcd(controllers.etcd.address).below(controllers.etcd.address.key("jobs", ""))
    # The history of job numbers, and the job.
    assert list(kept) == [controllers.etcd.address.key("jobs", f"{n:08}") for n in (0, 1)]
