"""Check of a configuration file on this machine, and against a running controller."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopsum.cli.command_reference import CONFIGURED, command_named
from hopsum.cli.doctor import Finding, command_output
from hopsum.files.options_file import OptionsFileError, read_options, read_tables
from hopsum.host_agent.interfaces import interfaces_by_port
from hopsum.protocol.channel import ControllerError, Tls, check_tls
from hopsum.protocol.errors import HopsumError
from hopsum.protocol.version import version

CONNECT_SECONDS = 3.0
LEAST_MTU = 1500
FEW_DAYS = 14.0
MOST_CLOCK_SECONDS = 1.0
"""Tolerated difference of clocks in seconds: only people compare dates of events and reports."""
OFFLOADS = ("tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload")
SYS_NET = Path("/sys/class/net")
NOT_KNOWN = "the command would fail with this error"


def check_file(path: Path) -> list[Finding]:
    """Check every table of a file and return findings, without starting or changing anything."""
    checks = {"controller": _controller, "agent": _agent}
    try:
        tables = read_tables(path)
    except OptionsFileError as error:
        return [Finding("configuration file", "", "everything", str(error))]
    strange = [name for name in tables if name not in checks]
    if strange or not tables:
        found = f"[{strange[0]:.80}]" if strange else "nothing"
        words = (
            f"{path}: expected the tables [controller] and [agent], or one of them; found {found}"
        )
        return [Finding("configuration file", "", "everything", words)]
    findings: list[Finding] = []
    for table in tables:
        try:
            options = read_options(path, table, command_named(CONFIGURED[table]))
        except OptionsFileError as error:
            findings.append(Finding(f"[{table}]", "", table, str(error)))
            continue
        findings.append(Finding(f"[{table}]", f"{len(options)} keys", table, NOT_KNOWN))
        findings += checks[table](options)
    return findings


def _found(
    name: str, needed_for: str, look: Callable[[], str], without: str = NOT_KNOWN
) -> Finding:
    """Return the result of `look`, or why it failed."""
    try:
        return Finding(name, look(), needed_for, without)
    except (HopsumError, OSError, ValueError) as error:
        return Finding(name, "", needed_for, " ".join(str(error).split()))


def _tls(table: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    files = [options.get(f"tls_{part}") for part in ("authority", "certificate", "key")]
    if not any(files):
        return
    tls = Tls(*(None if name is None else Path(name) for name in files))

    def look() -> str:
        from hopsum.controller.api.authority import days_left

        check_tls(tls)
        left = [days_left(path) for path in (tls.authority, tls.certificate) if path is not None]
        if left and min(left) < FEW_DAYS:
            raise ValueError(
                f"a certificate is valid for {min(left):.0f} more days; make new ones with `hopsum "
                "certificates`"
            )
        if tls.key is not None and tls.key.stat().st_mode & 0o077:
            raise ValueError(f"{tls.key}: others can read it; chmod 600 {tls.key}")
        return f"good for {min(left, default=0):.0f} days"

    yield _found(f"[{table}] certificates", "TLS", look)


def _controller(options: Mapping[str, Any]) -> Iterator[Finding]:
    from hopsum.cli.cluster_commands import switch_addresses
    from hopsum.network.loaders import load_network
    from hopsum.network.model import Network

    names = (
        *("link_rate", "uplink_rate", "workers", "servers", "plain"),
        *("hosts_per_switch", "largest_piece"),
    )
    networks: list[Network] = []

    def network() -> str:
        if "network" not in options:
            raise ValueError("network: missing; expected a name, or a file")
        given = {name: options[name] for name in names if name in options}
        networks.append(load_network(options["network"], **given))
        [loaded] = networks
        return f"{loaded.name}, {len(loaded.hosts)} hosts, {len(loaded.switches)} switches"

    yield _found("[controller] network", "controller", network)
    yield from _tls("controller", options)
    yield _found("[controller] access", "controller", lambda: _access(options))
    listen = options.get("listen")
    if listen is not None and not listen.startswith("unix:"):
        yield _found("[controller] listen", "controller", lambda: _can_listen(listen))
    if "jobs" in options:
        yield _found(
            "[controller] jobs", "jobs after a restart", lambda: _writable(options["jobs"])
        )
    if not networks:
        return
    addresses: dict[str, str] = {}

    def switches() -> str:
        addresses.update(switch_addresses(networks[0], options.get("switch", ())))
        return f"{len(addresses)} addresses" if addresses else "on this machine"

    yield _found("[controller] switch", "controller", switches)
    for name, address in addresses.items():
        yield _found(
            f"switch {name}",
            "sums there",
            lambda address=address: _answers(address),  # type: ignore[misc]
        )


def _agent(options: Mapping[str, Any]) -> Iterator[Finding]:
    missing = [name for name in ("controller", "host", "interface") if name not in options]
    if missing:
        words = f"{', '.join(missing)}: neither here; expected on the command line"
        yield Finding("[agent] the rest", "on the command line", "agent", words)
    yield from _tls("agent", options)
    yield from _interfaces(options.get("interface", ()))
    address = options.get("controller")
    if address is not None:
        yield _found(f"controller {address}", "agent", lambda: _answers(address))


def _interfaces(texts: Sequence[str]) -> Iterator[Finding]:
    if not texts:
        return
    try:
        names = interfaces_by_port(texts).values()
    except ValueError as error:
        yield Finding("[agent] interface", "", "packets", str(error))
        return
    for name in names:
        yield from check_interface(name)


def check_interface(name: str) -> Iterator[Finding]:
    """Check an interface of the data network: a host's, or a port of a switch."""
    yield _found(f"interface {name}", "packets", lambda: _interface(name))
    if name and (SYS_NET / name).is_dir():
        yield _found(f"offloads of {name}", "BMv2 here or next to it", lambda: _offloads(name))


