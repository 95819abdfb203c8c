"""hopsum.p4 on BMv2: a simple_switch_grpc with veth pairs, driven by P4Runtime.

One process serves many tests; a push of the pipeline makes it new. What leaves the switch is
known to be complete when a marker frame has come out of every port behind it: each goes through
the same queues as the frames before it.
"""

from __future__ import annotations

import os
import queue
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format

from hopsum.controller.dataplane.rules import clone_session
from hopsum.experiment.p4c import compile_by_p4c
from hopsum.mininet_topos.interfaces import offload_command
from hopsum.protocol.outcomes import Outcome
from p4switch.device.plane import AUXDATA_ROOM, PACKET_AUXDATA, SOL_PACKET, frame_with_tag
from tests.packet.hopsum.switches import CPU_PORT, PORTS, Build, Frame, Match, Switch
from tests.support.machine import PATIENCE, interface_names, loopback, own_port
from tests.support.paths import HOPSUM_P4

MARKER_MAC = 0x02FE00000000
"""Plus the port that a marker goes to; the CPU port has one too."""
MARKER_TYPE = b"\x88\xb5"
"""An ether type for local experiments: no table but that of MAC addresses looks at it."""
MARKER_PAYLOAD = 128
"""Bytes, more than a packet-in header: BMv2 drops shorter frames to the controller."""
WAIT_SECONDS = 0.1
LOSSY_SECONDS = 0.5
"""How long to wait for a marker that may have been lost on purpose, once the switch is idle."""
BURST = 24
"""Frames between two waits: BMv2's egress queues hold 64, and the markers need room."""
ETH_P_ALL = 3
PACKET_IGNORE_OUTGOING = 23


def why_not() -> str | None:
    """Why BMv2 cannot run here, or None."""
    for command in ("simple_switch_grpc", "p4c", "ip", "ethtool"):
        if shutil.which(command) is None:
            return f"{command} is not on PATH"
    return None if os.geteuid() == 0 else "needs root for veth pairs"


