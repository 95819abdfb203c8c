"""Mininet switch classes that run a P4 program: the embedded switch, and BMv2.

Only the standard library and Mininet are imported, so that `mn --custom` can use this file under
the system's Python. Programs and tables come from a controller over P4Runtime.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from functools import cache
from pathlib import Path

from mininet.node import Switch

from hopsum.mininet_topos.addresses import (
    CPU_PORT,
    THRIFT_BASE_PORT,
    grpc_address,
    grpc_socket,
    make_socket_folder,
    program,
    ready_file,
    trace_file,
)
from hopsum.mininet_topos.failures import SwitchFailed
from hopsum.mininet_topos.lifetime import END_WITH_STARTER, KEPT, reduced_privileges

READY_SECONDS = 60.0
PRIORITY_QUEUES = 8
"""A port, one for each class selector of IP. BMv2 has one by default."""


class P4Switch(Switch):
    """A switch process in the root namespace with a P4Runtime socket that is root's alone."""

    def __init__(
        self,
        name,
        device_id=None,
        log_folder="logs",
        send_buffer=None,
        pcap=None,
        trace=(),
        launch=None,
        **parameters,
    ):
        """`device_id` (from 1) also chooses the socket; by default the name's number.

        `send_buffer`: bytes that the kernel may hold for a port, where the switch lets one choose.
        `pcap`: folder for a capture file of each port and direction. `trace`: conditions
        (`HEADER.FIELD=NUMBER`) on packets of which p4switch writes a trace to that folder.
        `launch`: starts the process, as `run_program` does.
        """
        if device_id is None:
            digits = re.findall(r"\d+", name)
            device_id = int(digits[0]) if digits else 1
        parameters.setdefault("dpid", f"{device_id:016x}")
        parameters["inNamespace"] = False
        super().__init__(name, **parameters)
        self.device_id = device_id
        self.send_buffer = send_buffer
        self.pcap = pcap
        self.trace = trace
        self.launch = launch or run_program
        self.log_path = Path(log_folder) / f"{name}.log"
        self.process = None

    @property
    def grpc_address(self):
        """Address of P4Runtime."""
        return grpc_address(self.device_id)

    def interfaces(self):
        """Return `port@interface` for every port with a link."""
        return [
            f"{port}@{interface.name}"
            for port, interface in sorted(self.intfs.items())
            if interface.name != "lo"
        ]

    def switch_command(self):
        """Return the command line that runs the switch."""
        raise AttributeError("a subclass of P4Switch names its command")

    def start(self, controllers):
        """Start the process, which ends with this thread; `wait_until_ready` waits for it."""
        make_socket_folder()
        if _listens(grpc_socket(self.device_id)):
            raise SwitchFailed(
                f"switch {self.name}: another process listens on {self.grpc_address}; `hopsum "
                "stop` takes down what a killed run left"
            )
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # The folder of capture files may be that of who called sudo.
        kept = KEPT if self.pcap is None else (*KEPT, "dac_override")
        # After what a process before it has printed, if that ended by itself.
        with self.log_path.open("w" if self.process is None else "a") as log:
            self.process = self.launch(self.switch_command(), log, kept)

    def wait_until_ready(self):
        """Return when P4Runtime answers; SwitchFailed if the process ends or stays silent."""
        assert self.process is not None, "start() comes first"
        attempts = int(READY_SECONDS / 0.02)
        for _ in range(attempts):
            try:
                code = self.process.wait(0.02)
            except subprocess.TimeoutExpired:
                if _listens(grpc_socket(self.device_id)):
                    return
                continue
            raise SwitchFailed(f"switch {self.name} ended with code {code}:\n{self.log_tail()}")
        raise SwitchFailed(
            f"switch {self.name}: nothing listens on {self.grpc_address} after "
            f"{READY_SECONDS:g} s:\n{self.log_tail()}"
        )

    def connected(self):
        """Return whether a controller has programmed the switch (`mn --wait` asks)."""
        return Path(ready_file(self.name)).exists()

    def log_tail(self, lines=15):
        """Return the end of the switch's log."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return f"(no log: {error})"

    def ask_to_end(self):
        """Ask the process to end, without waiting for it: `end_process` waits."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end_process(self):
        """End the process; it is gone when this returns."""
        if self.process is None:
            return
        self.ask_to_end()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def stop(self, deleteIntfs=True):
        """End the process and remove the interfaces."""
        self.end_process()
        super().stop(deleteIntfs)


class EmbeddedSwitch(P4Switch):
    """p4switch, from the checkout's virtual environment."""

    def switch_command(self):
        """Return `p4switch run` with simple_switch_grpc's flags."""
        command = [program("p4switch"), "run", "--no-p4"]
        command += ["--device-id", str(self.device_id), "--cpu-port", str(CPU_PORT)]
        command += ["--grpc-server-addr", self.grpc_address]
        if self.send_buffer is not None:
            command += ["--send-buffer", str(self.send_buffer)]
        if self.pcap is not None:
            command += ["--pcap", self.pcap]
        if self.trace:
            command += ["--trace", "json"]
            command += ["--trace-file", str(trace_file(self.pcap, self.name))]
        for condition in self.trace:
            command += ["--trace-field", condition]
        for interface in self.interfaces():
            command += ["-i", interface]
        return command


class Bmv2Switch(P4Switch):
    """BMv2's simple_switch_grpc, from PATH."""

    def switch_command(self):
        """Return `simple_switch_grpc --no-p4`, with a Thrift port of its own if it has Thrift."""
        path = shutil.which("simple_switch_grpc")
        if path is None:
            raise SwitchFailed(
                "simple_switch_grpc is not on PATH; install BMv2 or use the embedded engine"
            )
        command = [path, "--no-p4", "--device-id", str(self.device_id)]
        if _has_thrift(path):
            command += ["--thrift-port", str(THRIFT_BASE_PORT + self.device_id)]
        if self.pcap is not None:
            command += ["--pcap", self.pcap]
        for interface in self.interfaces():
            command += ["-i", interface]
        command += ["--", "--grpc-server-addr", self.grpc_address, "--cpu-port", str(CPU_PORT)]
        command += ["--priority-queues", str(PRIORITY_QUEUES)]
        return command


def run_program(command, output, kept):
    """Start a program with these capabilities, which ends with the thread that called this."""
    return subprocess.Popen(
        [*END_WITH_STARTER, *reduced_privileges(kept), *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


SWITCHES = {"embedded": EmbeddedSwitch, "bmv2": Bmv2Switch}


def _listens(path):
    """Return whether something listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(str(path)) == 0


@cache
def _has_thrift(path):
    printed = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
    return "--thrift-port" in printed.stdout + printed.stderr
