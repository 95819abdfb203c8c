"""`hopsum controller serve` and `hopsum-agent serve`, each a process, on switches that run."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hopsum.controller.api.client import ControllerClient
from hopsum.mininet_topos.emulation import Emulation
from hopsum.network.loaders import load_network
from hopsum.protocol.channel import Tls
from tests.support.certificates import certify
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE, interface_names, until
from tests.support.served_cluster import LINK_RATE, TOPOLOGY, ServedCluster

pytestmark = pytest.mark.network


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ServedCluster]:
    """A network of `TOPOLOGY`, or of the parameter."""
    monkeypatch.chdir(tmp_path)
    topology = getattr(request, "param", TOPOLOGY)
    network = load_network(topology, link_rate=LINK_RATE)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200"}
    with Emulation(network) as emulation:
        up = ServedCluster(tmp_path, network, emulation, environment, topology=topology)
        try:
            yield up
        finally:
            if up.controller is not None and up.controller.poll() is None:
                up.controller.kill()
                up.controller.wait()


def exact(job: Mapping[str, Any], elements: int) -> None:
    """A job that has ended well, all its sums exact."""
    assert job["state"] == "finished", job
    assert (job["checked"], job["wrong"]) == (elements, 0)


def test_jobs_over_a_unix_socket(cluster: ServedCluster) -> None:
    cluster.serve(f"unix:{cluster.folder}/controller")
    for host in cluster.network.hosts:
        cluster.attach(host, cluster.address)
    until(lambda: cluster.attached() == set(cluster.network.hosts), "all agents")

    sums = ("--elements", "4000", "--rounds", "5")
    exact(cluster.ask("submit", "sums", "--workers", "h1,h2,h3", *sums, "--wait"), 3 * 5 * 4000)
    exact(
        cluster.ask("submit", "around", "--workers", "3", "--algorithm", "ring", *sums, "--wait"),
        3 * 5 * 4000,
    )
    assert [(job["name"], job["state"]) for job in cluster.ask("jobs")] == [
        ("sums", "finished"),
        ("around", "finished"),
    ]
    # While a job runs, the status tells of it; it ends where its owner says so.
    cluster.ask("submit", "long", "--workers", "h1,h2", "--rounds", "100000", "--elements", "20000")
    queries = ControllerClient(cluster.address)
    until(lambda: queries.job("long").round > 0, "rounds")
    status = cluster.run("status")
    assert status.returncode == 0, status.stderr
    assert "job 3, epoch 1: running" in status.stdout
    assert cluster.ask("cancel", "long")["state"] == "cancelled"
    outcomes = cluster.ask("stats")["s1"]["outcomes"]
    assert outcomes["completed"] > 0

    # An agent that is ended leaves; another one takes its place.
    cluster.agents["h1"].send_signal(signal.SIGTERM)
    assert cluster.agents["h1"].wait(PATIENCE) == 0
    until(lambda: "h1" not in cluster.attached(), "the end of an agent")
    cluster.attach("h1", cluster.address)
    exact(cluster.ask("submit", "again", "--workers", "h1,h2", *sums, "--wait"), 2 * 5 * 4000)
    cluster.stop_controller()


@pytest.mark.long
def test_agents_and_jobs_outlive_their_controllers(cluster: ServedCluster) -> None:
    """Agents wait for one, sum on without one, and go on under the next."""
    address, jobs = f"unix:{cluster.folder}/controller", str(cluster.folder / "jobs")
    for host in cluster.network.hosts:
        cluster.attach(host, address)
    until(lambda: "trying again" in cluster.log("h1"), "an agent's complaint")
    cluster.serve(address, "--jobs", jobs)
    until(lambda: cluster.attached() == set(cluster.network.hosts), "all agents")
    rounds = 200
    cluster.ask(
        "submit", "long", "--workers", "h1,h2,h3", "--rounds", str(rounds), "--elements", "10000"
    )
    queries = ControllerClient(cluster.address)
    for _ in range(2):
        seen = queries.job("long").round
        until(lambda seen=seen: queries.job("long").round > seen, "rounds")  # type: ignore[misc]
        assert queries.job("long").state == "running"
        assert cluster.controller is not None
        cluster.controller.kill()
        cluster.controller.wait()
        cluster.serve(address, "--jobs", jobs)
    until(lambda: queries.job("long").state not in GOING, "the end")
    first = cluster.ask("job", "long")
    exact(first, 3 * rounds * 10_000)
    assert first["epoch"] == 1

    # One that is stopped keeps its number reserved, too.
    cluster.stop_controller()
    cluster.serve(address, "--jobs", jobs)
    until(lambda: cluster.attached() == set(cluster.network.hosts), "all agents again")
    sums = ("--elements", "5000", "--rounds", "2", "--wait")
    second = cluster.ask("submit", "second", "--workers", "h3,h4", *sums)
    exact(second, 2 * 2 * 5000)
    assert second["job"] > first["job"]
    cluster.stop_controller()


@pytest.mark.parametrize("cluster", ["leaf-spine:2x2x2"], indirect=True)
def test_jobs_avoid_links_that_switches_and_agents_report(cluster: ServedCluster) -> None:
    """The controller sees nothing of this machine but what its switches and agents say."""
    cluster.serve(f"unix:{cluster.folder}/controller")
    for host in cluster.network.hosts:
        cluster.attach(host, cluster.address)
    until(lambda: cluster.attached() == set(cluster.network.hosts), "all agents")
    cluster.ask(
        "submit", "long", "--workers", "h1,h2", "--servers", "h4", "--rounds", "1000",
        "--elements", "4000",
    )  # fmt: skip
    queries = ControllerClient(cluster.address)

    def spine() -> str:
        [job] = queries.state().jobs
        return next(node for node in job.trees[0].parents.values() if node[0] == "s")

    until(lambda: queries.job("long").round > 0, "rounds")
    used = spine()
    ip("link", "set", cluster.emulation.interface("l1", used), "down")
    until(lambda: queries.job("long").epoch >= 2, "a plan around the link")
    assert spine() != used
    seen = queries.job("long").round
    until(lambda: queries.job("long").round > seen, "rounds that way")
    ip("link", "set", cluster.emulation.interface("l1", used), "up")

    cluster.emulation.run("h1", ["ip", "link", "set", cluster.interface("h1"), "down"])

    def waits_for() -> str:
        [job] = queries.status()
        return job.waits_for

    until(lambda: "link h1-l1 unreachable" in waits_for(), "word of the host's link")
    assert queries.job("long").state == "running"
    assert cluster.ask("cancel", "long")["state"] == "cancelled"
    cluster.stop_controller()


# -- TLS


@contextlib.contextmanager
def management(emulation: Emulation, hosts: Iterable[str]) -> Iterator[dict[str, str]]:
    """Links from this machine to hosts, outside the network; the address at this end, by host."""
    addresses: dict[str, str] = {}
    named = list(hosts)
    interfaces = dict(zip(named, interface_names(*map(str, range(len(named)))), strict=True))
    # Of the addresses that no network has (RFC 2544: benchmarks).
    net = f"198.18.{secrets.randbelow(256)}"
    try:
        for number, (host, here) in enumerate(interfaces.items()):
            there = f"{host}-mgmt"
            ours, theirs = (f"{net}.{4 * number + end}" for end in (1, 2))
            pair = ("link", "add", there, "type", "veth", "peer", "name", here)
            emulation.run(host, ["ip", *pair, "netns", str(os.getpid())])
            addresses[host] = ours
            emulation.run(host, ["ip", "address", "add", f"{theirs}/30", "dev", there])
            emulation.run(host, ["ip", "link", "set", there, "up"])
            ip("address", "add", f"{ours}/30", "dev", here)
            ip("link", "set", here, "up")
        yield addresses
    finally:
        for host in addresses:
            ip("link", "delete", interfaces[host])


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def test_tls_over_a_management_network_lets_in_who_is_certified(cluster: ServedCluster) -> None:
    folder = cluster.folder
    with management(cluster.emulation, cluster.network.hosts) as addresses:
        names = ["DNS:localhost", *(f"IP:{address}" for address in addresses.values())]
        certify(folder, "ours")
        certify(folder, "theirs")
        certify(folder, "controller", "ours", ",".join(names))
        certify(folder, "agent", "ours", role="operator")
        for host in ("h1", "h2", "ps"):
            certify(folder, host, "ours")
        certify(folder, "stranger", "theirs")

        def tls(name: str, authority: str = "ours") -> list[str]:
            files = {"authority": f"{authority}.pem", "certificate": f"{name}.pem"}
            files["key"] = f"{name}.key"
            return [
                word for part, f in files.items() for word in (f"--tls-{part}", f"{folder}/{f}")
            ]

        cluster.serve("0.0.0.0:0", *tls("controller"))
        port = cluster.address.rpartition(":")[2]
        cluster.address = f"localhost:{port}"
        person = {
            "HOPSUM_TLS_AUTHORITY": f"{folder}/ours.pem",
            "HOPSUM_TLS_CERTIFICATE": f"{folder}/agent.pem",
            "HOPSUM_TLS_KEY": f"{folder}/agent.key",
        }
        cluster.environment |= person
        cluster.tls = Tls(*map(Path, person.values()))
        options = {
            "h1": tls("h1"),
            "h2": tls("h2"),
            "ps": tls("ps"),
            "h3": tls("stranger"),
            "h4": [],
        }
        for host, given in options.items():
            cluster.attach(host, f"{addresses[host]}:{port}", *given)
        until(lambda: cluster.attached() >= {"h1", "h2", "ps"}, "agents with certificates")
        secret = ("submit", "secret", "--workers", "h1,h2", "--servers", "ps")
        job = cluster.ask(*secret, "--elements", "4000", "--rounds", "5", "--wait")
        exact(job, 2 * 5 * 4000)
        for host in ("h3", "h4"):
            until(lambda h=host: "trying again" in cluster.log(h), f"complaint of {host}")  # type: ignore[misc]
            assert "it requires a certificate of its authority" in cluster.log(host)
        assert cluster.attached() == {"h1", "h2", "ps"}
        stranger = person | {
            "HOPSUM_TLS_CERTIFICATE": f"{folder}/stranger.pem",
            "HOPSUM_TLS_KEY": f"{folder}/stranger.key",
        }
        for environment in (stranger, dict.fromkeys(person, "")):
            done = cluster.run("jobs", **environment)
            assert done.returncode == 1
            assert "it requires a certificate of its authority" in done.stderr
        # A host has one agent.
        cluster.agents["h3"].terminate()
        cluster.agents["h3"].wait(PATIENCE)
        cluster.attach("h3", f"{addresses['h3']}:{port}", *tls("agent", "theirs"))
        # The log is appended to that of the previous agent.
        wrong = "certificate is not one of the authority given"
        until(lambda: wrong in cluster.log("h3"), "complaint of h3 about the controller")
        cluster.stop_controller()
