"""Experiments as real processes on real links."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum.collectives.choices import Algorithm, Engine
from hopsum.collectives.plan import DataType
from hopsum.experiment.cluster import _agent_arguments
from hopsum.experiment.description import Experiment, PacketIo, WorldKind
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import Report, RunMeasurement
from hopsum.experiment.runner import run_experiment
from hopsum.mininet_topos.addresses import SOCKETS
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.failures import EmulationError
from hopsum.mininet_topos.record import STATE, RunRecord, state_folder
from hopsum.network.loaders import load_network
from tests.support.bmv2 import need_bmv2
from tests.support.emulated_runs import run_together
from tests.support.machine import PATIENCE, until
from tests.support.processes import process, processes

pytestmark = pytest.mark.network

CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_NET_RAW = 2, 12, 13
"""Bits of capabilities(7)."""
HOPSUM = Path(sys.executable).with_name("hopsum")
SMALL = Experiment(
    topology="star:3",
    workers=3,
    elements=20_000,
    rounds=2,
    dtype=DataType.INT32,
    world=WorldKind.MININET,
    link_rate=25e6,
    limit=PATIENCE,
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep logs, builds and records of a test in its own folder; nothing is left running."""
    monkeypatch.chdir(tmp_path)


def test_a_second_emulation_is_refused() -> None:
    network = prepare(SMALL).network
    with Emulation(network), pytest.raises(EmulationError, match="another emulation is up"):
        Emulation(network).__enter__()
    assert left_over() == []


def test_an_interrupt_says_that_everything_was_removed() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, Emulation(prepare(SMALL).network):
        raise KeyboardInterrupt
    assert raised.value.__notes__ == ["all processes and interfaces were removed"]
    assert left_over() == []


def test_descendants_of_host_programs_end_too() -> None:
    with Emulation(prepare(SMALL).network) as emulation:
        emulation.popen("h1", ["sh", "-c", "setsid tail -f /dev/null & exec tail -f /dev/null"])
        until(lambda: len(processes("tail")) == 2, "both programs")
    assert left_over() == []


def test_hosts_know_each_others_names_and_ask_no_name_server() -> None:
    network = prepare(SMALL).network
    machine = Path("/etc/hosts").read_text(), Path("/etc/resolv.conf").read_text()
    with Emulation(network) as emulation:
        found = emulation.run("h1", ["getent", "hosts", "h2"])
        assert found.split() == [network.hosts["h2"].ip, "h2"]
        assert "127.0.0.1" in emulation.run("h1", ["getent", "ahosts", "localhost"])
        assert "nameserver" not in emulation.run("h1", ["cat", "/etc/resolv.conf"])
        assert (Path("/etc/hosts").read_text(), Path("/etc/resolv.conf").read_text()) == machine
    assert left_over() == []


def test_switches_speak_to_root_alone() -> None:
    """Of every switch there is a socket in a folder that only root enters, and no TCP port."""
    with Emulation(prepare(SMALL).network) as emulation:
        for name, address in emulation.grpc_addresses.items():
            path = Path(address.removeprefix("unix:"))
            assert path.is_socket(), name
            assert (path.parent, path.stat().st_mode & 0o777) == (SOCKETS, 0o600)
        assert (SOCKETS.stat().st_uid, SOCKETS.stat().st_mode & 0o777) == (0, 0o700)
        own = set(map(str, processes("--grpc-server-addr")))
        assert own
        listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True)
        assert not [line for line in listening.stdout.splitlines() if pids_of(line) & own]


def test_frames_of_an_interface_are_received_by_one_processor() -> None:
    """Frames of a shaped link do not overtake each other, on their way to hosts and to switches."""
    with Emulation(prepare(SMALL).network) as emulation:
        masks = [
            *(
                path.read_text()
                for path in Path("/sys/class/net").glob("s1-eth*/queues/*/rps_cpus")
            ),
            *(
                emulation.run(
                    host, ["cat", f"/sys/class/net/{host}-eth{port}/queues/rx-0/rps_cpus"]
                )
                for host in emulation.network.hosts
                for port in emulation.network.ports(host)
            ),
        ]
    assert len(masks) >= 2 * len(emulation.network.links)
    assert [int(mask.replace(",", ""), 16).bit_count() for mask in masks] == [1] * len(masks)


