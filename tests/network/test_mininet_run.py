"""Experiments as real processes on real links."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from collectives.plan import DataType
from experiment.description import Algorithm, Engine, Experiment, PacketIo, WorldKind
from experiment.prepare import prepare
from experiment.result import Report, RunFailed
from experiment.runner import run_experiment
from mininet_topos.emulation import Emulation
from mininet_topos.failures import EmulationError
from mininet_topos.record import RunRecord, state_folder

HOPSUM = Path(sys.executable).with_name("hopsum")
SMALL = Experiment(
    topology="star:3",
    workers=3,
    elements=20_000,
    rounds=2,
    dtype=DataType.INT32,
    world=WorldKind.MININET,
    link_rate=25e6,
    limit=60.0,
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs, builds and records of a test lie in its own folder; nothing is left running."""
    monkeypatch.chdir(tmp_path)


def test_a_second_emulation_is_refused() -> None:
    network = prepare(SMALL).network
    with Emulation(network), pytest.raises(EmulationError, match="another emulation is up"):
        Emulation(network).__enter__()
    assert left_over() == []


def left_over() -> list[str]:
    """Interfaces and processes of an emulation that are still there."""
    interfaces = [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith("s1-eth")]
    shells = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"mininet:" in command or b"hopsum-agent" in command:
                shells.append(command.decode(errors="replace"))
    return interfaces + shells


def run(**choices: Any) -> Report:
    values = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    return run_experiment(Experiment(**{**values, **choices}))


@pytest.mark.parametrize(
    ("topology", "workers"), [("star:3", 3), ("leaf-spine:2x2", 4), ("fat-tree:4", 8)]
)
def test_in_network_sums_are_exact_and_bytes_as_predicted(topology: str, workers: int) -> None:
    report = run(topology=topology, workers=workers)
    measured = report.measured
    assert measured is not None
    assert measured.verdict.checked == workers * 40_000
    assert measured.verdict.wrong == 0
    if measured.retransmissions == 0:
        assert report.differing_links == []
    assert not report.problems
    assert left_over() == []


@pytest.mark.parametrize("algorithm", [Algorithm.SERVER, Algorithm.RING])
def test_baselines_are_exact(algorithm: Algorithm) -> None:
    report = run(algorithm=algorithm, dtype=DataType.FLOAT32)
    assert not report.problems
    assert report.measured is not None
    assert report.measured.verdict.checked == 3 * 40_000


def test_sums_are_exact_under_loss() -> None:
    report = run(loss=0.03, elements=5000)
    assert report.measured is not None
    assert report.measured.verdict.wrong == 0
    assert report.measured.retransmissions > 0
    lost = sum(counts["injected_loss"] for counts in report.measured.switches.values())
    assert lost > 0


def test_scapy_moves_the_frames_as_well() -> None:
    report = run(packet_io=PacketIo.SCAPY, elements=3000, dtype=DataType.FLOAT32)
    assert not report.problems
    assert report.measured is not None
    assert report.measured.verdict.checked == 3 * 6000


def need_bmv2() -> None:
    for command in ("simple_switch_grpc", "p4c"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not on PATH")


def test_bmv2_gives_the_same() -> None:
    need_bmv2()
    report = run(engine=Engine.BMV2, loss=0.01, elements=5000)
    assert report.measured is not None
    assert report.measured.verdict.wrong == 0
    assert report.measured.verdict.checked == 3 * 10_000


def test_several_trees_at_once_on_bmv2() -> None:
    """Two trees, each with slots of its own: together faster than an uplink, byte for byte."""
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
    measured = report.measured
    assert measured is not None
    assert report.problems == []
    assert measured.verdict.checked == 4 * 40_000
    assert measured.verdict.wrong == 0
    if measured.retransmissions == 0:
        assert report.differing_links == []
    assert 40_000 * 32 / measured.seconds > 2e6
    assert left_over() == []


def test_links_hold_their_rate() -> None:
    """A fragment stream cannot be faster than the shaped link, nor much slower."""
    report = run(elements=250_000, rounds=1, link_rate=10e6)
    measured = report.measured
    assert measured is not None
    bits = 8 * measured.links["h1", "s1"]
    assert bits / measured.seconds < 10.3e6
    assert bits / measured.seconds > 5e6


def test_the_report_holds_the_prediction_before_traffic(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = run_experiment(SMALL, path)
    written = json.loads(path.read_text())
    assert written == report.to_dict()
    assert written["problems"] == []
    assert {"from", "to", "predicted_bytes", "measured_bytes"} == set(written["links"][0])


def agent_pids(host: str) -> list[int]:
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"attend" in words and host.encode() in words:
                pids.append(int(folder.name))
    return pids


def start_long_run(tmp_path: Path) -> subprocess.Popen[str]:
    command = [
        str(HOPSUM), "run", "--world", "mininet", "--topology", "star:3", "--workers", "3",
        "--elements", "4000000", "--rounds", "20", "--link-rate", "5Mbit",
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_agent(host: str, process: subprocess.Popen[str]) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        pids = agent_pids(host)
        if pids:
            return pids[0]
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    output = process.communicate()[0] if process.poll() is not None else ""
    raise AssertionError(f"no agent on {host}: {output}")


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    process = start_long_run(tmp_path)
    os.kill(wait_for_agent("h2", process), signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "h2" in output
    assert left_over() == []


def test_an_interrupt_takes_everything_down(tmp_path: Path) -> None:
    process = start_long_run(tmp_path)
    wait_for_agent("h1", process)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert left_over() == []
    assert list((tmp_path / state_folder()).glob("*.json")) == []


def wait_until_recorded(folder: Path) -> None:
    """Return when the run has noted the agents of all four hosts."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        agents = {pid for host in ("h1", "h2", "h3", "ps") for pid in agent_pids(host)}
        records = [RunRecord.read(path) for path in folder.glob("*.json")]
        if len(agents) >= 4 and records and agents <= set(records[0].processes):
            return
        threading.Event().wait(0.05)
    raise AssertionError("the run does not record its agents")


def test_stop_takes_down_what_a_killed_run_left(tmp_path: Path) -> None:
    process = start_long_run(tmp_path)
    wait_for_agent("h1", process)
    wait_until_recorded(tmp_path / state_folder())
    process.kill()
    process.communicate()
    assert left_over() != []
    done = subprocess.run([HOPSUM, "stop"], cwd=tmp_path, capture_output=True, text=True)
    assert "ended process" in done.stdout
    deadline = time.monotonic() + 10
    while left_over() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert left_over() == []


def test_a_run_that_takes_too_long_says_where_it_was() -> None:
    with pytest.raises(RunFailed, match=r"not done after 0\.5 s: h1 at 0"):
        run(elements=1_000_000, limit=0.5)
