"""docs/how-to/several-machines.md, command by command, on namespaces in the place of machines."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from network.loaders import load_network
from tests.support.machine import until
from tests.support.machines import Machines, machines
from tests.support.paths import ROOT

pytestmark = pytest.mark.network

BIN = Path(sys.executable).parent
PAGE = ROOT / "docs" / "how-to" / "several-machines.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ADDRESSES = {
    "admin": "192.0.2.2/24",
    "ctl": "192.0.2.1/24",
    "left": "192.0.2.11/24",
    "right": "192.0.2.12/24",
    "h1": "192.0.2.21/24",
    "h2": "192.0.2.22/24",
    "ps": "192.0.2.23/24",
}


def wire(up: Machines) -> None:
    """Lay the page's cables, and give hosts' cards their addresses."""
    network = load_network(str(up.home("admin") / "network.json"))
    for link in network.links:
        ends = [
            (node, "eth1" if node in network.hosts else f"eth{port}")
            for node, port in ((link.a, link.a_port), (link.b, link.b_port))
        ]
        up.cable(*ends)
    for host in network.hosts.values():
        for line in (
            f"ip link set eth1 address {host.mac}",
            f"ip address add {host.ip}/24 dev eth1",
        ):
            assert up.run(host.name, line.split()).returncode == 0


def here(up: Machines, machine: str, text: str) -> str:
    """The text with this machine's folders in the place of those of the page."""
    home = up.home(machine)
    for folder in ("/etc/hopsum", "/var/lib/hopsum"):
        (home / folder[1:]).mkdir(parents=True, exist_ok=True)
        text = text.replace(folder, str(home / folder[1:]))
    return text.replace("/opt/hopsum/bin", str(BIN)).replace("%l", machine)


def command_of(unit: str) -> list[str]:
    """What a unit of systemd starts."""
    [line] = re.findall(r"^ExecStart=(.*?)(?<!\\)$", unit, re.MULTILINE | re.DOTALL)
    return shlex.split(line.replace("\\\n", " "))


def copy_certificates(up: Machines) -> None:
    """Copy what the page says, from the machine that made them."""
    made = up.home("admin") / "certificates"
    names = {
        "ctl": "controller",
        "left": "left",
        "right": "right",
        "h1": "h1",
        "h2": "h2",
        "ps": "ps",
    }
    files = {"ctl": "controller", "left": "switch", "right": "switch"}
    for machine, name in names.items():
        folder = up.home(machine) / "etc" / "hopsum"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / "authority.pem", folder)
        for kind in ("pem", "key"):
            shutil.copy(made / f"{name}.{kind}", folder / f"{files.get(machine, 'host')}.{kind}")
    shutil.copy(up.home("admin") / "network.json", up.home("ctl") / "etc" / "hopsum")


def with_p4switch(text: str) -> str:
    """The page where there is no BMv2: p4switch on both, as it says."""
    if shutil.which("simple_switch_grpc") and shutil.which("p4c"):
        return text.replace(
            "/usr/local/bin/simple_switch_grpc", str(shutil.which("simple_switch_grpc"))
        )
    text = text.replace('bmv2 = ["right"]\n', "").replace(
        "[controller]: 9 keys", "[controller]: 8 keys"
    )
    return text.replace(
        "/usr/local/bin/simple_switch_grpc --no-p4", "/opt/hopsum/bin/p4switch run --no-p4"
    ).replace("-- --cpu-port 510 --priority-queues 8", "--cpu-port 510")


def started(up: Machines, machine: str, unit: str) -> None:
    """Start a service, and wait until it listens, if it does."""
    log = up.start(machine, command_of(unit))
    port = {"ctl": ":9600", "left": ":9559", "right": ":9559"}.get(machine)
    if port is not None:
        until(
            lambda: (
                port in up.run(machine, ["ss", "-ltn"]).stdout or up.running[-1].poll() is not None
            ),
            f"the service of {machine}",
        )
    assert up.running[-1].poll() is None, log.read_text()


def test_the_page_works_on_machines(tmp_path: Path) -> None:
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    blocks = BLOCK.findall(with_p4switch(PAGE.read_text()))
    printed = ""
    with machines(tmp_path, ADDRESSES) as up:
        for kind, title, text in blocks:
            where, _, path = title.partition(": ")
            if kind == "text":
                for line in text.splitlines():
                    before, found, printed = printed.partition(line.strip())
                    assert found, f"{line!r} does not come in {before}"
            elif kind == "json":
                json.loads(text)
                (up.home("admin") / title).write_text(text)
                wire(up)
            elif kind == "sh":
                if "--wait" in text:
                    everybody_is_here(up)
                script = here(up, where, text)
                done = up.run(where, ["bash", "-euc", script], COLUMNS="200")
                printed = done.stdout
                assert done.returncode == 0, printed
                if "certificates" in text and "export" not in text:
                    copy_certificates(up)
            elif kind == "toml":
                for machine in where.split(", "):
                    Path(here(up, machine, path)).write_text(here(up, machine, text))
            elif kind == "ini":
                for machine in where.split(", "):
                    started(up, machine, here(up, machine, text))


def everybody_is_here(up: Machines) -> None:
    """Wait for the agents, as somebody does who starts them by hand."""
    tls = {
        f"HOPSUM_TLS_{part}": str(up.home("admin") / "certificates" / name)
        for part, name in (
            ("AUTHORITY", "authority.pem"),
            ("CERTIFICATE", "alice.pem"),
            ("KEY", "alice.key"),
        )
    }

    def attached() -> bool:
        command = ["hopsum", "nodes", "--controller", "192.0.2.1:9600", "--json"]
        done = up.run("admin", command, **tls)
        assert done.returncode == 0, done.stdout
        return all(node["attached"] for node in json.loads(done.stdout))

    until(attached, "all agents")