def _access(options: Mapping[str, Any]) -> str:
    """Describe who may access the controller. Raises what `controller serve` would."""
    from hopsum.controller.api.listening import check_access

    files = [options.get(f"tls_{part}") for part in ("authority", "certificate", "key")]
    own = [None if name is None else Path(name) for name in files]
    listen, group = options.get("listen", "unix:"), options.get("group")
    insecure = bool(options.get("insecure"))
    # A controller at a Unix socket may have files for its switches.
    tls = Tls(*own) if any(own) and not listen.startswith("unix:") else None
    check_access(listen, tls, insecure=insecure, group=group)
    if listen.startswith("unix:"):
        return "its own user" + ("" if group is None else f", and group {group}")
    return "everybody (insecure)" if insecure else "who has a certificate of the authority"


def _can_listen(address: str) -> str:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "in use; by the controller if it runs"
            raise ValueError(f"{address}: {error.strerror}") from None
    return "free"


def _writable(path: str) -> str:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; create it")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder}: not writable for this user")
    return path


def _answers(address: str) -> str:
    """Check that an address accepts connections; ValueError if not."""
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONNECT_SECONDS)
                probe.connect(address.removeprefix("unix:"))
            return "accepts connections"
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            return "accepts connections"
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"{address}: {why}; is it up, and does a firewall block it?") from None


def _interface(name: str) -> str:
    folder = SYS_NET / name
    if not name or "/" in name or not folder.is_dir():
        known = ", ".join(sorted(path.name for path in SYS_NET.iterdir()))
        raise ValueError(f"not found; this machine has {known}")
    mtu = int((folder / "mtu").read_text())
    if mtu < LEAST_MTU:
        raise ValueError(f"MTU {mtu}: expected at least {LEAST_MTU}; ip link set {name} mtu 1500")
    state = (folder / "operstate").read_text().strip()
    if state == "down":
        raise ValueError(f"down; ip link set {name} up")
    return f"{state}, MTU {mtu}, {(folder / 'address').read_text().strip()}"


def _offloads(name: str) -> str:
    lines = command_output(["ethtool", "-k", name]).splitlines()
    on = [line.partition(":")[0] for line in lines if line.strip().endswith(": on")]
    wrong = [offload for offload in OFFLOADS if offload in on]
    if wrong:
        raise ValueError(
            f"on: {', '.join(wrong)}; BMv2 would lose packets of TCP bursts: "
            f"ethtool -K {name} tso off gso off gro off"
        )
    return "off" if lines else "unknown without ethtool"


def check_controller(address: str | None) -> list[Finding]:
    """Query a running controller (None: this user's) for its version and clock."""
    from hopsum.controller.api.client import ControllerClient

    try:
        sent = time.time()
        client = ControllerClient(address)
        state = client.state()
        answered = time.time()
    except ControllerError as error:
        words = " ".join(str(error).split())
        return [Finding("controller", "", "submit and watch jobs", words)]
    away = max(sent - state.date, state.date - answered, 0.0)
    ours, theirs = version(), state.version or "before 0.2"
    return [
        Finding("controller", client.address, "submit and watch jobs", ""),
        Finding(
            "versions",
            ours if ours == theirs else "",
            "commands and controller",
            f"this is {ours or 'unknown'}, the controller's {theirs}; install the same on both",
        ),
        Finding(
            "clocks",
            f"{away:.1f} s apart" if away <= MOST_CLOCK_SECONDS else "",
            "dates of events",
            f"{away:.0f} s apart; let NTP set both (timedatectl)",
        ),
    ]
