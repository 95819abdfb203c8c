"""A P4Runtime server with an engine in this process, and a plain client to ask it with."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import grpc
import pytest
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_status

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.bmv2_runtime.grpc_calls import handler
from p4switch.bmv2_runtime.runtime import Runtime
from p4switch.device.bundle import make_bundle
from p4switch.device.loading import Loader
from p4switch.device.runtime_host import RuntimeHost
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program
from p4switch.p4runtime.interfaces import InterfaceService
from p4switch.p4runtime.p4info import p4info
from p4switch.p4runtime.server import P4RuntimeServer
from p4switch.p4runtime.service import P4RuntimeService
from p4switch.targets.v1model.engine import Engine, EngineOptions, Packet
from tests.support.machine import PATIENCE
from tests.support.paths import EVERYTHING_P4

CPU_PORT = 510
DEVICE = 3

INSERT = p4r.Update.INSERT
MODIFY = p4r.Update.MODIFY
DELETE = p4r.Update.DELETE


class MemoryPlane:
    """A data plane without ports: packets go through at once, the clock is set by hand."""

    def __init__(self) -> None:
        self.clock_us = 0
        self.engine: Engine | None = None
        self.service: P4RuntimeService | None = None
        self.sent: list[Packet] = []

    def now_us(self) -> int:
        return self.clock_us

    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        if handover is not None:
            handover()
        self.engine = engine

    def inject(self, frame: bytes) -> None:
        self.process([(CPU_PORT, frame)])

    def process(self, packets: Sequence[Packet]) -> list[Packet]:
        """Let packets through; return those that left at ports other than the CPU's."""
        assert self.engine is not None
        assert self.service is not None
        out = self.engine.process(packets, self.clock_us)
        sent = [packet for packet in out if packet[0] != CPU_PORT]
        self.sent += sent
        self.service.packets_in([frame for port, frame in out if port == CPU_PORT])
        self.service.digests(self.engine.take_digests())
        return sent


class World:
    """A served switch, with `everything.p4` at hand as bundle and P4Info but not running yet."""

    def __init__(self, ports: Mapping[int, str] | None = None) -> None:
        """`ports`: names of those that gNMI tells of."""
        self.plane = MemoryPlane()
        self.interfaces = InterfaceService(ports or {})
        loader = Loader("interpreter", EngineOptions(cpu_port=CPU_PORT))
        self.service = P4RuntimeService(DEVICE, loader, self.plane)
        self.plane.service = self.service
        self.runtime = Runtime(RuntimeHost(self.service, self.plane, ports or {}), DEVICE)
        self.server = P4RuntimeServer(
            self.service, "127.0.0.1:0", None, self.interfaces, [handler(self.runtime)]
        )
        self.address = f"127.0.0.1:{self.server.port}"
        self.device_config, self._program, self.p4info = everything()
        self.clients: list[Client] = []

    def start(self) -> Client:
        """Run `everything.p4`; return a client that is primary."""
        config = p4r.ForwardingPipelineConfig(
            p4info=self.p4info, p4_device_config=self.device_config
        )
        engine = Interpreter(self._program, EngineOptions(cpu_port=CPU_PORT))
        self.service.start(engine, config)
        client = self.client()
        client.arbitrate()
        return client

    def client(self, **arguments: Any) -> Client:
        """Another client, closed with the world."""
        self.clients.append(Client(self.address, DEVICE, self.p4info, **arguments))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()


@cache
def everything() -> tuple[bytes, Program, p4i.P4Info]:
    """The bundle, the program and the P4Info of `everything.p4`."""
    bundle = make_bundle(EVERYTHING_P4)
    program = compile_program(parse_text(bundle.decode()))
    return bundle, program, p4info(program)


class CallError(Exception):
    """A call that failed: its status, and the errors of its parts."""

    def __init__(self, error: grpc.RpcError) -> None:
        assert isinstance(error, grpc.Call)
        self.code: str = error.code().name
        self.parts: list[p4r.Error] = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = rpc_status.Status.FromString(value)
                for detail in status.details:
                    part = p4r.Error()
                    detail.Unpack(part)
                    self.parts.append(part)
        super().__init__(f"{self.code}: {error.details()} {self.codes()}")

    def codes(self) -> list[str]:
        """Names of the parts' codes."""
        names = {code.value[0]: code.name for code in grpc.StatusCode}
        return [names[part.canonical_code] for part in self.parts]


