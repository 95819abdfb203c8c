"""The effect of failures of real processes and links on a job in Mininet, and its recovery time.

Controller, switches and agents are separate processes. In each case a job runs, something fails,
and later it returns or is restarted. `noticed`: seconds until the controller reports it (a new
epoch, a reason why the job waits, an agent that is gone). `stood_still`: the longest time that a
tensor took beyond the median, which is the cost of the failure to the job; `after_return`: the part
of that after the failed element had returned.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Engine
from hopsum.collectives.plan import WINDOW_BMV2
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.rendezvous import find_controller
from hopsum.host_agent.workload import call_seconds, intervals_from
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.fork_server import Process
from hopsum.mininet_topos.hosts import EmulatedHosts, hosts_of_controller
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError

TOPOLOGY = "leaf-spine:2x3x2"
WORKERS = "h1,h2,h4,h5"
SERVER = "h3"
LINK_RATE = {Engine.EMBEDDED: "25Mbit", Engine.BMV2: "5Mbit"}
ELEMENTS = 20_000
ROUNDS = {Engine.EMBEDDED: 250, Engine.BMV2: 60}
"""Tensors of a job: some ten seconds."""
BEFORE = 2.0
"""Seconds of a job before the failure."""
POLL_SECONDS = 0.02
PATIENCE = 180.0
BIN = Path(sys.executable).parent


@dataclass
class Processes:
    """A running network, its controller and its agents."""

    network: Network
    engine: Engine
    hosts: EmulatedHosts
    address: str
    """The controller's address."""
    folder: Path
    journal: Path
    serve: tuple[str, ...]
    """Arguments of `hopsum controller serve`: the network and options."""
    agents: dict[str, Process] = field(default_factory=dict)
    controller: subprocess.Popen[bytes] | None = None

    @property
    def emulation(self) -> Emulation:
        """Return the emulation, where it is of this process."""
        assert isinstance(self.hosts, Emulation)
        return self.hosts

    @property
    def client(self) -> ControllerClient:
        """Open a connection to the controller."""
        return ControllerClient(self.address)

    def start_controller(self) -> None:
        """Start the controller, which continues the journal's jobs."""
        with (self.folder / "controller.log").open("ab") as log:
            self.controller = subprocess.Popen(
                [
                    *(str(BIN / "hopsum"), "controller", "serve", *self.serve),
                    *("--listen", self.address, "--jobs", str(self.journal)),
                ],
                stdout=log,
                stderr=log,
            )

    def start_agent(self, host: str) -> None:
        """Start a host's agent in its namespace."""
        interface = self.emulation.interface(host, self.network.access_switch(host))
        where = ("--controller", self.address, "--host", host, "--interface", interface)
        self.agents[host] = self.emulation.start_agent(host, ["serve", *where])

    def spine(self, job: str) -> str:
        """Return the spine switch that a job uses."""
        [found] = [each for each in self.client.state().jobs if each.name == job]
        nodes = set(found.trees[0].parents) | set(found.trees[0].parents.values())
        return next(name for name in self.network.switches if name in nodes and name[0] == "s")

    def signal_switch(self, name: str, what: signal.Signals) -> None:
        """Send a switch's process a signal."""
        os.kill(self.emulation.switch_process(name).pid, what)

    def set_link(self, a: str, b: str, state: str) -> None:
        """Set the link of two switches up or down."""
        interface = self.hosts.interface(a, b)
        subprocess.run(["ip", "link", "set", interface, state], check=True)


@dataclass(frozen=True)
class Case:
    """A failure: `begin` makes it, `end` ends it `seconds` later."""

    what: str
    seconds: float
    begin: Callable[[Processes], None]
    end: Callable[[Processes], None]
    of_a_link: bool = False


def _nothing(up: Processes) -> None:
    """Do nothing."""


def _kill_spine(up: Processes) -> None:
    up.signal_switch(up.spine("job"), signal.SIGKILL)


def _restart_switches(up: Processes) -> None:
    for name in up.emulation.ended_switches():
        up.emulation.restart_switch(name)


def _stop_spine(up: Processes) -> None:
    up.signal_switch(up.spine("job"), signal.SIGSTOP)


