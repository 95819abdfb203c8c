"""`p4switch run` as a process between two network namespaces: pushing, pinging, killing."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import finsy
import grpc
import pytest
from finsy import P4TableAction as Action
from finsy import P4TableEntry as Entry
from finsy import P4TableMatch as Match

from p4switch.device.bundle import make_bundle
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.p4runtime.p4info import p4info_text
from p4switch.packet_io.pcap import read_pcap
from p4switch.packet_io.sockets import open_packet_socket
from tests.support.machine import PATIENCE, interface_names, unique, until
from tests.support.paths import PROGRAMS

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("ping") is None,
        reason="needs root, iproute2 and ping",
    ),
]


@pytest.fixture(autouse=True)
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """finsy gives a request up after ten seconds, in which a busy machine may not compile."""
    monkeypatch.setattr("finsy.p4client._DEFAULT_RPC_TIMEOUT", PATIENCE)


@dataclass
class Host:
    """A namespace with one interface; the switch has the other end."""

    namespace: str
    port: int
    interface: str
    mac: str
    address: str

    def reaches(self, other: Host, patience: float = PATIENCE) -> bool:
        """Whether three pings are all answered."""
        command = ["ip", "netns", "exec", self.namespace, "ping", "-q", "-c", "3", "-i", "0.2"]
        result = subprocess.run([*command, "-W", str(patience), other.address], capture_output=True)
        return result.returncode == 0 and b" 0% packet loss" in result.stdout


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two hosts in different subnets, each with the switch as its gateway."""
    made: list[Host] = []
    try:
        for port in (1, 2):
            host = Host(
                unique("p4switch"),
                port,
                *interface_names("s"),
                f"02:00:00:00:00:0{port}",
                f"10.0.{port}.2",
            )
            ip("netns", "add", host.namespace)
            made.append(host)
            inside = ("-n", host.namespace)
            ip(
                "link",
                "add",
                host.interface,
                "type",
                "veth",
                "peer",
                "eth0",
                "netns",
                host.namespace,
            )
            command = ["sysctl", "-qw", f"net.ipv6.conf.{host.interface}.disable_ipv6=1"]
            subprocess.run(command, check=True)
            ip("link", "set", host.interface, "up")
            ip(*inside, "link", "set", "eth0", "address", host.mac, "up")
            ip(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
            gateway = f"10.0.{port}.1"
            ip(*inside, "neigh", "add", gateway, "lladdr", "02:00:00:00:00:fe", "dev", "eth0")
            ip(*inside, "route", "add", "default", "via", gateway)
        yield made
    finally:
        for host in made:
            ip("netns", "delete", host.namespace)


@pytest.fixture(params=["native", "interpreter"])
def executor(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    name: str = request.param
    return name


StartSwitch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_switch(hosts: list[Host], executor: str, tmp_path: Path) -> Iterator[StartSwitch]:
    """`start_switch(more options)`: a switch process between the hosts."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "p4switch.cli.main", "run", "--executor", executor]
        for host in hosts:
            command += ["-i", f"{host.port}@{host.interface}"]
        with (tmp_path / "log").open("ab") as log:
            processes.append(
                subprocess.Popen([*command, *options], stderr=log, start_new_session=True)
            )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def routes(hosts: list[Host]) -> list[Entry]:
    return [
        Entry(
            "routes",
            match=Match({"hdr.ipv4.dst": f"10.0.{host.port}.0/24"}),
            action=Action("forward", next_hop=host.mac, port=host.port),
        )
        for host in hosts
    ]


def test_a_controller_programs_the_switch_and_again_after_kill_9(
    hosts: list[Host], start_switch: StartSwitch, tmp_path: Path
) -> None:
    bundle = make_bundle(PROGRAMS / "router.p4")
    (tmp_path / "router.p4bin").write_bytes(bundle)
    info = p4info_text(compile_program(parse_text(bundle.decode())))
    (tmp_path / "router.txtpb").write_text(info)
    address = f"unix:{tmp_path}/p4rt"

    async def main() -> None:
        programmed: asyncio.Queue[None] = asyncio.Queue()

        async def ready(switch: finsy.Switch) -> None:
            await switch.insert(routes(hosts))
            programmed.put_nowait(None)

        options = finsy.SwitchOptions(
            p4info=tmp_path / "router.txtpb", p4blob=tmp_path / "router.p4bin", ready_handler=ready
        )
        controller = finsy.Controller([finsy.Switch("s1", address, options)])
        options_of_switch = ("--no-p4", "--grpc-server-addr", address)
        process = start_switch(*options_of_switch)
        task = asyncio.create_task(controller.run())
        async with asyncio.timeout(PATIENCE):
            await programmed.get()
            assert await asyncio.to_thread(hosts[0].reaches, hosts[1])
            assert await asyncio.to_thread(hosts[1].reaches, hosts[0])
            process.kill()
            assert process.wait() == -signal.SIGKILL
            assert not await asyncio.to_thread(hosts[0].reaches, hosts[1], 0.5)
            start_switch(*options_of_switch)
            await programmed.get()
            assert await asyncio.to_thread(hosts[0].reaches, hosts[1])
        controller.stop()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_the_ports_stay_open_when_the_pipeline_changes(
    hosts: list[Host], start_switch: StartSwitch, tmp_path: Path
) -> None:
    """A program that drops all, then a router: frames flow without a new process."""
    bundles = {name: make_bundle(PROGRAMS / f"{name}.p4") for name in ("stacks", "router")}
    address = f"unix:{tmp_path}/p4rt"

    def options(name: str) -> finsy.SwitchOptions:
        info, blob = tmp_path / f"{name}.txtpb", tmp_path / f"{name}.p4bin"
        blob.write_bytes(bundles[name])
        info.write_text(p4info_text(compile_program(parse_text(bundles[name].decode()))))
        return finsy.SwitchOptions(p4info=info, p4blob=blob)

    async def main() -> None:
        async with finsy.Switch("s1", address, options("stacks")):
            pass
        async with finsy.Switch("s1", address, options("router")) as switch:
            await switch.insert(routes(hosts))

    process = start_switch("--no-p4", "--grpc-server-addr", address)
    wait_for(address)
    asyncio.run(main())
    assert hosts[0].reaches(hosts[1])
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_a_program_from_the_command_line_and_capture_files(
    hosts: list[Host], start_switch: StartSwitch, tmp_path: Path
) -> None:
    """Without P4Runtime: the program's own entries forward, and files show every frame."""
    program = tmp_path / "swap.p4"
    program.write_text(WIRE)
    address = f"unix:{tmp_path}/p4rt"
    process = start_switch(
        str(program), "--grpc-server-addr", address, "--pcap", str(tmp_path / "pcap")
    )
    wait_for(address)
    frames = [bytes([n]) * 60 for n in range(20)]
    sender, receiver = (in_namespace(host) for host in hosts)
    with sender, receiver:
        receiver.settimeout(PATIENCE)
        for frame in frames:
            sender.send(frame)
        assert [receiver.recv(2000) for _ in frames] == frames
    process.terminate()
    assert process.wait(PATIENCE) == 0
    for host, direction in zip(hosts, ("in", "out"), strict=True):
        path = tmp_path / "pcap" / f"{host.interface}_{direction}.pcap"
        captured = [frame for _, frame in read_pcap(path) if frame in frames]
        assert captured == frames


def test_a_traced_process_says_what_becomes_of_each_frame(
    hosts: list[Host], tmp_path: Path
) -> None:
    program, trace = tmp_path / "wire.p4", tmp_path / "trace"
    program.write_text(WIRE)
    address = f"unix:{tmp_path}/p4rt"
    command = [sys.executable, "-m", "p4switch.cli.main", "run", str(program)]
    command += ["--grpc-server-addr", address, "--trace", "json", "--trace-file", str(trace)]
    for host in hosts:
        command += ["-i", f"{host.port}@{host.interface}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        wait_for(address)
        sender, receiver = (in_namespace(host) for host in hosts)
        with sender, receiver:
            receiver.settimeout(1.0)

            def arrives() -> bool:
                sender.send(bytes([9]) * 60)
                with suppress(TimeoutError):
                    return receiver.recv(2000) == bytes([9]) * 60
                return False

            until(arrives, "the frame")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    traced = [json.loads(line) for line in trace.read_text().splitlines()]
    ours = [each for each in traced if each["frame"] == "09" * 60]
    assert ours
    for each in ours:
        assert (each["port"], each["out"]) == (1, [{"port": 2, "frame": "09" * 60}])


WIRE = """
#include <core.p4>
#include <v1model.p4>
struct none_t {}
parser P(packet_in b, out none_t h, inout none_t m, inout standard_metadata_t s) {
    state start { transition accept; }
}
control C(inout none_t h, inout none_t m) { apply {} }
control I(inout none_t h, inout none_t m, inout standard_metadata_t s) {
    action send(bit<9> port) { s.egress_spec = port; }
    table wire {
        key = { s.ingress_port: exact; }
        actions = { send; }
        const entries = { 1: send(2); 2: send(1); }
        default_action = send(511);
    }
    apply { wire.apply(); }
}
control E(inout none_t h, inout none_t m, inout standard_metadata_t s) { apply {} }
control D(packet_out b, in none_t h) { apply {} }
V1Switch(P(), C(), I(), E(), C(), D()) main;
"""


TRANSFER_BYTES = 2_000_000


def test_tcp_between_hosts_that_leave_checksums_and_segments_to_their_cards(
    hosts: list[Host], start_switch: StartSwitch, tmp_path: Path
) -> None:
    (tmp_path / "wire.p4").write_text(WIRE)
    address = f"unix:{tmp_path}/p4rt"
    start_switch(str(tmp_path / "wire.p4"), "--grpc-server-addr", address)
    wait_for(address)
    first, second = hosts
    # The program forwards frames as they are: the hosts are in one subnet and know each other.
    for host, other in ((first, second), (second, first)):
        ip("-n", host.namespace, "route", "add", f"{other.address}/32", "dev", "eth0")
        entry = (other.address, "lladdr", other.mac, "dev", "eth0")
        ip("-n", host.namespace, "neigh", "add", *entry)
    sent = random.Random(1).randbytes(TRANSFER_BYTES)
    listener = made_in(second, lambda: socket.create_server((second.address, 0)))
    client = made_in(first, socket.socket)
    with listener, client:
        for each in (listener, client):
            each.settimeout(PATIENCE)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        server.settimeout(PATIENCE)
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        with server, server.makefile("rb") as received:
            assert received.read(TRANSFER_BYTES) == sent
        sender.join()


def wait_for(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)


def in_namespace(host: Host) -> socket.socket:
    """A blocking packet socket on a host's interface."""
    sock = made_in(host, lambda: open_packet_socket("eth0"))
    sock.setblocking(True)
    return sock


def made_in(host: Host, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket of a host's namespace."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{host.namespace}", os.O_RDONLY)
    try:
        set_namespace(there)
        try:
            return make()
        finally:
            set_namespace(here)
    finally:
        os.close(here)
        os.close(there)


def set_namespace(descriptor: int) -> None:
    """`os.setns`, which Python has from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), "setns")
