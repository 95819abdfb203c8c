"""A cut of a real management network, over real gRPC: jobs sum on."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hopsum.network.loaders import load_network
from hopsum.protocol.liveness import OUTAGE_SECONDS, PING_SECONDS, PING_TIMEOUT
from tests.support.jobs import GOING
from tests.support.machine import until
from tests.support.machines import Machines, inside, machines

pytestmark = [pytest.mark.network, pytest.mark.long]

BIN = Path(sys.executable).parent
CONTROLLER = "192.0.2.1:9600"
ADDRESSES = {"ctl": "192.0.2.1/24", "h1": "192.0.2.21/24", "h2": "192.0.2.22/24"}
CUT_SECONDS = 15.0
RATE = 8_000_000
ELEMENTS = 100_000
ROUNDS = 60
"""At RATE they take more than twenty seconds, on any machine."""


def test_the_cut_is_longer_than_agents_wait_and_shorter_than_an_outage() -> None:
    assert PING_SECONDS + PING_TIMEOUT < CUT_SECONDS < OUTAGE_SECONDS
    assert ELEMENTS * ROUNDS * 32 / RATE > CUT_SECONDS + 5


@pytest.mark.parametrize("machine", ["h1", "ctl"])
def test_a_job_goes_on_while_the_management_network_is_cut(tmp_path: Path, machine: str) -> None:
    """For one host, or for all: agents give their streams up, and come back with their parts."""
    with machines(tmp_path, ADDRESSES) as up:
        start(up)
        until(lambda: all(node["attached"] for node in hopsum(up, "nodes")), "both agents")
        size = ("--elements", f"{ELEMENTS}", "--rounds", f"{ROUNDS}", "--dtype", "int32")
        hopsum(up, "submit", "sums", "--workers", "h1,h2", "--algorithm", "ring", *size)
        until(lambda: hopsum(up, "job", "sums")["round"] > 0, "the first sum")
        with up.cut_off(machine):
            threading.Event().wait(CUT_SECONDS)
            job = hopsum(up, "job", "sums")
            assert job["state"] == "running", job
        until(lambda: hopsum(up, "job", "sums")["state"] not in GOING, "the end of the job")
        job = hopsum(up, "job", "sums")
        assert (job["state"], job.get("wrong"), job["epoch"]) == ("finished", 0, 1), job
        logs = {name: (up.home(name) / f"log-{n}").read_text() for n, name in enumerate(ADDRESSES)}
    times = {host: logs[host].count("attached to the controller") for host in ("h1", "h2")}
    assert times == {"h1": 2, "h2": 1 if machine == "h1" else 2}, logs


def start(up: Machines) -> None:
    """Start a controller, and the agents of two hosts with a slow cable between them."""
    nodes = [{"id": name, "kind": "host", "ip": f"10.0.0.{name[1]}"} for name in ("h1", "h2")]
    edges = [{"source": "h1", "target": "h2", "bandwidth": RATE}]
    file = up.home("ctl") / "network.json"
    file.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    up.cable(("h1", "eth1"), ("h2", "eth1"))
    network = load_network(str(file))
    for host in network.hosts.values():
        for line in (
            f"ip link set eth1 address {host.mac}",
            f"ip address add {host.ip}/24 dev eth1",
            f"tc qdisc add dev eth1 root tbf rate {RATE} burst 16k latency 100ms",
        ):
            inside(up.namespaces[host.name], *line.split())
    serve = ("controller", "serve", str(file), "--listen", CONTROLLER, "--insecure")
    up.start("ctl", [str(BIN / "hopsum"), *serve])
    for host in network.hosts:
        agent = ("serve", "--controller", CONTROLLER, "--host", host, "--interface", "eth1")
        up.start(host, [str(BIN / "hopsum-agent"), *agent])


def hopsum(up: Machines, *command: str) -> Any:
    """Return what a command prints as JSON, asked on the controller's machine once it listens."""
    line = [str(BIN / "hopsum"), *command, "--controller", CONTROLLER, "--json"]
    answers: list[str] = []

    def answered() -> bool:
        done = up.run("ctl", line)
        assert all(process.poll() is None for process in up.running), done.stdout
        answers.append(done.stdout)
        return done.stdout.startswith(("{", "["))  # of a failed job too

    until(answered, f"an answer to {line}")
    return json.loads(answers[-1])