def _continue_spines(up: Processes) -> None:
    for name in up.network.switches:
        up.signal_switch(name, signal.SIGCONT)


def _cut_at_spine(up: Processes) -> None:
    up.set_link(up.spine("job"), "l2", "down")


def _join_at_spines(up: Processes) -> None:
    for spine in ("s1", "s2"):
        up.set_link(spine, "l2", "up")


def _cut_at_leaf(up: Processes) -> None:
    up.set_link("l2", up.spine("job"), "down")


def _join_at_leaf(up: Processes) -> None:
    for spine in ("s1", "s2"):
        up.set_link("l2", spine, "up")


def _kill_controller(up: Processes) -> None:
    assert up.controller is not None
    up.controller.kill()
    up.controller.wait()


def _end_agent(host: str, what: signal.Signals) -> Callable[[Processes], None]:
    return lambda up: os.kill(up.agents[host].pid, what)


def _restart_agent(host: str) -> Callable[[Processes], None]:
    return lambda up: up.start_agent(host)


def _fill_disk(up: Processes) -> None:
    with (up.journal.parent / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def _free_disk(up: Processes) -> None:
    (up.journal.parent / "filler").unlink()


CASES = (
    Case("nothing", 0.0, _nothing, _nothing),
    Case("spine: kill -9, back after 5 s", 5.0, _kill_spine, _restart_switches),
    Case("spine: SIGSTOP for 15 s", 15.0, _stop_spine, _continue_spines),
    Case(
        "link leaf-spine: down at the spine for 5 s",
        5.0,
        _cut_at_spine,
        _join_at_spines,
        of_a_link=True,
    ),
    # By itself BMv2 then receives at no port, and l2 is its hosts' only switch (bmv2_links).
    Case(
        "link leaf-spine: down at the leaf for 5 s",
        5.0,
        _cut_at_leaf,
        _join_at_leaf,
        of_a_link=True,
    ),
    Case(
        "leaf: power-cycled, away 1 s",
        1.0,
        lambda up: up.signal_switch("l2", signal.SIGKILL),
        _restart_switches,
    ),
    Case(
        "leaf: power-cycled, away 6 s",
        6.0,
        lambda up: up.signal_switch("l2", signal.SIGKILL),
        _restart_switches,
    ),
    Case("controller: kill -9, back after 3 s", 3.0, _kill_controller, Processes.start_controller),
    Case("journal: disk full for 3 s", 3.0, _fill_disk, _free_disk),
    Case(
        "server's agent: SIGSTOP for 3 s",
        3.0,
        _end_agent(SERVER, signal.SIGSTOP),
        _end_agent(SERVER, signal.SIGCONT),
    ),
    Case(
        "server's agent: kill -9, back after 1 s",
        1.0,
        _end_agent(SERVER, signal.SIGKILL),
        _restart_agent(SERVER),
    ),
    Case(
        "worker's agent: SIGSTOP for 5 s",
        5.0,
        _end_agent("h5", signal.SIGSTOP),
        _end_agent("h5", signal.SIGCONT),
    ),
    Case(
        "worker's agent: kill -9, back after 1 s",
        1.0,
        _end_agent("h5", signal.SIGKILL),
        _restart_agent("h5"),
    ),
)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte at a folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def processes(
    network: Network, *serve: str, engine: Engine = Engine.EMBEDDED
) -> Iterator[Processes]:
    """Start a network, its controller and its agents. `serve`: as of `Processes`."""
    with (
        tempfile.TemporaryDirectory() as name,
        small_disk(Path(name, "disk")) as disk,
        Emulation(network, engine=engine.value) as emulation,
    ):
        options = (*serve, "--engine", engine.value)
        up = Processes(
            network,
            engine,
            emulation,
            f"unix:{name}/controller",
            Path(name),
            disk / "jobs",
            options,
        )
        try:
            up.start_controller()
            for host in network.hosts:
                up.start_agent(host)
            wait(lambda: _attached(up.address) == set(network.hosts), "all agents")
            yield up
        finally:
            if up.controller is not None and up.controller.poll() is None:
                up.controller.send_signal(signal.SIGINT)
                up.controller.wait()


@contextmanager
def one_process(network: Network, *serve: str, engine: Engine) -> Iterator[Processes]:
    """Start all of it as `hopsum cluster`, which knows the interfaces of its switches.

    BMv2 reports no link between switches that is down, and has to be woken when it is up again.
    """
    with tempfile.TemporaryDirectory() as name, Path(name, "log").open("wb") as log:
        folder = Path(name)
        # There the controller's address is announced (`hopsum.controller.api.rendezvous`).
        environment = {**os.environ, "XDG_RUNTIME_DIR": name}
        arguments = [str(BIN / "hopsum"), "cluster", *serve, "--engine", engine.value]
        cluster = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            announced = folder / "hopsum-controller"
            wait(lambda: find_controller(announced) is not None, "a controller")
            address = find_controller(announced)
            assert address is not None
            wait(lambda: _attached(address) == set(network.hosts), "all agents")
            hosts = hosts_of_controller(network, address)
            yield Processes(network, engine, hosts, address, folder, folder, serve)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait()


def _attached(address: str) -> set[str]:
    try:
        return {node.host for node in ControllerClient(address).nodes() if node.attached}
    except ControllerError:
        return set()


def wait(true: Callable[[], bool], what: str) -> None:
    """Wait for a condition. TimeoutError after `PATIENCE`."""
    until = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come in {PATIENCE:g} s")
        time.sleep(POLL_SECONDS)


def measure(engine: Engine, cases: tuple[Case, ...] = CASES) -> list[dict[str, Any]]:
    """Return a row per case; each has its own network."""
    rows = []
    rate = LINK_RATE[engine]
    network = load_network(TOPOLOGY, link_rate=rate)
    for case in cases:
        start = one_process if engine is Engine.BMV2 and case.of_a_link else processes
        with start(network, TOPOLOGY, "--link-rate", rate, engine=engine) as up:
            rows.append(_measure(case, up))
    return rows


def _look(up: Processes) -> pb.JobInfo | None:
    """Return the job as the controller knows it; None while there is no controller."""
    try:
        return up.client.job("job")
    except ControllerError:
        return None


def _measure(case: Case, up: Processes) -> dict[str, Any]:
    engine = up.engine
    submission = make_submission("job", WORKERS, SERVER, elements=ELEMENTS, rounds=ROUNDS[engine])
    if engine is Engine.BMV2:
        submission.window = WINDOW_BMV2
    up.client.submit(submission)
    wait(lambda: (info := _look(up)) is not None and info.round > 0, "the first sum")
    time.sleep(BEFORE)
    before = _look(up)
    assert before is not None
    case.begin(up)
    failed = time.monotonic()
    noticed: float | None = None
    ended = False
    while True:
        now = time.monotonic() - failed
        if not ended and now >= case.seconds:
            case.end(up)
            ended = True
        info = _look(up)
        if noticed is None and _tells(before, info, up):
            noticed = now
        if ended and info is not None and info.over:
            break
        if now > PATIENCE:
            raise TimeoutError(f"{case.what}: the job is not over after {PATIENCE:g} s")
        time.sleep(POLL_SECONDS)
    intervals = [intervals_from(report.intervals) for report in info.reports.values()]
    seconds = call_seconds([one for one in intervals if one])
    verdicts = [report.verdict for report in info.reports.values() if report.HasField("verdict")]
    still = max(seconds) - median(seconds) if seconds else 0.0
    after = still - case.seconds if case.seconds else 0.0
    return {
        "failure": case.what,
        "noticed": None if noticed is None or case.what == "nothing" else round(noticed, 2),
        "stood_still": round(still, 2) if seconds else None,
        "after_return": round(after, 2) if after > 0 else None,
        "epochs": info.epoch,
        "job": info.state,
        "why": info.reason[:100],
        "sent_again": sum(report.retransmissions for report in info.reports.values()),
        "checked": sum(verdict.checked for verdict in verdicts),
        "wrong": sum(verdict.wrong for verdict in verdicts),
    }


def _tells(before: pb.JobInfo, info: pb.JobInfo | None, up: Processes) -> bool:
    """Return whether the controller reports a failure, or is itself down."""
    if info is None:
        return True
    if info.state == "finished":
        return False
    if info.epoch != before.epoch or info.reason or info.over:
        return True
    return _attached(up.address) != set(up.network.hosts)
