"""BMv2 as an engine: what runs on the executors runs on simple_switch_grpc, too.

Control goes over P4Runtime, and packets over gRPC (`--dp-grpc-server-addr`), so frames of any
length and no privileges are needed. A stream of packets ends once all of them are processed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4i, p4r
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.ir import ActionChoice, Program
from p4switch.p4runtime.entities import Entities
from p4switch.targets.v1model.engine import (
    CloneSession,
    CounterValue,
    Packet,
    Replica,
    TableEntry,
)
from tests.support.machine import PATIENCE, own_port, until
from tests.support.p4runtime_world import (
    CPU_PORT,
    DELETE,
    DEVICE,
    INSERT,
    MODIFY,
    Client,
    clone_session,
    multicast,
)


def missing() -> str | None:
    """Return what BMv2 lacks on this machine, or None."""
    absent = [name for name in ("p4c", "simple_switch_grpc") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} on PATH" if absent else None


def _packet_message() -> Any:
    """Return the class of `p4.bm.PacketStreamRequest`; responses have the same fields."""
    file = FileDescriptorProto(name="dataplane_interface.proto", package="p4.bm", syntax="proto3")
    message = file.message_type.add(name="PacketStreamRequest")
    kinds = FieldDescriptorProto
    fields = {
        "id": kinds.TYPE_UINT64,
        "device_id": kinds.TYPE_UINT64,
        "port": kinds.TYPE_UINT32,
        "packet": kinds.TYPE_BYTES,
    }
    for number, (name, kind) in enumerate(fields.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("p4.bm.PacketStreamRequest"))


PacketMessage = _packet_message()


class Bmv2(Interpreter):
    """A BMv2 that runs a program, given its source and P4Runtime client.

    The interpreter holds names and entries; packets and counters are BMv2's. It has no registers
    over P4Runtime.
    """

    def __init__(self, program: Program, client: Client, packets: grpc.Channel) -> None:
        super().__init__(program)
        self._entities = Entities(program)
        self.client = client
        self._stream: Callable[..., Iterator[Any]] = packets.stream_stream(
            "/p4.bm.DataplaneInterface/PacketStream",
            request_serializer=PacketMessage.SerializeToString,
            response_deserializer=PacketMessage.FromString,
        )
        self._groups: set[int] = set()

    # --- packets

    def process(self, packets: Sequence[Packet], now_us: int = 0) -> list[Packet]:
        """See `Engine`; BMv2 has its own clock."""
        requests = [
            PacketMessage(device_id=DEVICE, port=port, packet=frame) for port, frame in packets
        ]
        responses = self._stream(iter(requests), timeout=PATIENCE)
        return [(response.port, response.packet) for response in responses]

    def takes_packets(self) -> bool:
        """Return whether the data plane runs: it starts a moment after the program is there."""
        try:
            return self.process([]) == []
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            return False

    # --- tables

    def insert_entry(self, table: str, entry: TableEntry) -> None:
        """See `Engine`."""
        super().insert_entry(table, entry)
        self.client.insert(self._entity(table, entry))

    def delete_entry(self, table: str, entry: TableEntry) -> None:
        """See `Engine`."""
        super().delete_entry(table, entry)
        self.client.delete(self._entity(table, entry))

    def set_default(self, table: str, action: ActionChoice | None) -> None:
        """See `Engine`."""
        super().set_default(table, action)
        chosen = self.table(table)
        message = p4r.TableEntry(table_id=self._entities.table_id(chosen), is_default_action=True)
        if action is not None:
            made = self._entities.action_message(chosen.actions, action)
            message.action.action.CopyFrom(made)
        self.client.write((MODIFY, p4r.Entity(table_entry=message)))

    def _entity(self, table: str, entry: TableEntry) -> p4r.Entity:
        message = self._entities.entry_message(self.table(table), entry)
        return p4r.Entity(table_entry=message)

    # --- counters

    def read_counter(self, counter: str, index: int) -> CounterValue:
        """See `Engine`."""
        request = p4r.CounterEntry(
            counter_id=self._entities.extern_id(self.extern(counter)), index=p4r.Index(index=index)
        )
        [found] = self.client.read(p4r.Entity(counter_entry=request))
        return _counted(found.counter_entry.data)

    def read_direct_counter(self, table: str, entry: TableEntry) -> CounterValue:
        """See `Engine`."""
        key = self._entity(table, entry._replace(action=None)).table_entry
        request = p4r.DirectCounterEntry(table_entry=key)
        [found] = self.client.read(p4r.Entity(direct_counter_entry=request))
        return _counted(found.direct_counter_entry.data)

    # --- replication

    def set_clone_session(self, session: int, clone: CloneSession | None) -> None:
        """See `Engine`."""
        if session in self.clone_sessions():
            self.client.delete(_session(session, ()))
        super().set_clone_session(session, clone)
        if clone is not None and clone.replicas:
            # BMv2 makes the copies of a session in the reverse order.
            self.client.insert(_session(session, clone.replicas[::-1]))

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        """See `Engine`."""
        super().set_multicast_group(group, replicas)
        made = multicast(group, *((each.port, each.instance) for each in replicas or ()))
        kind = INSERT if group not in self._groups else DELETE if replicas is None else MODIFY
        self._groups = self._groups - {group} if replicas is None else self._groups | {group}
        self.client.write((kind, made))


def _counted(data: p4r.CounterData) -> CounterValue:
    return CounterValue(data.packet_count, data.byte_count)


def _session(session: int, replicas: Sequence[Replica]) -> p4r.Entity:
    return clone_session(session, *((each.port, each.instance) for each in replicas))


@contextmanager
def running_bmv2(program: Program, source: Path, folder: Path) -> Iterator[Bmv2]:
    """Compile `source` with p4c and run it on BMv2; `program` is the same, by p4switch.

    Raises CalledProcessError if p4c refuses it; `folder` is for its files.
    """
    info = folder / "p4info.txtpb"
    command = ["p4c", "--target", "bmv2", "--arch", "v1model", "--std", "p4-16"]
    command += ["--p4runtime-files", str(info), "-o", str(folder), source.name]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=source.parent)
    control, packets = f"unix:{folder}/p4rt", f"unix:{folder}/packets"
    command = ["simple_switch_grpc", "--no-p4", "--device-id", str(DEVICE)]
    command += ["--thrift-port", str(own_port()), "--", "--grpc-server-addr", control]
    command += ["--dp-grpc-server-addr", packets, "--cpu-port", str(CPU_PORT)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(control) as channel, grpc.insecure_channel(packets) as stream:
            for each in (channel, stream):
                grpc.channel_ready_future(each).result(PATIENCE)
            client = Client(control, DEVICE, text_format.Parse(info.read_text(), p4i.P4Info()))
            client.arbitrate()
            client.push(client.info, (folder / f"{source.stem}.json").read_bytes())
            engine = Bmv2(program, client, stream)
            until(engine.takes_packets, "the data plane of BMv2")
            yield engine
            client.close()
    finally:
        process.terminate()
        process.wait()
