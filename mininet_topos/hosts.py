"""Hosts and links of a running emulation: programs on hosts, and link counters."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from hopsum.mininet_topos.failures import EmulationError
from hopsum.mininet_topos.lifetime import END_WITH_STARTER
from hopsum.mininet_topos.record import (
    INTERFACES,
    MARK,
    RunRecord,
    processes_of,
    record_of,
    state_folder,
)
from hopsum.network.model import Network


class EmulatedHosts(ABC):
    """The hosts of an emulation, and its links."""

    def __init__(self, network: Network) -> None:
        self.network = network

    @abstractmethod
    def pid(self, host: str) -> int:
        """Return a process that is in a host's namespaces while the emulation is up."""

    @abstractmethod
    def popen(self, host: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program in a host's namespace, which ends with this process at the latest."""

    def interface(self, node: str, neighbour: str) -> str:
        """Return the name of a node's interface towards a neighbour."""
        return f"{node}-eth{self.network.port(node, neighbour)}"

    def command(self, arguments: Sequence[str], host: str | None) -> list[str]:
        """Return the command that runs another one in a host's namespace (None: in root's)."""
        return (
            list(arguments) if host is None else ["mnexec", "-a", str(self.pid(host)), *arguments]
        )

    def run(self, host: str, arguments: Sequence[str], timeout: float = 30) -> str:
        """Run a program in a host's namespace; returns what it printed on standard output."""
        return subprocess.run(
            self.command(arguments, host),
            capture_output=True, text=True, check=True, timeout=timeout,
        ).stdout  # fmt: skip

    def link_bytes(self) -> dict[tuple[str, str], int]:
        """Return bytes sent over every link, by direction, from the kernel's interface counters.

        Read at the switch's end (of two switches, the sender's), in the root namespace; between two
        hosts at the sender's.
        """
        counted = {}
        sent = {
            host: self._sent_bytes(host)
            for host in self.network.hosts
            if any(peer in self.network.hosts for peer in self.network.ports(host).values())
        }
        for u, v in self.network.directed_links():
            if u in self.network.switches:
                interface, name = self.interface(u, v), "tx_bytes"
            elif v in self.network.hosts:
                counted[u, v] = sent[u][self.interface(u, v)]
                continue
            else:
                interface, name = self.interface(v, u), "rx_bytes"
            path = INTERFACES / interface / "statistics" / name
            counted[u, v] = int(path.read_text())
        return counted

    def set_link(self, u: str, v: str, up: bool) -> None:
        """Restore a link, or cut it, at a switch's end: a host would lose its routes with its own.

        Raises EmulationError for a link that has no switch.
        """
        ends = [(node, peer) for node, peer in ((u, v), (v, u)) if node in self.network.switches]
        if not ends:
            raise EmulationError(
                f"link {u}-{v} is between two hosts, whose routes would be lost with it; only "
                "links of switches can be cut"
            )
        command = ["ip", "link", "set", self.interface(*ends[0]), "up" if up else "down"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EmulationError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")

    def link_states(self) -> dict[str | tuple[str, str], bool]:
        """Return whether links of switches are up, from the kernel's interface states.

        By their ends, in alphabetical order. Read at one end: a virtual Ethernet link is up only if
        both ends are.
        """
        states: dict[str | tuple[str, str], bool] = {}
        for link in self.network.links:
            switch = link.a if link.a in self.network.switches else link.b
            if switch not in self.network.switches:
                continue
            other = link.b if switch == link.a else link.a
            state = INTERFACES / self.interface(switch, other) / "operstate"
            try:
                up = state.read_text().strip() == "up"
            except OSError:
                up = False
            states[min(link.a, link.b), max(link.a, link.b)] = up
        return states

    def _sent_bytes(self, host: str) -> dict[str, int]:
        """Return the bytes that each of a host's interfaces has sent."""
        shown = json.loads(self.run(host, ["ip", "-json", "-stats", "link", "show"]))
        return {each["ifname"]: each["stats64"]["tx"]["bytes"] for each in shown}


class ForeignHosts(EmulatedHosts):
    """The hosts of an emulation of another process on this machine; `record`: its record.

    Programs started on them have its mark, so that they end with it too. Raises EmulationError
    where a host's namespace is not found.
    """

    def __init__(self, network: Network, record: RunRecord) -> None:
        super().__init__(network)
        self._token = record.token
        self._pids: dict[str, int] = {}
        for pid in processes_of(record.token):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                # How Mininet's shells on hosts are called (mininet.node.Node.startShell).
                for word in words:
                    if word.startswith(b"mininet:"):
                        self._pids[word.decode().removeprefix("mininet:")] = pid
        missing = [host for host in network.hosts if host not in self._pids]
        if missing:
            raise EmulationError(
                f"host {missing[0]} of {network.name} is not found among the processes of the "
                f"emulation that process {record.owner} has up; wait until it is up, or has ended"
            )

    def pid(self, host: str) -> int:
        """Return the process of a host's shell."""
        return self._pids[host]

    def popen(self, host: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program in a host's namespace; it ends with the thread that calls this."""
        return subprocess.Popen(
            [*END_WITH_STARTER, *self.command(arguments, host)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=self.environment(),
        )

    def environment(self) -> dict[str, str]:
        """Return this process's environment with the mark: what has it ends with the emulation."""
        return {**os.environ, MARK: self._token}


def hosts_of_controller(network: Network, address: str) -> ForeignHosts:
    """Return the hosts of the emulation whose controller listens at `address`.

    Raises EmulationError if it is of none that is up on this machine, or the caller is not root.
    """
    record = record_of(Path(address.removeprefix("unix:")).parent, state_folder())
    if record is None:
        raise EmulationError(
            f"the controller at {address} is not that of an emulation on this machine; on hosts of "
            "your own run PyTorch's torchrun, or let --topology bring up a network here"
        )
    return ForeignHosts(network, record)
