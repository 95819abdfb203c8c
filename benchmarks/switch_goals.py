"""The goals of p4switch's speed: `make bench-switch`.

Each row is the median of paired rounds: a round measures all that is compared, one after the other.
CPU seconds are the switch's own, read from /proc, so that senders do not count. The work of a
receive ring is done where a frame is sent, so it is the senders' (docs/decisions/0018).
"""

from __future__ import annotations

import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc
from google.protobuf import text_format

from benchmarks.report import Rows, arguments, run_benchmarks
from benchmarks.switch_rate import (
    CHILDREN,
    RunningSwitch,
    aggregating_switch,
    build_of,
    cpu_seconds,
    free_ports,
    send_fragments,
    switch_process,
)
from benchmarks.veth import veth_pairs
from hopsum.collectives.choices import Engine
from p4switch.packet_io.sockets import open_packet_socket

ROUNDS = 5
ENTRIES = 10_000
INSERTS = 100_000
"""Goal: inserted within 5 s, whether in one Write or in many."""
UPDATES = (1_000, INSERTS)
"""In a Write."""
MASKS = 1_000
WINDOW = 1024
"""Fragments that wait at each port of a stopped switch, before it continues and is timed."""
RING = WINDOW + 128
"""Frames in a port's receive ring: the kernel may send some of its own."""
BACKLOGS = 20
IN_FLIGHT = {Engine.EMBEDDED: 256, Engine.BMV2: 32}
"""BMv2's egress queue holds 64 packets."""
PACKETS = {Engine.EMBEDDED: 100_000, Engine.BMV2: 20_000}

