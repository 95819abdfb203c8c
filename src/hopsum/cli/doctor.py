"""Checks of this machine: which features it has, and what works without the others."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from hopsum.cli.shell import PACKAGE, shell_is_ready
from hopsum.mininet_topos.loader import ADD_VETH, runs_in_namespace
from hopsum.protocol.extras import install_command
from hopsum.protocol.web_address import WEB_ADDRESS

DIST_PACKAGES = Path("/usr/lib/python3/dist-packages")
ANSWER_SECONDS = 10.0
VERSION = r"\d+\.\d+(\.\d+)*"
TIMEX_BYTES = 512
"""Size that exceeds the kernel's struct timex."""
FROM_P4LANG = (
    "p4lang's packages, or its source; the embedded switch runs the same program without it"
)
TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronized."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One feature. `found`: its version or location, '' if it is missing."""

    name: str
    found: str
    needed_for: str
    without: str

    @property
    def ok(self) -> bool:
        """Whether it is there."""
        return bool(self.found)

    def to_dict(self) -> dict[str, object]:
        """Return the finding for `--json`."""
        return {**asdict(self), "ok": self.ok}


def examine() -> list[Finding]:
    """Check everything, without changes or exceptions."""
    return [
        Finding("python", _python(), "everything", "install Python 3.11 or newer"),
        *_packages(),
        *_for_real_interfaces(),
        *_for_mininet(),
        *_for_bmv2(),
        *_for_people(),
    ]


def _for_real_interfaces() -> list[Finding]:
    return [
        Finding(
            "cc",
            _version(["cc", "--version"]),
            "the native switch and the fast packet path",
            "apt-get install gcc; without it the interpreter runs the P4 program, and plain "
            "sockets carry the packets: slower",
        ),
        Finding(
            "packet sockets",
            _packet_sockets(),
            "agents and switches on real interfaces",
            "run them as root, or with CAP_NET_RAW",
        ),
    ]


def _for_mininet() -> list[Finding]:
    return [
        Finding(
            "root",
            "yes" if os.geteuid() == 0 else "",
            "Mininet",
            "sudo; simulation works without it",
        ),
        Finding(
            "namespaces",
            _in_namespace("true"),
            "Mininet",
            "not permitted by this kernel or container; simulation works",
        ),
        Finding(
            "veth",
            _in_namespace(ADD_VETH),
            "links in Mininet",
            "modprobe veth; simulation works",
        ),
        Finding(
            "mininet",
            _mininet(),
            "real processes and links",
            "apt-get install mininet; simulation works without it",
        ),
        Finding(
            "tc",
            _version(["tc", "-V"]),
            "link rates in Mininet",
            "apt-get install iproute2; without it links in Mininet have no rate",
        ),
        Finding(
            "htb",
            _qdisc("htb"),
            "link rates in Mininet",
            "modprobe sch_htb; without it links in Mininet have no rate",
        ),
        Finding(
            "netem",
            _qdisc("netem"),
            "latency in Mininet",
            "modprobe sch_netem; without it links in Mininet have no latency, and predictions for "
            "them use zero",
        ),
    ]


def _for_bmv2() -> list[Finding]:
    return [
        Finding(
            "ethtool",
            _version(["ethtool", "--version"]),
            "BMv2 in Mininet (offloads off)",
            "apt-get install ethtool; without it BMv2 loses packets of a burst",
        ),
        Finding("p4c", _version(["p4c", "--version"]), "BMv2", FROM_P4LANG),
        _switch(),
    ]


def _switch() -> Finding:
    """Return whether BMv2 starts: if its libraries are missing, it is there all the same."""
    name = "simple_switch_grpc"
    place = shutil.which(name)
    if place is None:
        return Finding(name, "", "BMv2", FROM_P4LANG)
    said = command_output([name, "--version"])
    version = re.match(VERSION, said)
    if version is None:
        reason = said.strip().partition("\n")[0] or "it says nothing"
        return Finding(name, "", "BMv2", f"{place} is there, but cannot start: {reason}")
    return Finding(name, version[0], "BMv2", FROM_P4LANG)


def _for_people() -> list[Finding]:
    return [
        Finding(
            "p4runtime-shell",
            PACKAGE.partition("==")[2] if shell_is_ready() else "",
            "`hopsum shell`",
            "it is installed on first use, which needs Internet access: `hopsum shell --prepare`",
        ),
        Finding(
            f"port {WEB_ADDRESS.rpartition(':')[2]}",
            _free(WEB_ADDRESS),
            "`--dashboard`",
            f"{WEB_ADDRESS} is taken; give --web another address",
        ),
        Finding(
            "synchronized clock",
            "yes" if _clock_is_synchronized() else "",
            "dates of events on several machines",
            "this machine's clock is not synchronized; timedatectl set-ntp true",
        ),
        Finding(
            "tshark",
            _version(["tshark", "--version"]),
            "looking at captures; testing the Wireshark dissector",
            "apt-get install tshark",
        ),
    ]


def _python() -> str:
    return platform.python_version() if sys.version_info >= (3, 11) else ""


def _packages() -> list[Finding]:
    wanted = {
        "finsy": ("P4Runtime", "no switch outside the simulator can be driven"),
        "grpcio": ("P4Runtime and the agents", "only the simulator works"),
        "numpy": ("everything", "nothing works"),
        "scapy": ("packets by hand, agents over Scapy", install_command("scapy")),
        "scikit-learn": ("`hopsum demo`, `--train digits`", install_command("demo")),
        "matplotlib": ("plots, pages of runs, `hopsum demo`", install_command("plots")),
        "torch": ("the torch.distributed backend", install_command("torch")),
        "etcd3gw": ("several controllers for one cluster", install_command("etcd")),
    }
    findings = []
    for name, (needed_for, without) in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = ""
        findings.append(Finding(name, found, needed_for, without))
    return findings


def command_output(command: Sequence[str]) -> str:
    """Return the output of a command, stdout and stderr; '' if it is missing or does not end."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _version(command: Sequence[str]) -> str:
    """Return the first version number that a command prints, else its path, '' if it is missing."""
    place = shutil.which(command[0])
    if place is None:
        return ""
    match = re.search(VERSION, command_output(command))
    return match[0] if match else place


def _mininet() -> str:
    """Return the version of the distribution's Mininet package (never imported here)."""
    if shutil.which("mnexec") is None or not (DIST_PACKAGES / "mininet").is_dir():
        return ""
    return _version(["mn", "--version"])


def _qdisc(kind: str) -> str:
    """Return whether the kernel has a queueing discipline, tried in a private namespace."""
    if shutil.which("tc") is None:
        return ""
    option = {"htb": "htb", "netem": "netem delay 1ms"}[kind]
    return _in_namespace(f"{ADD_VETH} && tc qdisc add dev hopsum0 root {option}")


def _packet_sockets() -> str:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except OSError:
        return ""
    return "yes"


def _free(address: str) -> str:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return ""
    return "free"


def _clock_is_synchronized() -> bool:
    """Return whether the clock is synchronized by NTP or PTP (adjtimex(2), STA_UNSYNC)."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return False
    return bool(state not in (-1, TIME_ERROR))


def _in_namespace(script: str) -> str:
    """Return whether a script succeeds in namespaces of its own; as root only."""
    return "yes" if os.geteuid() == 0 and runs_in_namespace(script) else ""