class Client:
    """A P4Runtime client in plain gRPC; `election_id` None leaves it unset in requests."""

    def __init__(
        self,
        address: str,
        device_id: int,
        info: p4i.P4Info,
        *,
        election_id: int | None = 1,
        role: str = "",
    ) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address)
        self.stub = p4r_grpc.P4RuntimeStub(self._channel)
        self.device_id = device_id
        self.info = info
        self.election_id = election_id
        self.role = role
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._stream: Any = None

    # --- the stream

    def send(self, **message: Any) -> None:
        """Send a stream message, opening the stream if need be."""
        if self._stream is None:
            self._stream = self.stub.StreamChannel(iter(self._requests.get, None), timeout=PATIENCE)
        self._requests.put(p4r.StreamMessageRequest(**message))

    def arbitrate(self, election_id: int | None = None) -> p4r.MasterArbitrationUpdate:
        """Offer an election id and return the answer."""
        if election_id is not None:
            self.election_id = election_id
        message = p4r.MasterArbitrationUpdate(device_id=self.device_id)
        if self.election_id is not None:
            message.election_id.CopyFrom(U128.encode(self.election_id))
        if self.role:
            message.role.name = self.role
        self.send(arbitration=message)
        return self.receive("arbitration")

    def receive(self, kind: str) -> Any:
        """The next stream message, which must be of that kind."""
        try:
            response = next(self._stream)
        except grpc.RpcError as error:
            raise CallError(error) from None
        assert response.WhichOneof("update") == kind, response
        return getattr(response, kind)

    def leave(self) -> None:
        """Close the stream, and wait until the server has closed it too."""
        stream, self._stream = self._stream, None
        self._requests.put(None)
        for _ in stream:
            pass

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()

    # --- calls

    def _common(self) -> dict[str, Any]:
        common: dict[str, Any] = {"device_id": self.device_id, "role": self.role}
        if self.election_id is not None:
            common["election_id"] = U128.encode(self.election_id)
        return common

    def push(
        self,
        info: p4i.P4Info,
        device_config: bytes,
        action: str = "VERIFY_AND_COMMIT",
        cookie: int = 0,
    ) -> None:
        """SetForwardingPipelineConfig."""
        config = p4r.ForwardingPipelineConfig(
            p4info=info,
            p4_device_config=device_config,
            cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=cookie),
        )
        self.set_pipeline(action, config)

    def set_pipeline(self, action: str, config: p4r.ForwardingPipelineConfig | None = None) -> None:
        kinds = p4r.SetForwardingPipelineConfigRequest
        request = kinds(action=kinds.Action.Value(action), **self._common())
        if config is not None:
            request.config.CopyFrom(config)
        self._call(self.stub.SetForwardingPipelineConfig, request)

    def get_pipeline(self, kind: str = "ALL") -> p4r.ForwardingPipelineConfig:
        kinds = p4r.GetForwardingPipelineConfigRequest
        request = kinds(device_id=self.device_id, response_type=kinds.ResponseType.Value(kind))
        response: p4r.GetForwardingPipelineConfigResponse = self._call(
            self.stub.GetForwardingPipelineConfig, request
        )
        return response.config

    def write(self, *updates: tuple[int, p4r.Entity], atomicity: str = "CONTINUE_ON_ERROR") -> None:
        """Write updates, each a kind and an entity."""
        request = p4r.WriteRequest(
            atomicity=p4r.WriteRequest.Atomicity.Value(atomicity), **self._common()
        )
        for kind, entity in updates:
            request.updates.add(type=kind, entity=entity)  # type: ignore[arg-type]
        self._call(self.stub.Write, request)

    def insert(self, *entities: p4r.Entity) -> None:
        self.write(*((INSERT, entity) for entity in entities))

    def modify(self, *entities: p4r.Entity) -> None:
        self.write(*((MODIFY, entity) for entity in entities))

    def delete(self, *entities: p4r.Entity) -> None:
        self.write(*((DELETE, entity) for entity in entities))

    def read(self, *entities: p4r.Entity) -> list[p4r.Entity]:
        """All entities that requests select."""
        request = p4r.ReadRequest(device_id=self.device_id, role=self.role, entities=entities)
        try:
            return [
                entity
                for part in self.stub.Read(request, timeout=PATIENCE)
                for entity in part.entities
            ]
        except grpc.RpcError as error:
            raise CallError(error) from None

    def _call(self, call: Any, request: Any) -> Any:
        try:
            return call(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            raise CallError(error) from None

    # --- entities by name

    def id(self, name: str) -> int:
        """The id of the object with this alias."""
        for field, items in self.info.ListFields():
            if field.name in ("pkg_info", "type_info"):
                continue
            for item in items:
                if item.preamble.alias == name:
                    number: int = item.preamble.id
                    return number
        raise KeyError(name)

    def action(self, name: str, **parameters: int) -> p4r.Action:
        """An action; parameters by name."""
        info = next(a for a in self.info.actions if a.preamble.alias == name)
        message = p4r.Action(action_id=info.preamble.id)
        for parameter in info.params:
            if parameter.name in parameters:
                value = encoded(parameters[parameter.name])
                message.params.add(param_id=parameter.id, value=value)
        return message

    def entry(
        self,
        table: str,
        action: p4r.Action | None = None,
        *,
        exact: dict[str, int] | None = None,
        lpm: dict[str, tuple[int, int]] | None = None,
        ternary: dict[str, tuple[int, int]] | None = None,
        range_: dict[str, tuple[int, int]] | None = None,
        optional: dict[str, int] | None = None,
        **rest: Any,
    ) -> p4r.Entity:
        """A table entry; `rest` are fields of the message."""
        info = next(t for t in self.info.tables if t.preamble.alias == table)
        ids = {field.name: field.id for field in info.match_fields}
        message = p4r.TableEntry(table_id=info.preamble.id, **rest)
        for name, value in (exact or {}).items():
            message.match.add(field_id=ids[name]).exact.value = encoded(value)
        for name, (value, length) in (lpm or {}).items():
            match = message.match.add(field_id=ids[name])
            match.lpm.value, match.lpm.prefix_len = encoded(value), length
        for name, (value, mask) in (ternary or {}).items():
            match = message.match.add(field_id=ids[name])
            match.ternary.value, match.ternary.mask = encoded(value), encoded(mask)
        for name, (low, high) in (range_ or {}).items():
            match = message.match.add(field_id=ids[name])
            match.range.low, match.range.high = encoded(low), encoded(high)
        for name, value in (optional or {}).items():
            message.match.add(field_id=ids[name]).optional.value = encoded(value)
        if action is not None:
            message.action.action.CopyFrom(action)
        return p4r.Entity(table_entry=message)


def encoded(value: int) -> bytes:
    """A canonical byte string, independent of the code under test."""
    text = f"{value:x}"
    return bytes.fromhex(text if len(text) % 2 == 0 else f"0{text}")


def multicast(group: int, *replicas: tuple[int, int]) -> p4r.Entity:
    """A multicast group with replicas (port, instance)."""
    message = p4r.MulticastGroupEntry(multicast_group_id=group)
    for port, instance in replicas:
        message.replicas.add(port=encoded(port), instance=instance)
    return p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            multicast_group_entry=message
        )
    )


def clone_session(session: int, *replicas: tuple[int, int], length: int = 0) -> p4r.Entity:
    """A clone session with replicas (port, instance)."""
    message = p4r.CloneSessionEntry(session_id=session, packet_length_bytes=length)
    for port, instance in replicas:
        message.replicas.add(port=encoded(port), instance=instance)
    return p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            clone_session_entry=message
        )
    )


def frame(destination: int, source: int, ether_type: int, payload: bytes = b"") -> bytes:
    """An Ethernet frame."""
    return (
        destination.to_bytes(6, "big")
        + source.to_bytes(6, "big")
        + ether_type.to_bytes(2, "big")
        + payload
    )


def served() -> Iterator[World]:
    """A world, for a fixture."""
    world = World()
    try:
        yield world
    finally:
        world.close()


def running() -> Iterator[tuple[World, Client]]:
    """A world that runs `everything.p4`, and its primary client, for a fixture."""
    for world in served():
        yield world, world.start()


def refused(client: Client, entity: p4r.Entity, how: str = "insert") -> str:
    """Return the status code of a write of one entity, which must be refused."""
    with pytest.raises(CallError, match="UNKNOWN") as caught:
        getattr(client, how)(entity)
    return caught.value.codes()[0]