TABLES = """
#include <core.p4>
#include <v1model.p4>
header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
header ipv4_t { bit<64> head; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src;
                bit<32> dst; }
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.ethernet); p.extract(h.ipv4); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action drop() { mark_to_drop(s); }
    action forward(bit<48> next_hop, bit<9> port) {
        s.egress_spec = port;
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = next_hop;
        h.ipv4.ttl = h.ipv4.ttl - 1;
    }
    table routes {
        key = { KEY }
        actions = { forward; drop; }
        size = 131072;
        default_action = drop();
    }
    apply { routes.apply(); }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h.ethernet); p.emit(h.ipv4); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""
KEYS = {
    "lpm": "h.ipv4.dst : lpm;",
    "exact": "h.ipv4.dst : exact; h.ipv4.src : exact;",
    "ternary": "h.ipv4.dst : ternary; h.ipv4.src : ternary;",
}


def frame(destination: int, source: int) -> bytes:
    """Return a frame of 1,000 bytes with these IPv4 addresses."""
    head = bytes.fromhex("0200000000aa0200000000bb0800")
    ip = bytes(8) + b"\x40\xfd\0\0" + source.to_bytes(4, "big") + destination.to_bytes(4, "big")
    return head + ip + bytes(1000 - len(head) - len(ip))


def entries(kind: str, count: int = 0) -> tuple[list[p4r.TableEntry], list[bytes]]:
    """Return the entries of a table, and a frame for each; by default as look-ups have them."""
    count = count or (ENTRIES if kind == "lpm" else MASKS)
    dice = random.Random(7)
    key: tuple[int, int]
    made: dict[tuple[int, int], p4r.TableEntry] = {}
    frames: list[bytes] = []
    while len(made) < count:
        destination, source = dice.getrandbits(32), dice.getrandbits(32)
        entry = p4r.TableEntry()
        if kind == "lpm":
            length = dice.randint(16, 32)
            destination &= (1 << 32) - (1 << (32 - length))
            key = (destination, length)
            entry.match.add(field_id=1).lpm.value = destination.to_bytes(4, "big")
            entry.match[0].lpm.prefix_len = length
        elif kind == "exact":
            key = (destination, source)
            for number, value in enumerate(key, start=1):
                entry.match.add(field_id=number).exact.value = value.to_bytes(4, "big")
        else:
            # Each entry has masks of its own, of three quarters of the bits.
            key = (
                dice.getrandbits(32) | dice.getrandbits(32) | 1,
                dice.getrandbits(32) | dice.getrandbits(32) | 1,
            )
            entry.priority = 1 + len(made)
            for number, (value, mask) in enumerate(
                zip((destination, source), key, strict=True), start=1
            ):
                field = entry.match.add(field_id=number).ternary
                field.value = (value & mask).to_bytes(4, "big")
                field.mask = mask.to_bytes(4, "big")
        if key not in made:
            made[key] = entry
            frames.append(frame(destination, source))
    dice.shuffle(frames)
    return list(made.values()), frames


@contextmanager
def primary(
    switch: RunningSwitch, config: bytes, info: p4i.P4Info
) -> Iterator[p4r_grpc.P4RuntimeStub]:
    """Provide a connection to a switch that runs the program, with the right to write."""
    election = U128.encode(1)
    with grpc.insecure_channel(switch.address) as channel:
        grpc.channel_ready_future(channel).result(60)
        stub = p4r_grpc.P4RuntimeStub(channel)
        arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=election)
        requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        stream = stub.StreamChannel(iter(requests.get, None))
        next(stream)
        stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=1,
                election_id=election,
                action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                config=p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=config),
            )
        )
        yield stub
        requests.put(None)


def writes(
    rows: list[p4r.TableEntry],
    info: p4i.P4Info,
    kind: p4r.Update.Type.ValueType,
    updates: int = UPDATES[0],
) -> list[p4r.WriteRequest]:
    """Return requests to insert or delete the entries, with their action; `updates` in each."""
    forward = next(a for a in info.actions if a.preamble.alias == "forward")
    requests = []
    for start in range(0, len(rows), updates):
        request = p4r.WriteRequest(device_id=1, election_id=U128.encode(1))
        for row in rows[start : start + updates]:
            update = request.updates.add(type=kind, entity=p4r.Entity(table_entry=row))
            entry = update.entity.table_entry
            entry.table_id = info.tables[0].preamble.id
            action = entry.action.action
            action.action_id = forward.preamble.id
            action.params.add(param_id=1, value=b"\x08\0\0\0\1\1")
            action.params.add(param_id=2, value=b"\x02")
        requests.append(request)
    return requests


def make_program(engine: Engine, kind: str, folder: Path) -> tuple[bytes, p4i.P4Info]:
    """Compile the program with a table of this kind; return its device config and P4Info."""
    source, info_file = folder / f"{kind}.p4", folder / f"{kind}.txtpb"
    source.write_text(TABLES.replace("KEY", KEYS[kind]))
    output = folder / f"{kind}.{engine.value}"
    command = {
        Engine.EMBEDDED: [str(Path(sys.executable).with_name("p4switch")), "compile"],
        Engine.BMV2: ["p4c-bm2-ss", "--arch", "v1model"],
    }[engine]
    command += [str(source), "-o", str(output), "--p4runtime-files", str(info_file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output.read_bytes(), text_format.Parse(info_file.read_text(), p4i.P4Info())


@contextmanager
def router(engine: Engine, kind: str, folder: Path) -> Iterator[Callable[[], tuple[float]]]:
    """Provide a switch with a full table, and a function that measures CPU seconds per packet."""
    config, info = make_program(engine, kind, folder)
    with ExitStack() as stack:
        pairs = stack.enter_context(veth_pairs(f"{engine.value[0]}{kind[0]}", 2))
        log = folder / f"{engine.value}-{kind}.log"
        switch = stack.enter_context(switch_process(engine, [near for near, _ in pairs], log))
        rows, frames = entries(kind)
        with primary(switch, config, info) as stub:
            for request in writes(rows, info, p4r.Update.INSERT):
                stub.Write(request)
        here, there = (stack.enter_context(open_packet_socket(far)) for _, far in pairs)
        for end in (here, there):
            end.settimeout(1)

        def measure() -> tuple[float]:
            window, count, sent, got = IN_FLIGHT[engine], PACKETS[engine], 0, 0
            before = cpu_seconds(switch.pid)
            while got < count:
                while sent < got + window:
                    here.send(frames[sent % len(frames)])
                    sent += 1
                try:
                    for _ in range(window // 2):
                        there.recv(2048)
                        got += 1
                except TimeoutError:
                    sent = got  # Frames were lost; those that are measured were forwarded.
            return ((cpu_seconds(switch.pid) - before) / count,)

        measure()
        yield measure


def paired(measures: dict[str, Callable[[], tuple[float, ...]]]) -> dict[str, tuple[float, ...]]:
    """Return the medians of each measurement's figures over interleaved rounds."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: tuple(map(median, zip(*each, strict=True))) for name, each in found.items()}


def tables(folder: Path) -> Rows:
    """Measure CPU time per packet: lpm against BMv2, 1,000 ternary masks against exact match."""
    cases = [(Engine.EMBEDDED, "lpm"), (Engine.EMBEDDED, "exact"), (Engine.EMBEDDED, "ternary")]
    if shutil.which("simple_switch_grpc") and shutil.which("p4c-bm2-ss"):
        cases.append((Engine.BMV2, "lpm"))
    with ExitStack() as stack:
        times = paired(
            {
                f"{engine.value} {kind}": stack.enter_context(router(engine, kind, folder))
                for engine, kind in cases
            }
        )
    return [
        {
            "engine": engine.value,
            "table": f"{ENTRIES if kind == 'lpm' else MASKS:,} {kind}",
            "microseconds_per_packet": round(seconds * 1e6, 2),
            "packets_per_cpu_second": round(1 / seconds),
            "build": build_of(engine),
        }
        for engine, kind in cases
        for (seconds,) in [times[f"{engine.value} {kind}"]]
    ]


