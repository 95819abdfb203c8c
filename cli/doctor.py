"""What this machine has, and what works without the rest."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

DIST_PACKAGES = Path("/usr/lib/python3/dist-packages")
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for. `found`: its version or place, '' if it is missing."""

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
    """Look for everything; nothing is changed, and nothing raises."""
    return [
        Finding("python", _python(), "everything", "Python 3.11 or newer has to be installed"),
        *_packages(),
        Finding(
            "cc",
            _version(["cc", "--version"]),
            "the native switch and the fast packet path",
            "the interpreter runs the P4 program, plain sockets carry the packets: slower",
        ),
        Finding("root", "yes" if os.geteuid() == 0 else "", "Mininet", "simulation works"),
        Finding("mininet", _mininet(), "real processes and links", "simulation works"),
        Finding(
            "tc",
            _version(["tc", "-V"]),
            "link rates in Mininet",
            "links in Mininet have no rate",
        ),
        Finding("htb", _qdisc("htb"), "link rates in Mininet", "links in Mininet have no rate"),
        Finding(
            "netem",
            _qdisc("netem"),
            "latency in Mininet",
            "links in Mininet have no latency (predictions then use zero)",
        ),
        Finding(
            "ethtool",
            _version(["ethtool", "--version"]),
            "BMv2 in Mininet (offloads off)",
            "BMv2 loses packets of a burst",
        ),
        Finding("p4c", _version(["p4c", "--version"]), "BMv2", "the embedded switch needs none"),
        Finding(
            "simple_switch_grpc",
            _version(["simple_switch_grpc", "--version"]),
            "BMv2",
            "the embedded switch runs the same program",
        ),
        Finding(
            "tshark",
            _version(["tshark", "--version"]),
            "testing the Wireshark dissector",
            "its test is skipped",
        ),
    ]


def _python() -> str:
    return platform.python_version() if sys.version_info >= (3, 11) else ""


def _packages() -> list[Finding]:
    wanted = {
        "finsy": ("P4Runtime", "no switch outside the simulator can be driven"),
        "grpcio": ("P4Runtime and the agents", "only the simulator works"),
        "numpy": ("everything", "nothing works"),
        "scapy": ("the Scapy layer, extra `scapy`", "its commands and tests are missing"),
        "scikit-learn": (
            "the digits, extra `demo`",
            "`hopsum demo` and `--train digits` do not work",
        ),
        "matplotlib": (
            "plots, extra `plots`",
            "`hopsum demo` and `hopsum simulate --plot` do not work",
        ),
        "torch": (
            "the torch.distributed backend, extra `torch`",
            "its tests and examples are skipped",
        ),
    }
    findings = []
    for name, (needed_for, without) in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = ""
        findings.append(Finding(name, found, needed_for, without))
    return findings


def _version(command: Sequence[str]) -> str:
    """Return the first version number that a command prints, else where it is, '' if it is not."""
    place = shutil.which(command[0])
    if place is None:
        return ""
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
        return place
    match = re.search(r"\d+\.\d+(\.\d+)*", done.stdout + done.stderr)
    return match[0] if match else place


def _mininet() -> str:
    """Return the version of the distribution's Mininet package (never imported here)."""
    if shutil.which("mnexec") is None or not (DIST_PACKAGES / "mininet").is_dir():
        return ""
    return _version(["mn", "--version"])


def _qdisc(kind: str) -> str:
    """Whether the kernel has a queueing discipline, asked on a dummy of a private namespace."""
    if os.geteuid() != 0 or shutil.which("tc") is None or shutil.which("unshare") is None:
        return ""
    option = {"htb": "htb", "netem": "netem delay 1ms"}[kind]
    script = (
        f"ip link add hopsum0 type veth peer name hopsum1 && tc qdisc add dev hopsum0 root {option}"
    )
    try:
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", script],
            capture_output=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "yes" if done.returncode == 0 else ""
