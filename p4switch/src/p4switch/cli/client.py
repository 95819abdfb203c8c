"""A P4Runtime client for the command line: one connection, names instead of ids."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_status

SECONDS = 10
"""Timeout of each call, in seconds."""

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


class ClientError(Exception):
    """A switch refused a request or does not answer; the message says what to do."""


class Client:
    """A connection to a P4Runtime server. It becomes primary with its first write."""

    def __init__(
        self,
        address: str,
        device_id: int,
        election_id: int,
        tls: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Connect and read the P4Info. Raises ClientError."""
        self._address = address
        self._device_id = device_id
        self._election_id = election_id
        self._channel = (
            grpc.insecure_channel(address) if tls is None else grpc.secure_channel(address, tls)
        )
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._stream: Iterator[p4r.StreamMessageResponse] = iter(())
        self._primary = False
        request = p4r.GetForwardingPipelineConfigRequest(device_id=device_id)
        try:
            answer = self._stub.GetForwardingPipelineConfig(request, timeout=SECONDS)
        except grpc.RpcError as error:
            raise self._error(error) from None
        self.info: p4i.P4Info = answer.config.p4info

    def close(self) -> None:
        """Close the connection."""
        self._requests.put(None)
        self._channel.close()

    def write(self, kind: p4r.Update.Type.ValueType, **entity: Any) -> None:
        """Insert, modify or delete an entity. Raises ClientError."""
        if not self._primary:
            self._become_primary()
        request = p4r.WriteRequest(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            updates=[p4r.Update(type=kind, entity=p4r.Entity(**entity))],
        )
        try:
            self._stub.Write(request, timeout=SECONDS)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def read(self, **entity: Any) -> Iterator[p4r.Entity]:
        """Yield the entities that match one. Raises ClientError."""
        request = p4r.ReadRequest(device_id=self._device_id, entities=[p4r.Entity(**entity)])
        try:
            for answer in self._stub.Read(request, timeout=SECONDS):
                yield from answer.entities
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _become_primary(self) -> None:
        arbitration = p4r.MasterArbitrationUpdate(
            device_id=self._device_id, election_id=U128.encode(self._election_id)
        )
        # Keep a reference: otherwise gRPC would end the stream and with it the primary role.
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
        self._requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        try:
            answer = next(self._stream)
        except grpc.RpcError as error:
            raise self._error(error) from None
        if answer.arbitration.status.code:
            raise ClientError(
                f"{self._address}: another controller is primary, with election id "
                f"{U128.decode(answer.arbitration.election_id)}; give a larger --election-id"
            )
        self._primary = True

    def _error(self, error: grpc.RpcError) -> ClientError:
        assert isinstance(error, grpc.Call)
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return ClientError(
                f"no P4Runtime server answers at {self._address}: is the switch running with "
                "--grpc-server-addr there, and if with --grpc-server-ssl, are --cacert, --cert and "
                "--key those that it expects?"
            )
        messages = [error.details() or ""]
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin" and isinstance(value, bytes):
                parts = []
                for detail in rpc_status.Status.FromString(value).details:
                    part = p4r.Error()
                    if detail.Unpack(part) and part.message:
                        parts.append(part.message)
                messages = parts or messages
        return ClientError(f"{error.code().name}: {'; '.join(messages)}")
