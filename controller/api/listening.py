"""Listening addresses of the controller's services, and access to them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc

from hopsum.controller.api.callers import (
    Caller,
    Guard,
    Identify,
    caller_by_certificate,
    caller_by_user,
    fixed_caller,
)
from hopsum.controller.api.unix_callers import SocketError, group_number, serve_group
from hopsum.protocol.channel import SERVER_OPTIONS, Tls
from hopsum.protocol.errors import InputError, OperationError

STOP_SECONDS = 0.5
"""Grace period for calls in progress when a server stops."""
UNIX = "unix:"

AddTo = Callable[[grpc.aio.Server], None]
"""Lets a server answer a service's calls."""
Listen = Callable[[Iterable[AddTo]], AbstractAsyncContextManager[str]]
"""Serves at an address, which it yields, while its block runs."""


class ServiceError(OperationError):
    """The service cannot listen; the message says where and why."""


class AccessError(InputError):
    """An address that would admit anyone, or a group option for an address without a group."""


def at(
    address: str,
    credentials: grpc.ServerCredentials | None = None,
    *,
    group: str | None = None,
    identify: Identify | None = None,
) -> Listen:
    """Listen on `host:port` (port 0: any) or `unix:path`; with `credentials` speak TLS only.

    A Unix socket is for the user who runs this (mode 0600), or for the members of `group` too.
    `identify` (without `group`) identifies callers; None: by certificate with `credentials`, as the
    socket's user at a Unix socket, else every caller is an operator. Entering its block raises
    ServiceError if listening fails.
    """
    path = Path(address.removeprefix(UNIX)) if address.startswith(UNIX) else None

    def server_of(services: Iterable[AddTo], identify: Identify) -> grpc.aio.Server:
        server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[Guard(identify)])
        for add in services:
            add(server)
        return server

    @contextlib.asynccontextmanager
    async def listen(services: Iterable[AddTo]) -> AsyncIterator[str]:
        services = tuple(services)
        if path is not None:
            _refuse_taken(path)
        if path is not None and group is not None:

            def server_for(caller: Caller) -> grpc.aio.Server:
                return server_of(services, fixed_caller(caller))

            try:
                async with serve_group(path, group, server_for):
                    yield address
            except SocketError as error:
                raise ServiceError(str(error)) from None
            return
        own = () if path is None else (caller_by_user(os.geteuid()),)
        usual = caller_by_certificate if credentials else fixed_caller(*own)
        server = server_of(services, identify or usual)
        # gRPC creates the socket: keep others out until its mode is set.
        before = os.umask(0o177)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ServiceError(f"cannot listen on {address}: {error}") from None
        finally:
            os.umask(before)
        await server.start()
        try:
            yield address if path is not None else f"{address.rpartition(':')[0]}:{port}"
        finally:
            await server.stop(STOP_SECONDS)

    return listen


def check_access(
    address: str, tls: Tls | None, *, insecure: bool = False, group: str | None = None
) -> None:
    """Raise AccessError for an address open to anyone, unless `insecure` is set.

    NoGroupError for an unknown group.
    """
    unix = address.startswith(UNIX)
    if tls is not None and unix:
        raise AccessError(
            f"listen {address}: TLS is for host:port; access to a Unix socket is set by its owner "
            "and --group"
        )
    if group is not None and not unix:
        raise AccessError(
            f"group {group!r}: {address} is not a Unix socket, and only those have groups; listen "
            "on unix:PATH, or use certificates"
        )
    if group is not None:
        group_number(group)
    if unix or insecure or (tls is not None and tls.authority is not None):
        return
    raise AccessError(
        f"listen {address}: without TLS and an authority anyone could operate the cluster; give "
        "--tls-certificate, --tls-key and --tls-authority, listen on unix:PATH, or give --insecure"
    )


def _refuse_taken(path: Path) -> None:
    """Raise ServiceError if a process listens there: gRPC would replace the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise ServiceError(
        f"cannot listen on {UNIX}{path}: another process listens there; stop it, or choose another "
        "path"
    )