def test_switches_and_agents_keep_little_of_root() -> None:
    network = prepare(SMALL).network
    kept = sum(1 << capability for capability in (CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_NET_RAW))
    with Emulation(network) as emulation:
        running = processes("--grpc-server-addr")
        assert len(running) == len(network.switches)
        for pid in running:
            assert rights(Path(f"/proc/{pid}/status").read_text()) == kept
        arguments = _agent_arguments(emulation, "unix:/nowhere", "fast", "h1")
        agent = emulation.start_agent("h1", arguments)
        status = Path(f"/proc/{agent.pid}/status")
        until(lambda: "hopsum-agent" in status.read_text(), "the agent")
        assert rights(status.read_text()) == kept


def rights(status: str) -> int:
    """The capabilities that a process has; what it may ever have must be the same."""
    effective, bounding = (
        int(re.search(rf"^{name}:\s+(\w+)", status, re.MULTILINE)[1], 16)  # type: ignore[index]
        for name in ("CapEff", "CapBnd")
    )
    assert effective == bounding
    return effective


def pids_of(line: str) -> set[str]:
    """The processes that a line of `ss -p` names."""
    return set(re.findall(r"pid=(\d+)", line))


def left_over() -> list[str]:
    """Interfaces and processes of an emulation that are still there."""
    interfaces = [p.name for p in Path("/sys/class/net").iterdir() if "-eth" in p.name]
    return sorted(interfaces) + [f"process {pid}" for pid in processes()]


def run(**choices: Any) -> Report:
    return run_experiment(replace(SMALL, **choices))


def exact(report: Report) -> RunMeasurement:
    """What was measured in a run whose sums, and bytes if nothing was sent again, are right."""
    assert report.problems == []
    measured = report.measured
    assert measured is not None
    experiment = report.experiment
    handed_in = experiment.workers * experiment.elements * experiment.rounds
    assert measured.verdict.checked == handed_in
    assert measured.verdict.wrong == 0
    if report.exact_bytes_expected:
        assert report.differing_links == []
    return measured


def test_one_switch_sums_at_the_rate_of_its_links(tmp_path: Path) -> None:
    """The report, and no fragment stream is faster than the shaped link."""
    path = tmp_path / "report.json"
    report = run_experiment(replace(SMALL, elements=250_000, rounds=1, link_rate=10e6), path)
    measured = exact(report)
    assert 8 * measured.links["h1", "s1"] / measured.seconds < 10.3e6
    written = json.loads(path.read_text())
    assert written == report.to_dict()
    assert written["problems"] == []
    assert {"from", "to", "predicted_bytes", "measured_bytes"} == set(written["links"][0])
    assert left_over() == []


def test_switches_sum_at_three_levels() -> None:
    exact(run(topology="line:3x2", workers=6))
    assert left_over() == []


def test_baselines_are_exact() -> None:
    algorithms = (Algorithm.SERVER, Algorithm.RING)
    base = replace(SMALL, dtype=DataType.FLOAT32)
    for report in run_together(*(replace(base, algorithm=each) for each in algorithms)):
        exact(report)


def test_trees_of_switches_and_of_hosts_behind_them() -> None:
    base = replace(SMALL, topology="leaf-spine:2x2", workers=4)
    for report in run_together(base, replace(base, algorithm=Algorithm.MULTI_TREE)):
        exact(report)


def test_sums_are_exact_under_loss() -> None:
    report = run(loss=0.03, elements=5000)
    assert report.measured is not None
    assert report.measured.verdict.wrong == 0
    assert report.measured.retransmissions > 0
    lost = sum(counts["injected_loss"] for counts in report.measured.switches.values())
    assert lost > 0


def test_scapy_moves_the_frames_as_well() -> None:
    exact(run(packet_io=PacketIo.SCAPY, elements=3000, dtype=DataType.FLOAT32))


def test_bmv2_gives_the_same() -> None:
    need_bmv2()
    report = run(engine=Engine.BMV2, loss=0.01, elements=5000)
    assert report.measured is not None
    assert report.measured.verdict.wrong == 0
    assert report.measured.verdict.checked == 3 * 10_000