class Bmv2Process:
    """A switch process with its ports, and a P4Runtime session as its primary controller."""

    def __init__(self) -> None:
        """Start it and wait until it answers; `close` ends it."""
        names = interface_names(*(f"{end}{port}" for port in PORTS for end in "sh"))
        self.pairs = dict(zip(PORTS, zip(names[::2], names[1::2], strict=True), strict=True))
        self.packet_ins: queue.Queue[bytes] = queue.Queue()
        self._requests: queue.Queue[p4r.StreamMessageRequest | None] = queue.Queue()
        self._primary = threading.Event()
        self.groups: list[p4r.Entity] = []
        """Multicast groups that are installed."""
        self.sockets: dict[int, socket.socket] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._make_links()
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process; remove its interfaces."""
        self._requests.put(None)
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        for sock in self.sockets.values():
            sock.close()
        self._log.close()
        lines = "".join(f"link delete {a}\n" for a, _ in self.pairs.values())
        subprocess.run(["ip", "-force", "-batch", "-"], input=lines.encode(), capture_output=True)

    def idle(self) -> bool:
        """Whether all threads of the switch wait: on a busy machine silence says nothing."""
        assert self._process is not None
        states = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return all(path.read_text().rpartition(")")[2].split()[0] == "S" for path in states)

    def _make_links(self) -> None:
        lines = ""
        for a, b in self.pairs.values():
            lines += f"link add {a} type veth peer name {b}\n"
        subprocess.run(["ip", "-batch", "-"], input=lines.encode(), check=True)
        lines = ""
        for name in (name for pair in self.pairs.values() for name in pair):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
            # Some features are fixed on some kernels: the others are set all the same.
            subprocess.run(offload_command(name), capture_output=True, check=False)
            lines += f"link set {name} up promisc on\n"
        subprocess.run(["ip", "-batch", "-"], input=lines.encode(), check=True)
        for port, (_, b) in self.pairs.items():
            # Protocol 0 until it is bound: else it receives from every interface until then.
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            # The kernel takes a VLAN tag off a frame and passes it in ancillary data.
            sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            sock.bind((b, ETH_P_ALL))
            sock.setblocking(False)
            self.sockets[port] = sock

    def _start(self) -> None:
        address = f"{loopback(1)[0]}:9559"
        self.thrift_port = own_port()
        command = ["simple_switch_grpc", "--no-p4", "--device-id", "1"]
        command += ["--thrift-port", str(self.thrift_port)]
        for port, (a, _) in self.pairs.items():
            command += ["-i", f"{port}@{a}"]
        command += ["--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
        command += ["--priority-queues", "8"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        options = [("grpc.max_receive_message_length", -1)]
        channel = grpc.insecure_channel(address, options)
        grpc.channel_ready_future(channel).result(PATIENCE)
        self.stub = p4r_grpc.P4RuntimeStub(channel)
        arbitration = p4r.StreamMessageRequest()
        arbitration.arbitration.device_id = 1
        arbitration.arbitration.election_id.low = 1
        self._requests.put(arbitration)
        threading.Thread(target=self._read_stream, args=(channel,), daemon=True).start()
        if not self._primary.wait(PATIENCE):
            raise TimeoutError(f"BMv2 at {address} does not make us its primary controller")

    def _stream_requests(self) -> Iterator[p4r.StreamMessageRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read_stream(self, channel: grpc.Channel) -> None:
        try:
            for message in self.stub.StreamChannel(self._stream_requests()):
                if message.HasField("arbitration"):
                    self._primary.set()
                elif message.HasField("packet"):
                    self.packet_ins.put(self._packet_in(message.packet))
        except grpc.RpcError:
            return  # the switch ended
        finally:
            channel.close()

    # --- control plane

    def push(self, build: Build) -> None:
        """Load a build; tables, registers and counters start anew, groups and sessions too.

        The replicas of a multicast group outlive a push in BMv2, so they are taken away first.
        """
        if self.groups:
            self.write(p4r.Update.DELETE, self.groups)
            self.groups.clear()
        made = compile_by_p4c(HOPSUM_P4, build.defines)
        self.info = text_format.Parse(made.info.read_text(), p4i.P4Info())
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=1,
            election_id=p4r.Uint128(low=1),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(self.info)
        request.config.p4_device_config = made.json.read_bytes()
        self.stub.SetForwardingPipelineConfig(request)

    def replicate(self, entities: list[p4r.Entity]) -> None:
        """Insert multicast groups or clone sessions."""
        self.write(p4r.Update.INSERT, entities)
        self.groups += entities

    def write(self, kind: p4r.Update.Type.ValueType, entities: Iterable[p4r.Entity]) -> None:
        """Insert or delete entities."""
        request = p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1))
        for entity in entities:
            request.updates.add(type=kind).entity.CopyFrom(entity)
        self.stub.Write(request)

    def read_counter(self, name: str, cells: int) -> list[int]:
        """Packets in every cell of a counter."""
        request = p4r.ReadRequest(device_id=1)
        entry = request.entities.add().counter_entry
        entry.counter_id = next(
            c.preamble.id for c in self.info.counters if c.preamble.alias == name
        )
        counts = [0] * cells
        for response in self.stub.Read(request):
            for entity in response.entities:
                counted = entity.counter_entry
                counts[counted.index.index] = counted.data.packet_count
        return counts

    # --- packets of the controller

    def packet_out(self, frame: bytes) -> None:
        """Send a frame that begins with the packet-out header."""
        header = int.from_bytes(frame[:7], "big")
        request = p4r.StreamMessageRequest()
        request.packet.payload = frame[7:]
        left = 56
        for number, width in enumerate((8, 7, 9, 32), 1):
            left -= width
            value = header >> left & (1 << width) - 1
            request.packet.metadata.add(metadata_id=number, value=as_bytes(value))
        self._requests.put(request)

    def _packet_in(self, packet: p4r.PacketIn) -> bytes:
        """The frame as it left the switch, header and all."""
        described = next(
            m for m in self.info.controller_packet_metadata if m.preamble.name == "packet_in"
        )
        values = {m.metadata_id: int.from_bytes(m.value, "big") for m in packet.metadata}
        header = bits = 0
        for field in described.metadata:
            header = header << field.bitwidth | values[field.id]
            bits += field.bitwidth
        return header.to_bytes(bits // 8, "big") + packet.payload


def _clone_entity(port: int) -> p4r.Entity:
    entity = p4r.Entity()
    made = entity.packet_replication_engine_entry.clone_session_entry
    made.session_id = clone_session(port)
    made.replicas.add(instance=1, egress_port=port)
    return entity


class Bmv2Switch(Switch):
    """A freshly loaded BMv2."""

    def __init__(self, process: Bmv2Process, build: Build) -> None:
        self.build = build
        self.process = process
        process.push(build)
        self.noise: Counter[Outcome] = Counter()
        """The markers' part of the outcomes."""
        self.lossy: dict[str, set[int]] = {"ingress_loss": set(), "egress_loss": set()}
        process.replicate([_clone_entity(port) for port in PORTS])
        for port in (*PORTS, CPU_PORT):
            self.insert("l2_forward", {"dst_mac": MARKER_MAC + port}, "forward", port=port)

    def forward(self, packets: Iterable[Frame]) -> list[Frame]:
        """See `Switch`."""
        waiting = list(packets)
        out: list[Frame] = []
        for start in range(0, len(waiting), BURST):
            burst = waiting[start : start + BURST]
            for port, frame in burst:
                self._send(port, frame)
            sources = {port for port, _ in burst}
            for source in sources:
                for to in (*PORTS, CPU_PORT):
                    self._send(source, _marker(source, to))
            out += self._collect(sources)
        return sorted(out, key=lambda packet: packet[0])

    def stand_in_queue(self, packets: Iterable[Frame], gone: int) -> list[Frame]:
        """Send packets; return the first `gone` to leave, or more. The next `forward` returns the
        others."""
        for port, frame in packets:
            self._send(port, frame)
        out: list[Frame] = []
        while len(out) < gone:
            out += self._arrived(only_cpu=False)
        return out

    def insert(
        self, table: str, matches: Mapping[str, Match], action: str, **arguments: int
    ) -> None:
        """See `Switch`."""
        entity = self._entry(table, matches)
        wanted = entity.table_entry.action.action
        described = next(a for a in self.process.info.actions if a.preamble.alias == action)
        wanted.action_id = described.preamble.id
        assert {p.name for p in described.params} == set(arguments), f"parameters of {action}"
        for parameter in described.params:
            value = as_bytes(arguments[parameter.name])
            wanted.params.add(param_id=parameter.id, value=value)
        self.process.write(p4r.Update.INSERT, [entity])
        if table in self.lossy:
            self.lossy[table] |= {port for port in matches.values() if isinstance(port, int)}

    def delete(self, table: str, matches: Mapping[str, Match]) -> None:
        """See `Switch`."""
        self.process.write(p4r.Update.DELETE, [self._entry(table, matches)])

    def multicast(self, group: int, ports: Iterable[int]) -> None:
        """See `Switch`."""
        entity = p4r.Entity()
        made = entity.packet_replication_engine_entry.multicast_group_entry
        made.multicast_group_id = group
        for instance, port in enumerate(ports, 1):
            made.replicas.add(instance=instance, egress_port=port)
        self.process.replicate([entity])

    def outcomes(self) -> list[int]:
        """See `Switch`."""
        counts = self.process.read_counter("outcomes", len(Outcome))
        return [count - self.noise[Outcome(cell)] for cell, count in enumerate(counts)]

    def _entry(self, table: str, matches: Mapping[str, Match]) -> p4r.Entity:
        described = next(t for t in self.process.info.tables if t.preamble.alias == table)
        assert {f.name for f in described.match_fields} == set(matches), f"keys of {table}"
        entity = p4r.Entity()
        entity.table_entry.table_id = described.preamble.id
        for field in described.match_fields:
            match = matches[field.name]
            made = entity.table_entry.match.add(field_id=field.id)
            if isinstance(match, tuple):
                made.lpm.value, made.lpm.prefix_len = as_bytes(match[0]), match[1]
            else:
                made.exact.value = as_bytes(match)
        return entity

    # --- frames and markers

    def _send(self, port: int, frame: bytes) -> None:
        if port == CPU_PORT:
            self.process.packet_out(frame)
        else:
            self.process.sockets[port].send(frame)

    def _collect(self, sources: set[int]) -> list[Frame]:
        """Frames that leave these ports before the markers; accounts for the markers."""
        out: list[Frame] = []
        waiting = {(source, to) for source in sources for to in (*PORTS, CPU_PORT)}
        lossy = {
            (source, to)
            for source, to in waiting
            if source in self.lossy["ingress_loss"] or to in self.lossy["egress_loss"]
        }
        start = heard = time.monotonic()
        while waiting:
            arrived = self._arrived(only_cpu={to for _, to in waiting} == {CPU_PORT})
            now = time.monotonic()
            heard = now if arrived else heard
            for to, frame in arrived:
                source = _marker_source(frame)
                if source is None:
                    out.append((to, frame))
                else:
                    waiting.discard((source, to))
            if waiting <= lossy and now > heard + LOSSY_SECONDS:
                if self.process.idle():
                    break
                heard = now
            if now > start + PATIENCE:
                raise TimeoutError(f"BMv2 did not deliver the markers {sorted(waiting)}")
        for source in sources - {CPU_PORT}:
            lost = sum(marker[0] == source for marker in waiting)
            plain = len(PORTS) + 1 - (lost if source in self.lossy["ingress_loss"] else 0)
            self.noise[Outcome.PLAIN] += plain
        self.noise[Outcome.INJECTED_LOSS] += len(waiting)
        return out

    def _arrived(self, only_cpu: bool) -> list[Frame]:
        """Frames that came out, after a short wait if there are none."""
        out: list[Frame] = []
        packet_ins = self.process.packet_ins
        ports = {sock.fileno(): port for port, sock in self.process.sockets.items()}
        with suppress(queue.Empty):
            out.append((CPU_PORT, packet_ins.get(timeout=WAIT_SECONDS if only_cpu else 0)))
            while True:
                out.append((CPU_PORT, packet_ins.get_nowait()))
        for ready in select.select(list(ports), [], [], 0 if only_cpu or out else WAIT_SECONDS)[0]:
            with suppress(BlockingIOError):
                while True:
                    frame, ancillary, _, _ = self.process.sockets[ports[ready]].recvmsg(
                        2048, AUXDATA_ROOM
                    )
                    out.append((ports[ready], frame_with_tag(frame, ancillary)))
        return out


def _marker(source: int, to: int) -> bytes:
    """A frame that is forwarded to a port and tells which one it came from."""
    payload = source.to_bytes(MARKER_PAYLOAD, "big")
    frame = (MARKER_MAC + to).to_bytes(6, "big") + bytes(6) + MARKER_TYPE + payload
    packet_out = b"\0" + to.to_bytes(2, "big") + bytes(4)
    return packet_out + frame if source == CPU_PORT else frame


def _marker_source(frame: bytes) -> int | None:
    """Where a marker came in, None if the frame is none."""
    if frame[:4] != (MARKER_MAC >> 16).to_bytes(4, "big"):
        return None
    return int.from_bytes(frame[-2:], "big")


def as_bytes(value: int) -> bytes:
    """A number in P4Runtime's canonical form."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
