"""A P4Runtime server in memory: keeps what is written, and answers slot inspections.

It checks as little as a test needs: existence on insert, modify and delete, and what `refuse`
names. It says errors as real switches do, one p4.v1.Error an update.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_status
from google.protobuf import any_pb2

from hopsum.protocol.outcomes import Outcome

OK, NOT_FOUND, ALREADY_EXISTS, INVALID_ARGUMENT = 0, 5, 6, 3


def entity_key(entity: p4r.Entity) -> bytes:
    """The identity of an entity: all but action and replicas."""
    key = p4r.Entity()
    if entity.HasField("table_entry"):
        key.table_entry.table_id = entity.table_entry.table_id
        for match in sorted(entity.table_entry.match, key=lambda match: match.field_id):
            key.table_entry.match.add().CopyFrom(match)
    else:
        engine, keyed = entity.packet_replication_engine_entry, key.packet_replication_engine_entry
        if engine.HasField("clone_session_entry"):
            keyed.clone_session_entry.session_id = engine.clone_session_entry.session_id
        else:
            group = engine.multicast_group_entry.multicast_group_id
            keyed.multicast_group_entry.multicast_group_id = group
    return key.SerializeToString(deterministic=True)


class FakeSwitch(p4r_grpc.P4RuntimeServicer):
    """One switch; `start` it at an address and `stop` it."""

    def __init__(self) -> None:
        self.entities: dict[bytes, p4r.Entity] = {}
        self.replicas: dict[bytes, list[int]] = {}
        """Egress ports by group or session in the packet engine: of BMv2, a push leaves them be."""
        self.config = p4r.ForwardingPipelineConfig()
        self.pushes = 0
        self.writes: list[p4r.WriteRequest] = []
        self.reads: list[p4r.ReadRequest] = []
        self.refuse: set[int] = set()
        """Table ids whose entries are refused."""
        self.answers = True
        self.primary = True
        self.going = asyncio.Event()
        """Cleared, it hangs as a stopped process does: connections stay open, without answers."""
        self.going.set()
        self.asked = 0
        """How often its capabilities have been asked for."""
        self.knows_capabilities = True
        self.late = 0
        """How many requests for the pipeline are not answered in time."""
        self._server: grpc.aio.Server | None = None
        self._client: Any = None
        """The latest stream."""

    async def start(self, address: str) -> None:
        """Listen."""
        self._server = grpc.aio.server()
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self) -> None:
        """End, as a killed process does."""
        if self._server is not None:
            await self._server.stop(None)

    async def StreamChannel(
        self, requests: AsyncIterator[p4r.StreamMessageRequest], context: Any
    ) -> None:
        self._client = context
        async for request in requests:
            await self.going.wait()
            if request.HasField("arbitration"):
                self._asked = request.arbitration
                await self.elect(self.primary)
            elif self.answers:
                await context.write(self._slot(request.packet))

    async def elect(self, primary: bool) -> None:
        """Tell the client whether it is the primary."""
        reply = p4r.StreamMessageResponse(arbitration=self._asked)
        if not primary:
            reply.arbitration.election_id.low = 99
            reply.arbitration.status.code = ALREADY_EXISTS
        await self._client.write(reply)

    def _slot(self, packet: p4r.PacketOut) -> p4r.StreamMessageResponse:
        """The answer of a slot of job 3 that saw child 1 of 2."""
        asked = {data.metadata_id: data.value for data in packet.metadata}
        frame = bytearray(packet.payload)
        frame[46:48] = (3).to_bytes(2, "big")
        frame[-1] = 7
        values = {1: b"\1", 2: b"\0", 3: b"\0", 4: asked[4], 5: b"\2", 6: b"\1", 7: b"\2", 8: b"\0"}
        values[9] = b"\1"
        metadata = [p4r.PacketMetadata(metadata_id=i, value=v) for i, v in values.items()]
        return p4r.StreamMessageResponse(
            packet=p4r.PacketIn(payload=bytes(frame), metadata=metadata)
        )

    async def Capabilities(
        self, request: p4r.CapabilitiesRequest, context: Any
    ) -> p4r.CapabilitiesResponse:
        self.asked += 1
        await self.going.wait()
        if not self.knows_capabilities:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "what is that?")
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    async def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: Any
    ) -> p4r.GetForwardingPipelineConfigResponse:
        if self.late:
            self.late -= 1
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if not self.pushes:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "No forwarding pipeline config set for this device.",
            )
        config = p4r.ForwardingPipelineConfig(cookie=self.config.cookie)
        if request.response_type != p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY:
            config.p4info.CopyFrom(self.config.p4info)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    async def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: Any
    ) -> p4r.SetForwardingPipelineConfigResponse:
        assert request.action == p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        self.config = request.config
        self.pushes += 1
        self.entities.clear()
        return p4r.SetForwardingPipelineConfigResponse()

    async def Write(self, request: p4r.WriteRequest, context: Any) -> p4r.WriteResponse:
        await self.going.wait()
        self.writes.append(request)
        errors = [self.update(update) for update in request.updates]
        if any(error.canonical_code for error in errors):
            status = rpc_status.Status(code=2)
            for error in errors:
                detail = any_pb2.Any()
                detail.Pack(error)
                status.details.append(detail)
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),)
            )
            await context.abort(grpc.StatusCode.UNKNOWN, "")
        return p4r.WriteResponse()

    def update(self, update: p4r.Update) -> p4r.Error:
        key = entity_key(update.entity)
        if update.entity.table_entry.table_id in self.refuse:
            return p4r.Error(canonical_code=INVALID_ARGUMENT, message="I do not like it")
        if update.type == p4r.Update.INSERT and key in self.entities:
            return p4r.Error(canonical_code=ALREADY_EXISTS, message="there already")
        if update.type != p4r.Update.INSERT and key not in self.entities:
            return p4r.Error(canonical_code=NOT_FOUND, message="not there")
        if update.type == p4r.Update.DELETE:
            del self.entities[key]
        else:
            self.entities[key] = update.entity
        if update.entity.HasField("packet_replication_engine_entry"):
            self._replicate(key, update)
        return p4r.Error(canonical_code=OK)

    def _replicate(self, key: bytes, update: p4r.Update) -> None:
        engine = update.entity.packet_replication_engine_entry
        cloned = engine.HasField("clone_session_entry")
        group = engine.clone_session_entry if cloned else engine.multicast_group_entry
        if update.type != p4r.Update.INSERT:
            self.replicas.pop(key, None)
        if update.type != p4r.Update.DELETE:
            # finsy names ports by bytes in newer messages, by number in older ones.
            ports = [r.egress_port or int.from_bytes(r.port, "big") for r in group.replicas]
            self.replicas.setdefault(key, []).extend(ports)

    async def Read(self, request: p4r.ReadRequest, context: Any) -> AsyncIterator[p4r.ReadResponse]:
        await self.going.wait()
        self.reads.append(request)
        wanted = {entity.WhichOneof("entity") for entity in request.entities}
        if "counter_entry" in wanted:
            counter = request.entities[0].counter_entry.counter_id
            cells = p4r.ReadResponse()
            for index in range(len(Outcome)):
                cell = cells.entities.add().counter_entry
                cell.counter_id = counter
                cell.index.index = index
                cell.data.packet_count = 100 + index
            yield cells
        yield p4r.ReadResponse(
            entities=[
                entity for entity in self.entities.values() if entity.WhichOneof("entity") in wanted
            ]
        )
