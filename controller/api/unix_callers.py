"""A Unix socket for the users of a group that identifies the user of each call.

gRPC does not report the user at the other end of a socket, but the kernel does (SO_PEERCRED in
unix(7)). So connections are accepted here and forwarded, byte by byte, to a server for that user
only, in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from hopsum.controller.api.callers import Caller, caller_by_user
from hopsum.protocol.errors import InputError, OperationError

MOST_USERS = 64
"""Maximum number of users: each has a server of its own."""
MOST_CONNECTIONS = 64
"""Maximum simultaneous connections of one user; operators, whose agents have one each, are exempt.
"""
_CHUNK = 1 << 16
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""


def group_number(group: str) -> int:
    """Return a group's number. Raises NoGroupError."""
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise NoGroupError(
            f"group {group!r:.80}: no such group on this machine; see `getent group`"
        ) from None


MakeServer = Callable[[Caller], grpc.aio.Server]


class NoGroupError(InputError):
    """A group that this machine does not have."""


class SocketError(OperationError):
    """The socket cannot be made; the message says why."""


@contextlib.asynccontextmanager
async def serve_group(path: Path, group: str, make_server: MakeServer) -> AsyncIterator[None]:
    """Serve a Unix socket (mode 0660, of `group`) while the block runs; a server for each user.

    Raises NoGroupError, and SocketError where the socket cannot be made.
    """
    number = group_number(group)
    with tempfile.TemporaryDirectory(prefix="hopsum-callers-") as folder:
        relay = _Relay(Path(folder), make_server)
        server = await _listen(path, number, relay)
        try:
            yield
        finally:
            server.close()
            await relay.close()
            path.unlink(missing_ok=True)


async def _listen(path: Path, group: int, relay: _Relay) -> asyncio.Server:
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        # Keep others out until group and mode are set.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        os.chown(path, -1, group)
        path.chmod(0o660)
        return await asyncio.start_unix_server(relay.take, sock=listener)
    except OSError as error:
        listener.close()
        raise SocketError(f"cannot listen on unix:{path}: {error.strerror}") from None


class _Relay:
    """Accepts connections, and forwards each to the server of its user."""

    def __init__(self, folder: Path, make_server: MakeServer) -> None:
        self._folder = folder
        self._make_server = make_server
        self._servers: dict[int, grpc.aio.Server] = {}
        self._open: Counter[int] = Counter()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection in both directions until one side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        uid = _peer(writer)
        self._open[uid] += 1
        try:
            if self._open[uid] <= MOST_CONNECTIONS or uid in (0, os.geteuid()):
                inner = await self._address(uid)
                if inner is not None:
                    await _pass_on(reader, writer, inner)
        except OSError:
            pass
        finally:
            self._open[uid] -= 1
            writer.close()
            self._tasks.discard(task)

    async def _address(self, uid: int) -> Path | None:
        """Return the address of a user's server; None if there are too many users."""
        path = self._folder / str(uid)
        async with self._lock:
            if uid not in self._servers:
                if len(self._servers) >= MOST_USERS:
                    return None
                server = self._make_server(caller_by_user(uid))
                server.add_insecure_port(f"unix:{path}")
                await server.start()
                self._servers[uid] = server
        return path

    async def close(self) -> None:
        """End all connections and servers."""
        for server in self._servers.values():
            await server.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _peer(writer: asyncio.StreamWriter) -> int:
    """Return the user at the other end at the time of connecting."""
    found = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    return int(_CREDENTIALS.unpack(found)[1])


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: Path) -> None:
    there, back = await asyncio.open_unix_connection(str(inner))
    try:
        copies = [
            asyncio.ensure_future(_copy(reader, back)),
            asyncio.ensure_future(_copy(there, writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
    finally:
        back.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
