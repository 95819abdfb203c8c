"""A client of a switch's run-time interface for the command line, over gRPC or Thrift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from p4switch.bmv2_runtime.grpc_calls import GrpcCalls

SECONDS = 10
"""Timeout of each call, in seconds."""


class ClientError(Exception):
    """A switch does not answer; the message says what to do."""


class Client(Protocol):
    """A connection to a switch."""

    def call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method of the run-time interface. Raises Fault and ClientError."""

    def close(self) -> None:
        """Close the connection."""


class GrpcClient:
    """A connection to the address of P4Runtime."""

    def __init__(self, address: str, tls: grpc.ChannelCredentials | None = None) -> None:
        """Connect. Raises ClientError."""
        self._address = address
        self._channel = (
            grpc.insecure_channel(address) if tls is None else grpc.secure_channel(address, tls)
        )
        self._calls = GrpcCalls(self._channel, SECONDS)
        self.call("standard", "bm_mgmt_get_info", [])

    def call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        """See `Client`."""
        try:
            return self._calls.call(service, method, arguments)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def close(self) -> None:
        """See `Client`."""
        self._channel.close()

    def _error(self, error: grpc.RpcError) -> ClientError:
        assert isinstance(error, grpc.Call)
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return ClientError(
                f"no switch answers at {self._address}: is it running with --grpc-server-addr "
                "there, and if with --grpc-server-ssl, are --cacert, --cert and --key those that "
                "it expects?"
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ClientError(f"what answers at {self._address} is no p4switch")
        return ClientError(f"{error.code().name}: {error.details()}")


class ThriftConnection:
    """A connection to a Thrift port, of p4switch or of BMv2."""

    def __init__(self, port: int) -> None:
        """Connect. Raises ClientError."""
        from p4switch.bmv2_runtime.thrift import ThriftClient, ThriftError

        self._failed = ThriftError
        try:
            self._client = ThriftClient(port)
        except ThriftError as error:
            raise ClientError(str(error)) from None

    def call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        """See `Client`."""
        try:
            return self._client.call(service, method, arguments)
        except self._failed as error:
            raise ClientError(str(error)) from None

    def close(self) -> None:
        """See `Client`."""
        self._client.close()