def test_several_trees_at_once_on_bmv2() -> None:
    """Two trees, each with slots of its own and an uplink of its own, byte for byte."""
    need_bmv2()
    report = run(
        engine=Engine.BMV2,
        planner="multi-tree",
        topology="leaf-spine:2x2",
        workers=4,
        window=32,
        link_rate=4e6,
        uplink_rate=2e6,
    )
    measured = exact(report)
    # Each tree goes by a spine of its own, which has one child.
    assert all(measured.switches[spine]["completed"] > 0 for spine in ("s1", "s2"))
    assert left_over() == []


def start_long_run(tmp_path: Path) -> subprocess.Popen[str]:
    command = [
        str(HOPSUM), "run", "--world", "mininet", "--topology", "star:3", "--workers", "3",
        "--elements", "400000", "--rounds", "20", "--link-rate", "500kbit",
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_agent(host: str, run: subprocess.Popen[str]) -> int:
    def started() -> bool:
        assert run.poll() is None, run.communicate()[0]
        return len(processes("serve", host)) == 1

    until(started, f"the agent on {host}")
    return process("serve", host)


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    run = start_long_run(tmp_path)
    agent = wait_for_agent("h2", run)
    # One that ends before the job has begun is only started again.
    counter = Path("/sys/class/net/s1-eth1/statistics/rx_bytes")
    until(lambda: int(counter.read_text()) > 50_000, "traffic")
    os.kill(agent, signal.SIGKILL)
    output = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 1
    assert "h2" in output
    assert left_over() == []


def test_an_interrupt_takes_everything_down(tmp_path: Path) -> None:
    run = start_long_run(tmp_path)
    wait_for_agent("h1", run)
    run.send_signal(signal.SIGINT)
    output = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 130, output
    assert left_over() == []
    assert list(state_folder().glob("*.json")) == []


def kill(command: subprocess.Popen[str]) -> None:
    """Kill a command; its processes end with it, though it could not end them."""
    command.kill()
    command.communicate()
    until(lambda: processes() == [], "the end of what it has started")


def test_a_killed_cluster_takes_its_processes_along_and_stop_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = [str(HOPSUM), "cluster", "leaf-spine:2x1"]
    cluster = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for host in ("h1", "h2", "ps"):
        until(lambda host=host: processes("serve", host) != [], f"the agent on {host}")  # type: ignore[misc]
    kill(cluster)
    # The namespaces of hosts go with their processes; links between switches are this one's.
    assert {"l1-eth2", "s1-eth1"} <= set(left_over())
    (record,) = map(RunRecord.read, STATE.glob("*.json"))
    (folder,) = record.folders
    assert Path(folder).is_dir()
    done = subprocess.run([HOPSUM, "stop"], cwd="/", capture_output=True, text=True, check=True)
    assert "deleted interface" in done.stdout
    assert not Path(folder).exists()
    assert left_over() == []
    again = subprocess.run([HOPSUM, "stop"], cwd="/", capture_output=True, text=True, check=True)
    assert again.stdout == "nothing to clean up\n"


def test_a_run_goes_well_after_one_that_was_killed(tmp_path: Path) -> None:
    there = {
        "its first interface": lambda: left_over() != [],
        "its first agent": lambda: processes("serve") != [],
    }
    for when, condition in there.items():
        killed = start_long_run(tmp_path)
        until(condition, when)
        kill(killed)
    exact(run(elements=1000))
    assert left_over() == []


def test_interfaces_of_others_are_left_alone() -> None:
    subprocess.run(["ip", "link", "add", "s1-eth1", "type", "veth", "peer", "s1-eth9"], check=True)
    try:
        with pytest.raises(EmulationError, match="interface s1-eth1 exists already, and no run"):
            run()
        assert left_over() == ["s1-eth1", "s1-eth9"]
    finally:
        subprocess.run(["ip", "link", "delete", "s1-eth1"], check=True)
    assert left_over() == []


def test_links_between_hosts_are_not_cut() -> None:
    emulation = Emulation(load_network("torus:2x2"))
    with pytest.raises(EmulationError, match="link h1-h2 is between two hosts, whose routes"):
        emulation.set_link("h1", "h2", False)
