"""A network in Mininet, and the processes of its controllers and agents."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopsum.controller.api.client import ControllerClient
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.fork_server import Process
from hopsum.network.model import Network
from hopsum.protocol.channel import Tls
from tests.support.machine import PATIENCE, until

HOPSUM = Path(sys.executable).with_name("hopsum")
TOPOLOGY = "star:4"
LINK_RATE = "2Mbit"
"""A long job is one of slow links: it costs less than one of much data."""


@dataclass
class ServedCluster:
    """A network that is up, and the processes of its controller and agents.

    `environment`: of the commands, with the certificates of a person; `tls`: the same.
    """

    folder: Path
    network: Network
    emulation: Emulation
    environment: dict[str, str]
    agents: dict[str, Process] = field(default_factory=dict)
    controller: subprocess.Popen[bytes] | None = None
    address: str = ""
    tls: Tls | None = None
    topology: str = TOPOLOGY

    @property
    def log_file(self) -> Path:
        """The controller's output."""
        return self.folder / "controller.log"

    def serve(self, listen: str, *options: str) -> None:
        """Start the controller, and wait until it says where it is."""
        with self.log_file.open("wb") as out:
            self.controller = subprocess.Popen(
                [
                    *(str(HOPSUM), "controller", "serve", self.topology, "--link-rate", LINK_RATE),
                    *("--listen", listen, *options),
                ],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=out,
            )
        until(self.printed_address, "the controller")
        self.address = self.log_file.read_text().strip().rpartition(" at ")[2]

    def printed_address(self) -> bool:
        """Whether the controller, which must not have ended, has printed its address."""
        assert self.controller is not None
        assert self.controller.poll() is None, self.log_file.read_text()
        return " at " in self.log_file.read_text()

    def stop_controller(self) -> None:
        """End the controller as a person does."""
        if self.controller is not None and self.controller.poll() is None:
            self.controller.send_signal(signal.SIGINT)
            assert self.controller.wait(PATIENCE) == 0

    def attach(self, host: str, address: str, *options: str) -> Process:
        """Start a host's agent in its namespace."""
        where = ("--controller", address, "--host", host, "--interface", self.interface(host))
        self.agents[host] = self.emulation.start_agent(host, ["serve", *where, *options])
        return self.agents[host]

    def interface(self, host: str) -> str:
        """Return the name of a host's interface."""
        return self.emulation.interface(host, self.network.access_switch(host))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The result of a command."""
        return subprocess.run(
            [str(HOPSUM), *arguments, "--controller", self.address],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            env=self.environment | environment,
        )

    def ask(self, *arguments: str) -> Any:
        """A command's JSON output."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def attached(self) -> set[str]:
        """The hosts whose agents are here."""
        nodes = ControllerClient(self.address, self.tls).nodes()
        return {node.host for node in nodes if node.attached}

    def log(self, host: str) -> str:
        """The output of a host's agent."""
        return self.emulation.log_tail(host)
