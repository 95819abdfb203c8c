"""The packet loop between real packet sockets (as root), and its rings without them."""

from __future__ import annotations

import select
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.loop import LostFrames, PacketLoop
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.packet_io.receive_ring import open_rings
from p4switch.targets.v1model.engine import ControlError, EngineOptions
from tests.support.machine import PATIENCE, until, wait_until_up
from tests.support.veth import skip_without_veths, veth_pairs

CPU_PORT = 500
RING = 1024
"""Frames in a ring: as many as a test sends at once."""

# The first two bytes of a frame choose the port; the third is counted at ingress, and if it is 255
# it becomes the length of the queue.
TEXT = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<16> port; bit<8> mark; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    counter(256, CounterType.packets) marks;
    apply { s.egress_spec = h.h.port[8:0]; marks.count((bit<32>)h.h.mark); }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { if (h.h.mark == 255) { h.h.mark = (bit<8>)s.enq_qdepth; } }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def frame(port: int, mark: int, size: int = 60) -> bytes:
    """Bytes 12 and 13 are an experimental EtherType, which no host answers."""
    return port.to_bytes(2, "big") + bytes([mark]) + bytes(9) + b"\x88\xb5" + bytes(size - 14)


@pytest.fixture(params=[1, 3], ids=["one-thread", "three-threads"])
def engine(request: pytest.FixtureRequest) -> Iterator[NativeEngine]:
    options = EngineOptions(cpu_port=CPU_PORT, queue_depth=32, packet_threads=request.param)
    made = NativeEngine(compile_program(parse_text(TEXT, "program.p4")), options)
    yield made
    made.close()


@pytest.fixture
def loop(engine: NativeEngine) -> Iterator[PacketLoop]:
    made = PacketLoop(engine)
    yield made
    made.close()


@pytest.fixture
def links() -> Iterator[list[tuple[str, str]]]:
    """Three veth pairs, up, gone afterwards."""
    skip_without_veths()
    with veth_pairs(3) as pairs:
        yield pairs