def inserts(folder: Path) -> Rows:
    """Measure how long the switch takes to insert 100,000 entries over P4Runtime, and to delete."""
    found: Rows = []
    for kind in KEYS:
        config, info = make_program(Engine.EMBEDDED, kind, folder)
        rows, _ = entries(kind, INSERTS)
        with (
            switch_process(Engine.EMBEDDED, [], folder / f"{kind}-inserts.log") as switch,
            primary(switch, config, info) as stub,
        ):
            for updates in UPDATES:
                insert = writes(rows, info, p4r.Update.INSERT, updates)
                delete = writes(rows, info, p4r.Update.DELETE, updates)
                times = paired(
                    {
                        "insert": partial(seconds_to_write, stub, switch.pid, insert),
                        "delete": partial(seconds_to_write, stub, switch.pid, delete),
                    }
                )
                found.append(
                    {
                        "engine": Engine.EMBEDDED.value,
                        "table": f"{INSERTS:,} {kind}",
                        "updates_a_write": updates,
                        "seconds_to_insert": round(times["insert"][0], 2),
                        "inserts_per_cpu_second": round(INSERTS / times["insert"][1]),
                        "deletes_per_cpu_second": round(INSERTS / times["delete"][1]),
                    }
                )
    return found


def seconds_to_write(
    stub: p4r_grpc.P4RuntimeStub, pid: int, requests: Sequence[p4r.WriteRequest]
) -> tuple[float, float]:
    """Return seconds from the first request to the last answer, and the switch's CPU seconds."""
    began, before = time.perf_counter(), cpu_seconds(pid)
    for request in requests:
        stub.Write(request)
    return time.perf_counter() - began, cpu_seconds(pid) - before


def receiving(folder: Path) -> Rows:
    """Measure how one and two packet threads take frames that wait, by system calls or from rings.

    Senders rest meanwhile, so that on a machine of two cores the switch can use both.
    """
    cases = {"system calls": (1, 0), "rings": (1, RING), "rings, two threads": (2, RING)}
    with ExitStack() as stack:
        backlogs = {
            name: stack.enter_context(backlog(folder, threads, ring))
            for name, (threads, ring) in cases.items()
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for _ in range(ROUNDS):
            for name, measure in backlogs.items():
                found[name].append(measure())
    return [
        {
            "engine": Engine.EMBEDDED.value,
            "lanes": 256,
            "receives": name.partition(",")[0],
            "packet_threads": cases[name][0],
            "packets_per_second": round(median(rate for rate, _ in measured)),
            "microseconds_per_packet": round(median(cpu for _, cpu in measured) * 1e6, 2),
        }
        for name, measured in found.items()
    ]


@contextmanager
def backlog(folder: Path, threads: int, ring: int) -> Iterator[Callable[[], tuple[float, float]]]:
    """Provide a switch of hopsum.p4, and a function that measures its packets per second.

    It also returns the switch's CPU seconds per packet.
    """
    stem = f"t{threads}{'r' if ring else 's'}"
    with aggregating_switch(Engine.EMBEDDED, 256, folder, WINDOW, threads, ring, stem) as load:
        first = 0
        pid = load.switch.pid

        def measure() -> tuple[float, float]:
            nonlocal first
            rates, cpu = [], []
            for _ in range(BACKLOGS):
                os.kill(pid, signal.SIGSTOP)
                os.waitid(os.P_PID, pid, os.WSTOPPED)
                for start in range(0, WINDOW, 256):
                    send_fragments(load, first + start, 256)
                first += WINDOW
                before = cpu_seconds(pid)
                began = time.perf_counter()
                os.kill(pid, signal.SIGCONT)
                summed = 0
                while summed < WINDOW and time.perf_counter() < began + 2:
                    time.sleep(0.0005)
                    summed += sum(len(group) for group in load.sink.receive())
                if summed < WINDOW:
                    raise RuntimeError(f"{summed} of {WINDOW} sums arrived; expected all")
                rates.append(CHILDREN * summed / (time.perf_counter() - began))
                cpu.append((cpu_seconds(pid) - before) / (CHILDREN * summed))
            return median(rates), median(cpu)

        measure()
        yield measure


def start(folder: Path) -> Rows:
    """Measure from the start of `p4switch run` to its answer, and its memory; the second start."""
    source = folder / "start.p4"
    source.write_text(TABLES.replace("KEY", KEYS["lpm"]))
    seconds, cpu, memory = [], [], []
    for _ in range(2 * ROUNDS):
        (port,) = free_ports(1)
        command = [str(Path(sys.executable).with_name("p4switch")), "run", str(source)]
        command += ["--grpc-server-addr", f"127.0.0.1:{port}", "--log-level", "off"]
        began = time.perf_counter()
        with subprocess.Popen(command) as process:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.001)
            seconds.append(time.perf_counter() - began)
            cpu.append(cpu_seconds(process.pid))
            status = Path(f"/proc/{process.pid}/status").read_text()
            memory.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
            process.terminate()
    return [
        {
            "engine": Engine.EMBEDDED.value,
            "seconds_to_listening": round(median(seconds[1:]), 3),
            "cpu_seconds": round(median(cpu[1:]), 2),
            "resident_mib": round(max(memory)),
        }
    ]


def main() -> None:
    """Run the measurements that are named, or all."""
    measures = {"tables": tables, "inserts": inserts, "receiving": receiving, "start": start}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_benchmarks(
            {key: partial(measure, folder) for key, measure in measures.items()},
            arguments(__doc__, measures).parse_args(),
            prefix="switch-",
        )


if __name__ == "__main__":
    main()
