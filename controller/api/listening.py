"""Where the controller's services listen: sockets of gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager

import grpc

from protocol.channel import CHANNEL_OPTIONS
from protocol.errors import OperationError

STOP_SECONDS = 0.5
"""For calls that are under way when a server stops."""

AddTo = Callable[[grpc.aio.Server], None]
"""Lets a server answer a service's calls."""
Listen = Callable[[Iterable[AddTo]], AbstractAsyncContextManager[str]]
"""Makes services known at an address, which it gives, for as long as its block runs."""


class ServiceError(OperationError):
    """The service cannot listen; the message says where and why."""


def at(address: str, credentials: grpc.ServerCredentials | None = None) -> Listen:
    """Listen on `host:port` (port 0: any) or `unix:path`; with `credentials` speak TLS only.

    Entering its block raises ServiceError if that cannot be.
    """

    @contextlib.asynccontextmanager
    async def listen(services: Iterable[AddTo]) -> AsyncIterator[str]:
        server = grpc.aio.server(options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)])
        for add in services:
            add(server)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ServiceError(f"cannot listen on {address}: {error}") from None
        await server.start()
        try:
            yield address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        finally:
            await server.stop(STOP_SECONDS)

    return listen
