"""Programs of an emulation as forks of one process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopsum.mininet_topos.failures import EmulationError
from hopsum.mininet_topos.fork_server import ForkServer, Process
from hopsum.mininet_topos.lifetime import CAPABILITIES, KEPT
from tests.support.machine import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give up capabilities"),
]
Start = Callable[..., Process]


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(["p4switch"])
    yield made
    made.close()


@pytest.fixture
def start(server: ForkServer, tmp_path: Path) -> Start:
    def started(arguments: list[str], **options: object) -> Process:
        with (tmp_path / "log").open("a") as log:
            return server.start(arguments, log, **options)  # type: ignore[arg-type]

    return started


@pytest.fixture
def lasting(start: Start, tmp_path: Path) -> Callable[..., Process]:
    """Start a switch without ports, and wait until it runs."""

    def started(**options: object) -> Process:
        address = f"unix:{tmp_path}/switch"
        arguments = ["p4switch", "run", "--no-p4", "--grpc-server-addr", address]
        process = start(arguments, **options)
        until = time.monotonic() + PATIENCE
        while "P4Runtime on" not in (tmp_path / "log").read_text():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        return process

    return started


def status_of(process: Process) -> dict[str, str]:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return dict(re.findall(r"(\w+):\s+(\S+)", text))


def test_a_program_prints_and_its_exit_code_is_known(start: Start, tmp_path: Path) -> None:
    good, bad = start(["p4switch", "--version"]), start(["p4switch", "compile", "absent.p4"])
    assert bad.wait(PATIENCE) not in (0, None)
    assert good.wait(PATIENCE) == 0
    assert (good.poll(), bad.poll()) == (0, bad.wait())
    printed = (tmp_path / "log").read_text()
    assert re.search(r"^p4switch \d", printed, re.MULTILINE)
    assert "absent.p4" in printed


def test_a_fork_looks_like_the_program(lasting: Callable[..., Process]) -> None:
    process = lasting(kept=KEPT)
    status = status_of(process)
    assert status["Name"] == "p4switch"
    mask = sum(1 << CAPABILITIES[name] for name in KEPT)
    for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh"):
        assert int(status[kind], 16) == mask
    assert status["NoNewPrivs"] == "1"
    shown = Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0").split("\0")
    assert shown[:3] == ["p4switch", "run", "--no-p4"]
    assert os.getsid(process.pid) == process.pid


def test_a_fork_ends_as_it_is_told(lasting: Callable[..., Process]) -> None:
    process = lasting()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.kill()  # nothing happens: its number may be another's


def test_a_signal_is_its_exit_code(lasting: Callable[..., Process]) -> None:
    process = lasting()
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL


def test_a_fork_is_in_the_network_of_another_process(
    lasting: Callable[..., Process], start: Start, tmp_path: Path
) -> None:
    host = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert host.stdout is not None
    host.stdout.read(1)
    try:
        process = lasting(namespaces_of=host.pid)
        found = [Path(f"/proc/{each}/ns/net").readlink() for each in (host.pid, process.pid)]
        assert found[0] == found[1] != Path("/proc/self/ns/net").readlink()
    finally:
        host.communicate()
    gone = start(["p4switch", "--version"], namespaces_of=host.pid)
    assert gone.wait(PATIENCE) == 1
    assert f"/proc/{host.pid}/ns/net" in (tmp_path / "log").read_text()


def test_forks_end_with_the_server(
    server: ForkServer, lasting: Callable[..., Process], start: Start
) -> None:
    process = lasting()
    server._server.kill()  # noqa: SLF001
    assert process.wait(PATIENCE) == -signal.SIGKILL
    with pytest.raises(EmulationError, match="the process that starts it has ended with code -9"):
        start(["p4switch", "--version"])