def open_socket(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
    made.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    made.bind((interface, 3))
    made.settimeout(PATIENCE)
    return made


@pytest.fixture(params=[0, RING], ids=["sockets", "rings"])
def hosts(
    loop: PacketLoop, links: list[tuple[str, str]], request: pytest.FixtureRequest
) -> Iterator[list[socket.socket]]:
    """Sockets at the far ends of ports 0, 1 and 2; the loop runs."""
    mine = [open_socket(a) for a, _ in links]
    theirs = [open_socket(b) for _, b in links]
    rings = open_rings(dict(enumerate(mine)), request.param)
    for port, made in enumerate(mine):
        loop.add_port(port, made, rings.get(port))
    loop.start()
    yield theirs
    loop.close()
    for ring in rings.values():
        ring.close()
    for made in (*mine, *theirs):
        made.close()


def wait_for_cpu(loop: PacketLoop) -> list[bytes]:
    assert select.select([loop.cpu_event()], [], [], PATIENCE)[0], "no frame for the CPU came"
    return loop.take_cpu_frames()


def test_frames_go_where_the_program_says(hosts: list[socket.socket], loop: PacketLoop) -> None:
    hosts[0].send(frame(1, 7))
    hosts[0].send(frame(2, 7, 1514))
    assert hosts[1].recv(2048) == frame(1, 7)
    assert hosts[2].recv(2048) == frame(2, 7, 1514)
    assert loop.counts(0).rx_packets == 2
    assert loop.counts(0).rx_bytes == 60 + 1514
    assert loop.counts(2).tx_packets == 1
    assert loop.counts(2).tx_bytes == 1514


def test_frames_that_wait_when_the_loop_starts_are_all_taken(
    loop: PacketLoop, links: list[tuple[str, str]]
) -> None:
    # More than two batches: the kernel tells of them once.
    with open_socket(links[0][0]) as mine, open_socket(links[0][1]) as theirs:
        for _ in range(150):
            theirs.send(frame(CPU_PORT, 1))
        loop.add_port(0, mine)
        loop.start()
        until(lambda: loop.counts(0).rx_packets == 150, "150 frames")
        loop.stop()


def test_a_port_goes_on_when_its_interface_is_up_again(
    hosts: list[socket.socket], loop: PacketLoop, links: list[tuple[str, str]]
) -> None:
    mine, theirs = links[0]
    for _ in range(2):
        before = loop.counts(0).rx_errors
        subprocess.run(["ip", "link", "set", mine, "down"], check=True)
        until(lambda errors=before: loop.counts(0).rx_errors > errors, "the error")  # type: ignore[misc]
        subprocess.run(["ip", "link", "set", mine, "up"], check=True)
        wait_until_up(mine, theirs)
        hosts[0].send(frame(1, 7))
        assert hosts[1].recv(2048) == frame(1, 7)


def test_packets_in_the_interface_are_part_of_the_queue(
    hosts: list[socket.socket], loop: PacketLoop, links: list[tuple[str, str]]
) -> None:
    port = links[1][0]
    slow = "root tbf rate 8kbit burst 1600 limit 1000000"
    done = subprocess.run(["tc", "qdisc", "add", "dev", port, *slow.split()], capture_output=True)
    if done.returncode:
        pytest.skip(f"tc has no tbf: {done.stderr.decode().strip()}")
    for number in range(1, 22):
        hosts[0].send(frame(1, 255, 1000))
        until(lambda sent=number: loop.counts(1).tx_packets == sent, "a frame")  # type: ignore[misc]
    fast = slow.replace("8kbit", "1gbit")
    subprocess.run(["tc", "qdisc", "change", "dev", port, *fast.split()], check=True)
    depths = [hosts[1].recv(2048)[2] for _ in range(21)]
    # One frame of a thousand bytes leaves every second, and the first at once.
    assert depths[0] == 0
    assert 10 <= depths[20] <= 20
    hosts[0].send(frame(1, 255))
    assert hosts[1].recv(2048)[2] == 0


def test_order_is_kept(hosts: list[socket.socket]) -> None:
    for mark in range(200):
        hosts[0].send(frame(1, mark))
        if mark % 20 == 19:  # never more in flight than the queue holds
            assert [hosts[1].recv(2048)[2] for _ in range(20)] == list(range(mark - 19, mark + 1))


def test_the_cpu_port_is_a_ring_in_both_directions(
    hosts: list[socket.socket], loop: PacketLoop
) -> None:
    hosts[0].send(frame(CPU_PORT, 1))
    assert wait_for_cpu(loop) == [frame(CPU_PORT, 1)]
    loop.inject(frame(2, 9))
    assert hosts[2].recv(2048) == frame(2, 9)
    assert loop.counts(CPU_PORT).rx_packets == 1
    assert loop.counts(CPU_PORT).tx_packets == 1


def test_injected_frames_can_come_back_without_any_port(loop: PacketLoop) -> None:
    loop.start()
    loop.inject(frame(CPU_PORT, 3))
    assert wait_for_cpu(loop) == [frame(CPU_PORT, 3)]
    assert loop.take_cpu_frames() == []


def test_frames_for_a_port_without_socket_are_counted(loop: PacketLoop) -> None:
    loop.start()
    loop.inject(frame(77, 0))
    loop.inject(frame(CPU_PORT, 0))  # comes after the other
    wait_for_cpu(loop)
    assert loop.lost() == LostFrames(unconnected=1, cpu=0)


def test_the_control_plane_reads_while_packets_flow(
    hosts: list[socket.socket], engine: NativeEngine
) -> None:
    for mark in range(20):
        hosts[0].send(frame(1, mark))
        hosts[1].recv(2048)
        assert engine.read_counter("I.marks", mark).packets == 1


def shape(interface: str, rate: str, burst: int) -> None:
    """Let an interface send at a rate; `burst` in bytes."""
    bucket = ["tbf", "rate", rate, "burst", str(burst), "limit", "1000000"]
    subprocess.run(["tc", "qdisc", "add", "dev", interface, "root", *bucket], check=True)


def test_a_full_port_stalls_no_other_and_drops_beyond_its_queue(
    hosts: list[socket.socket],
    links: list[tuple[str, str]],
    loop: PacketLoop,
    engine: NativeEngine,
) -> None:
    """Port 1's interface is shaped to almost no rate; port 2 is not delayed."""
    shaped = links[1][0]
    shape(shaped, "8kbit", 2000)
    sent = 1000
    for number in range(sent):
        hosts[0].send(frame(1, 1, 1000))
        if number % 10 == 9:
            hosts[0].send(frame(2, 2))
            assert hosts[2].recv(2048) == frame(2, 2)
    drops = engine.statistics().queue_drops
    counts = loop.counts(1)
    assert 0 < drops < sent
    assert counts.tx_packets < sent - drops
    assert sent - drops - counts.tx_packets <= 32, "more frames wait than the queue holds"
    subprocess.run(["tc", "qdisc", "del", "dev", shaped, "root"], check=True)
    hosts[0].send(frame(CPU_PORT, 4))
    wait_for_cpu(loop)


@pytest.fixture
def large_buffers(engine: NativeEngine) -> None:
    """Send buffers of 8 MiB, of ports that are added from now on."""
    engine.options.send_buffer = 8 << 20


def test_a_larger_buffer_lets_more_frames_wait_in_the_kernel(
    large_buffers: None,
    hosts: list[socket.socket],
    links: list[tuple[str, str]],
    loop: PacketLoop,
) -> None:
    """Where the interface's own queues say what goes first, the frames have to be there."""
    shape(links[1][0], "8kbit", 2000)
    for number in range(500):
        hosts[0].send(frame(1, 1, 1000))
        if number % 10 == 9:  # never more in flight than the queue holds
            hosts[0].send(frame(2, 2))
            assert hosts[2].recv(2048) == frame(2, 2)
    assert loop.counts(1).tx_packets == 500
    assert loop.engine.statistics().queue_drops == 0


def test_a_full_port_resumes(
    hosts: list[socket.socket], links: list[tuple[str, str]], loop: PacketLoop
) -> None:
    shaped = links[1][0]
    shape(shaped, "20mbit", 5000)
    for number in range(400):
        # Not 255: that mark becomes the length of the queue.
        hosts[0].send(frame(1, number % 251, 1000) + number.to_bytes(4, "big"))
        hosts[0].send(frame(2, 1, 1000))
    hosts[0].send(frame(CPU_PORT, 4))
    wait_for_cpu(loop)
    last = -1
    for _ in range(loop.counts(0).rx_packets - 401 - loop.engine.statistics().queue_drops):
        data = hosts[1].recv(2048)
        number = int.from_bytes(data[1000:], "big")
        assert data[2] == number % 251, "a header with another frame's payload"
        assert number > last
        last = number
    assert last > 32


def test_a_vlan_tag_stays_in_the_frame(hosts: list[socket.socket]) -> None:
    tagged = frame(1, 5)[:12] + b"\x81\x00\x00\x07" + frame(1, 5)[12:]
    hosts[1].setsockopt(263, 8, 1)  # PACKET_AUXDATA
    hosts[0].send(tagged)
    data, ancillary, _, _ = hosts[1].recvmsg(2048, 256)
    if len(data) == len(tagged) - 4:  # the kernel took it out again, for this socket
        [(_, _, aux)] = ancillary
        assert int.from_bytes(aux[16:18], "little") == 7
    else:
        assert data == tagged


def test_frames_for_a_port_without_a_socket_are_lost(
    hosts: list[socket.socket], loop: PacketLoop
) -> None:
    hosts[0].send(frame(3, 1))
    hosts[0].send(frame(2, 1))
    assert hosts[2].recv(2048) == frame(2, 1)
    # Of frames that come together, that for the lower port goes first.
    until(lambda: loop.lost().unconnected == 1, "the other frame's loss")
    assert loop.counts(3).tx_packets == 0
    assert loop.ports() == [0, 1, 2]


def test_ports_are_checked(loop: PacketLoop) -> None:
    with socket.socket() as unused:
        with pytest.raises(ControlError, match="port 511"):
            loop.add_port(511, unused)
        with pytest.raises(ControlError, match=f"port {CPU_PORT}"):
            loop.add_port(CPU_PORT, unused)


def test_a_loop_can_stop_and_start_again(loop: PacketLoop) -> None:
    for mark in range(3):
        loop.start()
        loop.inject(frame(CPU_PORT, mark))
        assert wait_for_cpu(loop) == [frame(CPU_PORT, mark)]
        loop.stop()


def test_the_clock_continues(loop: PacketLoop) -> None:
    first = loop.now_us()
    assert loop.now_us() >= first


def test_closing_with_packets_in_flight(engine: NativeEngine) -> None:
    loop = PacketLoop(engine)
    loop.inject(frame(CPU_PORT, 1))
    loop.close()
    loop.close()
    assert engine.process([(3, frame(4, 1))]) == [(4, frame(4, 1))]


@pytest.mark.slow
def test_a_queues_rate_spaces_its_packets(
    hosts: list[socket.socket], loop: PacketLoop, engine: NativeEngine
) -> None:
    engine.set_queue_rate(4, 1)
    started = time.monotonic()
    for mark in range(3):
        hosts[0].send(frame(1, mark))
    hosts[0].send(frame(2, 9))
    assert hosts[2].recv(2048) == frame(2, 9)  # Other ports do not wait.
    assert [hosts[1].recv(2048)[2] for _ in range(3)] == [0, 1, 2]
    # Later on a busy machine, but never earlier: the first one leaves at once.
    assert time.monotonic() - started >= 2 / 4
    engine.set_queue_rate(0, 1)
    hosts[0].send(frame(1, 7))
    assert hosts[1].recv(2048) == frame(1, 7)
