"""A Unix socket for the users of a group, where each call is known to be of its user.

gRPC does not say which user is at the other end of a socket, the kernel does (SO_PEERCRED in
unix(7)). So connections are taken here and passed on, byte by byte, to a server of that user alone,
in a folder that nobody else enters.
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

from controller.api.callers import Caller, user
from protocol.errors import InputError, OperationError

MOST_USERS = 64
"""Each has a server of its own."""
MOST_CONNECTIONS = 64
"""Of one user at a time; an operator's agents have one each and are not counted."""
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
async def served_to_group(path: Path, group: str, make_server: MakeServer) -> AsyncIterator[None]:
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
        # Nobody gets in before it has its group and mode.
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
    """Takes connections, and passes each on to the server of its user."""

    def __init__(self, folder: Path, make_server: MakeServer) -> None:
        self._folder = folder
        self._make_server = make_server
        self._servers: dict[int, grpc.aio.Server] = {}
        self._open: Counter[int] = Counter()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on, both ways, until one side ends it."""
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
        """Return where a user's server listens; None: there are too many users."""
        path = self._folder / str(uid)
        async with self._lock:
            if uid not in self._servers:
                if len(self._servers) >= MOST_USERS:
                    return None
                server = self._make_server(user(uid))
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
    """Return the user at the other end, as it was when it connected."""
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
