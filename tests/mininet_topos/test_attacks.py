"""Frames that hosts forge while a job runs: strangers, workers of another job, one of its own."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Collection
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.network.loaders import load_network
from hopsum.simulation.soak.attacks import forge
from hopsum.simulation.soak.schedule import Forgery
from tests.support.bmv2 import need_bmv2
from tests.support.emulated_cluster import RunningCluster, emulated_cluster
from tests.support.jobs import GOING

pytestmark = pytest.mark.network

TOPOLOGY = "star:5"
WORKERS = ("h1", "h2")
SERVER = "ps"
ROUNDS, ELEMENTS = 120, 5000
ATTACKERS = {
    "h2": tuple(each for each in Forgery if each is not Forgery.FIELDS),
    "h3": tuple(Forgery),
    "h4": tuple(Forgery),
}
"""A worker, who can change its own contributions; a host in no job; a worker of another job."""
BURST = 16
"""Frames that an attacker sends at a time."""
SENDER = """
import contextlib, socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
    out.bind((sys.argv[1], 0))
    print("ready", flush=True)
    for line in sys.stdin:
        with contextlib.suppress(OSError):
            out.send(bytes.fromhex(line))
"""
"""What is too long for the interface does not go out."""


class Overheard:
    """The last frames of a job at the switch's ports of its hosts, by the host."""

    def __init__(self, job: int, interfaces: dict[str, str]) -> None:
        self._job = job.to_bytes(2, "big")
        self._hosts = {interface: host for host, interface in interfaces.items()}
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.setblocking(False)
        self.frames: dict[str, deque[bytes]] = {host: deque(maxlen=64) for host in interfaces}

    def listen(self) -> None:
        """Take what has crossed the ports since."""
        while True:
            try:
                frame, (interface, *_) = self._socket.recvfrom(2048)
            except BlockingIOError:
                return
            host = self._hosts.get(interface)
            if host and frame[36:38] == b"HS" and frame[46:48] == self._job:
                self.frames[host].append(frame)

    def others(self, attacker: str) -> list[bytes]:
        """Return frames of hosts other than the attacker."""
        return [
            frame for host, frames in self.frames.items() if host != attacker for frame in frames
        ]

    def close(self) -> None:
        self._socket.close()


def sender(up: RunningCluster, host: str) -> subprocess.Popen[str]:
    """Start a program in a host's namespace that sends the frames which it is given in lines."""
    process = subprocess.Popen(
        ["nsenter", "-t", str(up.agent(host)), "-n", sys.executable, "-c", SENDER, f"{host}-eth0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def attack(up: RunningCluster, job: str, hosts: Collection[str]) -> Counter[tuple[str, Forgery]]:
    """Let attackers send while a job goes on; return the number of frames of each."""
    network = load_network(TOPOLOGY)
    ports = {host: f"s1-eth{network.port('s1', host)}" for host in hosts}
    overheard = Overheard(up.queries.job(job).job, ports)
    attackers = {host: sender(up, host) for host in ATTACKERS}
    rng = random.Random(1)
    sent: Counter[tuple[str, Forgery]] = Counter()
    try:
        while up.job(job)["state"] in GOING:
            overheard.listen()
            for host, process in attackers.items():
                known = overheard.others(host)
                for _ in range(BURST if known else 0):
                    what = rng.choice(ATTACKERS[host])
                    assert process.stdin is not None
                    process.stdin.write(forge(what, rng.choice(known), rng).hex() + "\n")
                    process.stdin.flush()
                    sent[host, what] += 1
    finally:
        overheard.close()
        for process in attackers.values():
            process.communicate()
    return sent


@pytest.mark.parametrize("engine", ["embedded", "bmv2"])
def test_forged_frames_change_no_sum(engine: str, tmp_path: Path) -> None:
    if engine == "bmv2":
        need_bmv2()
    with emulated_cluster(tmp_path, TOPOLOGY, "--engine", engine, "--link-rate", "5Mbit") as up:
        for name, workers in (("job", WORKERS), ("other", ("h4", "h5"))):
            work = make_submission(
                name, ",".join(workers), SERVER, elements=ELEMENTS, rounds=ROUNDS
            )
            up.queries.submit(work)
        sent = attack(up, "job", (*WORKERS, SERVER))
        assert set(sent) == {(host, what) for host, whats in ATTACKERS.items() for what in whats}
        job = up.finished("job")
        assert job["checked"] == len(WORKERS) * ROUNDS * ELEMENTS
        up.finished("other")
        [switch] = up.queries.switches(counters=True)
        assert switch.outcomes["not_admitted"] > 0
        assert switch.outcomes["malformed"] > 0
