"""How jobs and TCP connections share a link in Mininet: real switches, agents and sockets."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.congestion import LANES, Case, between_switches
from benchmarks.faults import Processes, processes, wait
from cli.job_commands import make_submission
from network.loaders import save_network
from protocol.wire import frame_bytes
from timing.tcp_segments import SEGMENT_BYTES

RATE = 4e6
"""Of the shared link, bit/s: so little that two cores have time to spare."""
ELEMENTS = 30_000
ROUNDS = 100_000
"""More than there is time for."""
SECONDS = 30.0
SETTLE = 3.0
"""Seconds after the first sums and bytes, before bytes count."""
PORT = "5000"
CASES = ((2, 0), (1, 1), (2, 1))
"""Jobs, and whether there is a TCP connection."""

_SINK = """
import pathlib, socket, sys
listening = socket.create_server(("", int(sys.argv[1])))
count, taken = 0, listening.accept()[0]
while data := taken.recv(1 << 16):
    count += len(data)
    pathlib.Path(sys.argv[2]).write_text(str(count))
"""
_SOURCE = """
import socket, sys
made = None
while made is None:
    try:
        made = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    except ConnectionRefusedError:
        pass
while True:
    made.sendall(bytes(1 << 14))
"""


def measure(jobs: int, connections: int) -> Iterator[dict[str, Any]]:
    """Return a row for each flow on a link between two switches."""
    case = between_switches(jobs, connections, RATE)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "network.json")
        save_network(case.network, file)
        with processes(case.network, str(file), "--no-priorities") as up:
            shares = _shares(case, up, Path(name, "received"))
    fair = 1 / (jobs + connections)
    for flow, share in shares.items():
        yield {
            "world": "Mininet",
            "link": case.name,
            "jobs": jobs,
            "connections": connections,
            "flow": flow,
            "share": round(share, 3),
            "of_fair_share": round(share / fair, 3),
        }


def _shares(case: Case, up: Processes, received: Path) -> dict[str, float]:
    names = [f"job-{number}" for number in range(1, 1 + len(case.jobs))]
    for name, (workers, server) in zip(names, case.jobs, strict=True):
        wanted = make_submission(name, ",".join(workers), server, elements=ELEMENTS, rounds=ROUNDS)
        up.client.submit(wanted)
    for source, sink in case.connections:
        heed_marks = up.emulation.command(["sysctl", "-qw", "net.ipv4.tcp_ecn=1"], source)
        subprocess.run(heed_marks, check=True)
        up.emulation.popen(sink, [sys.executable, "-c", _SINK, PORT, str(received)])
        address = case.network.hosts[sink].ip
        up.emulation.popen(source, [sys.executable, "-c", _SOURCE, address, PORT])

    def carried() -> dict[str, float]:
        fragments = -(-ELEMENTS // LANES)
        sent = {
            name: up.client.job(name).round * fragments * frame_bytes(LANES, 1) for name in names
        }
        if case.connections:
            text = received.read_text() if received.exists() else ""
            sent["TCP"] = int(text or 0) * 1514 // SEGMENT_BYTES
        return {name: float(count) for name, count in sent.items()}

    wait(lambda: all(carried().values()), "a sum of each job, and bytes")
    time.sleep(SETTLE)
    before, start = carried(), time.monotonic()
    time.sleep(SECONDS)
    after, seconds = carried(), time.monotonic() - start
    for name in names:
        up.client.cancel(name)
    return {name: 8 * (after[name] - before[name]) / (RATE * seconds) for name in after}
