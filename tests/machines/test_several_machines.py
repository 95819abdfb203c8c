"""docs/how-to/several-machines.md, command by command, on namespaces in the place of machines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hopsum.network.loaders import load_network
from tests.support.machine import until
from tests.support.machines import Machines, machines
from tests.support.paths import ROOT
from tests.support.units import SERVICE_USER, Unit

BIN = Path(sys.executable).parent
PAGE = ROOT / "docs" / "how-to" / "several-machines.md"
SEVERAL_LINKS = "## Hosts with several links\n"
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
        os.chown(folder / f"{files.get(machine, 'host')}.key", SERVICE_USER, SERVICE_USER)
    shutil.copy(up.home("admin") / "network.json", up.home("ctl") / "etc" / "hopsum")


def with_p4switch(text: str) -> str:
    """The page where there is no BMv2: p4switch on both, as it says, as a service of its kind."""
    tools = [shutil.which(name) for name in ("simple_switch_grpc", "p4c")]
    # Units with ProtectHome do not see what is installed in a home.
    if all(tool and not Path(tool).resolve().is_relative_to("/root") for tool in tools):
        return text.replace("/usr/local/bin/simple_switch_grpc", str(tools[0]))
    text = text.replace('bmv2 = ["right"]\n', "").replace(
        "[controller]: 9 keys", "[controller]: 8 keys"
    )
    cache = "CacheDirectory=hopsum\nEnvironment=XDG_CACHE_HOME=%C/hopsum\n"
    return text.replace(
        "ExecStart=/usr/local/bin/simple_switch_grpc --no-p4",
        f"{cache}ExecStart=/opt/hopsum/bin/p4switch run --no-p4",
    ).replace("-- --cpu-port 510 --priority-queues 8", "--cpu-port 510")


def started(up: Machines, machine: str, unit: str) -> None:
    """Start a service, and wait until it listens, if it does."""
    var = up.home(machine) / "var"
    log = up.start(machine, Unit.read(unit).command(var / "lib", var / "cache"))
    port = {"ctl": ":9600", "left": ":9559", "right": ":9559"}.get(machine)
    if port is not None:
        until(
            lambda: (
                port in up.run(machine, ["ss", "-ltn"]).stdout or up.running[-1].poll() is not None
            ),
            f"the service of {machine}",
        )
    assert up.running[-1].poll() is None, log.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_units_are_what_systemd_understands(tmp_path: Path) -> None:
    units = [
        (tmp_path / Path(title).name, text)
        for kind, title, text in BLOCK.findall(PAGE.read_text())
        if kind == "ini"
    ]
    assert [path.name for path, _ in units] == [
        "p4switch.service",
        "simple-switch.service",
        "hopsum-controller.service",
        "hopsum-agent.service",
    ]
    switch = shutil.which("simple_switch_grpc") or shutil.which("true")
    for path, text in units:
        text = text.replace("/usr/local/bin/simple_switch_grpc", str(switch))
        path.write_text(text.replace("/opt/hopsum/bin", str(BIN)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(path for path, _ in units)],
        capture_output=True,
        text=True,
        check=False,
    )
    # It says of what it does not know that it ignores it, and is content.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_no_service_has_more_rights_than_it_needs() -> None:
    units = [Unit.read(text) for kind, _, text in BLOCK.findall(PAGE.read_text()) if kind == "ini"]
    rights = {
        unit.settings["ExecStart"].split()[0].rpartition("/")[2]: unit.settings[
            "CapabilityBoundingSet"
        ].split()
        for unit in units
    }
    sockets = ["CAP_NET_RAW", "CAP_NET_ADMIN"]
    assert rights == {
        "p4switch": sockets, "simple_switch_grpc": sockets, "hopsum": [], "hopsum-agent": sockets,
    }  # fmt: skip
    for unit in units:
        assert unit.settings["User"] == "hopsum"
        for name in ("NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp"):
            assert unit.on(name), name


@pytest.mark.network
@pytest.mark.acceptance
def test_the_page_works_on_machines(tmp_path: Path) -> None:
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    page, _, _ = PAGE.read_text().partition(SEVERAL_LINKS)
    blocks = BLOCK.findall(with_p4switch(page))
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
                    everybody_is_here(up, **person(up))
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


@pytest.mark.network
@pytest.mark.acceptance
def test_hosts_with_several_links_use_them_together(tmp_path: Path) -> None:
    """The page's network, files and commands, with p4switch on both switches and without TLS."""
    _, _, section = PAGE.read_text().partition(SEVERAL_LINKS)
    network, address, agent, submit, printed = [text for _, _, text in BLOCK.findall(section)]
    with machines(tmp_path, ADDRESSES) as up:
        file = up.home("admin") / "network.json"
        file.write_text(network)
        loaded = load_network(str(file))
        for link in loaded.links:
            up.cable(
                (link.a, f"eth{link.a_port}"),
                (link.b, f"eth{link.b_port + (link.b in loaded.hosts)}"),
            )
        for host in loaded.hosts.values():
            for line in (f"ip link set eth1 address {host.mac}", address):
                own = line.replace(loaded.hosts["h1"].mac, host.mac)
                assert up.run(host.name, own.split()).returncode == 0
            lines = [line for line in agent.splitlines() if not line.startswith("tls-")]
            config = up.home(host.name) / "agent.toml"
            config.write_text("\n".join(lines))
            serve = ("serve", "--config", str(config), "--host", host.name)
            up.start(host.name, [str(BIN / "hopsum-agent"), *serve])
        switches = []
        for number, name in enumerate(loaded.switches, 1):
            ports = [part for port in loaded.ports(name) for part in ("-i", f"{port}@eth{port}")]
            at = f"{ADDRESSES[name].partition('/')[0]}:9559"
            switches += ["--switch", f"{name}={at}"]
            run = ("run", "--no-p4", "--device-id", str(number), "--cpu-port", "510", *ports)
            up.start(name, [str(BIN / "p4switch"), *run, "--grpc-server-addr", at])
        serve_at = ("--listen", "0.0.0.0:9600", "--insecure", *switches)
        up.start("ctl", [str(BIN / "hopsum"), "controller", "serve", str(file), *serve_at])
        everybody_is_here(up)
        done = up.run("admin", ["bash", "-euc", submit.replace("hopsum ", f"{BIN}/hopsum ")])
        assert done.returncode == 0, done.stdout
        for line in printed.splitlines():
            assert line in done.stdout
        sent = {
            (host, port): int(
                up.run(host, ["cat", f"/sys/class/net/eth{port + 1}/statistics/tx_bytes"]).stdout
            )
            for host in ("h1", "h2")
            for port in (0, 1)
        }
        # Half of 5 x 20,000 values of 4 bytes by each.
        assert all(count > 150_000 for count in sent.values()), sent
        command = [f"{BIN}/hopsum", "nodes", "--controller", "192.0.2.1:9600", "--json"]

        def all_reported() -> bool:
            nodes = json.loads(up.run("admin", command).stdout)
            shown = {node["host"]: [link["peer"] for link in node["links"]] for node in nodes}
            return shown == {host: ["left", "right"] for host in loaded.hosts}

        until(all_reported, "reports of both links of every host")


def person(up: Machines) -> dict[str, str]:
    """Return the certificates of a person, for commands."""
    made = up.home("admin") / "certificates"
    files = {"AUTHORITY": "authority.pem", "CERTIFICATE": "alice.pem", "KEY": "alice.key"}
    return {f"HOPSUM_TLS_{part}": str(made / name) for part, name in files.items()}


def everybody_is_here(up: Machines, **tls: str) -> None:
    """Wait for the agents, as a person who starts them by hand does."""

    def attached() -> bool:
        ended = [process for process in up.running if process.poll() is not None]
        assert not ended, [log.read_text() for log in up.folder.glob("*/log-*")]
        command = [f"{BIN}/hopsum", "nodes", "--controller", "192.0.2.1:9600", "--json"]
        done = up.run("admin", command, **tls)
        return done.returncode == 0 and all(node["attached"] for node in json.loads(done.stdout))

    until(attached, "all agents")
