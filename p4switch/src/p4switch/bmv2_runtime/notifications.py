"""Digests as BMv2 publishes them, for controllers over Thrift (p4-utils with nnpy or pynng).

A UNIX socket speaks nanomsg's PUB protocol: both ends send 8 bytes that name their protocol
(rfc/sp-tcp-mapping-01.txt in nanomsg), then a message is a byte 1, its length in 8 bytes, and its
content (src/transports/ipc/sipc.c). The content is a header of 32 bytes
(`LearnEngineIface::msg_hdr_t` in behavioral-model) and the values, each padded to bytes. The
header's first four bytes are what subscribers filter by.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import stat
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from p4switch.bmv2_runtime.tables import padded
from p4switch.ir import Bits, Program, Struct, Type
from p4switch.targets.v1model.engine import Digest

SCHEME = "ipc://"
GREETING = struct.Struct(">4sHH")
MAGIC, PUB, SUB = b"\0SP\0", 0x20, 0x21
IPC_MESSAGE = struct.Struct(">BQ")
HEADER = struct.Struct("<4sQiiQI")
TOPIC = b"LEA|"
SECONDS = 1.0
"""How long a subscriber may keep others waiting, before it is dropped."""

Values = tuple[int, ...]

log = logging.getLogger(__name__)


class NotificationsError(OSError):
    """The address cannot be served."""


class Notifications:
    """A publisher at a UNIX socket until closed. Raises NotificationsError.

    `types` returns the types of a program's digests, in the order in which p4c numbers them.
    A value that was published is not published again until it is acknowledged.
    """

    def __init__(
        self, address: str, device_id: int, types: Callable[[Program], Iterable[Struct]]
    ) -> None:
        if not address.startswith(SCHEME):
            raise NotificationsError(f"{address}: notifications are served at {SCHEME}PATH only")
        self.address = address
        self._device_id = device_id
        self._types = types
        self._path = Path(address.removeprefix(SCHEME))
        self._lock = threading.Lock()
        self._subscribers: list[socket.socket] = []
        self._program: Program | None = None
        self._lists: dict[str, tuple[int, Struct]] = {}
        self._buffers = 0
        self._unacknowledged: set[tuple[int, Values]] = set()
        self._messages: dict[tuple[int, int], list[Values]] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            if self._path.exists() and stat.S_ISSOCK(self._path.lstat().st_mode):
                self._path.unlink()  # Of a switch that was killed, as p4-utils does.
            self._listener.bind(str(self._path))
        except OSError as error:
            self._listener.close()
            raise NotificationsError(
                f"cannot serve notifications at {address}: {error.strerror}; choose another "
                "--notifications-addr"
            ) from error
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="notifications", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(SECONDS)
            try:
                greeting = client.recv(GREETING.size, socket.MSG_WAITALL)
                if greeting != GREETING.pack(MAGIC, SUB, 0):
                    raise OSError
                with self._lock:  # Who has our greeting gets what is published from then on.
                    client.sendall(GREETING.pack(MAGIC, PUB, 0))
                    self._subscribers.append(client)
            except OSError:
                log.warning("notifications: a client is no subscriber; it is disconnected")
                client.close()

    def publish(self, program: Program, digests: Sequence[Digest]) -> None:
        """Send digests to the subscribers, those of a type in one message."""
        with self._lock:
            if not self._subscribers:
                return
            if program is not self._program:
                self._program = program
                types = enumerate(self._types(program), 1)  # p4c numbers lists from 1.
                self._lists = {kind.name: (number, kind) for number, kind in types}
                self._unacknowledged.clear()
                self._messages.clear()
            wanted: dict[str, dict[Values, None]] = {}
            for digest in digests:
                number, _ = self._lists[digest.name]
                if (number, digest.values) not in self._unacknowledged:
                    wanted.setdefault(digest.name, {})[digest.values] = None
            for name, samples in wanted.items():
                number, kind = self._lists[name]
                self._unacknowledged.update((number, each) for each in samples)
                self._messages[number, self._buffers] = list(samples)
                header = HEADER.pack(TOPIC, self._device_id, 0, number, self._buffers, len(samples))
                widths = tuple(_widths(kind))
                self._send(header + b"".join(_sample(each, widths) for each in samples))
                self._buffers += 1

    def _send(self, content: bytes) -> None:
        for client in list(self._subscribers):
            try:
                client.sendall(IPC_MESSAGE.pack(1, len(content)) + content)
            except OSError:
                self._subscribers.remove(client)
                client.close()

    def acknowledge(
        self, list_id: int, buffer_id: int, samples: Collection[int] | None = None
    ) -> None:
        """Forget the values of a message, or those at some positions in it."""
        with self._lock:
            sent = self._messages.get((list_id, buffer_id), [])
            for index, values in enumerate(sent):
                if samples is None or index in samples:
                    self._unacknowledged.discard((list_id, values))
            if samples is None or len(samples) == len(sent):
                self._messages.pop((list_id, buffer_id), None)

    def close(self) -> None:
        """End the connections and remove the socket."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self._path.unlink(missing_ok=True)
        for client in self._subscribers:
            client.close()


def _widths(kind: Type) -> Iterator[int]:
    """Yield the widths of a type's scalars in bits."""
    if isinstance(kind, Struct):
        for field in kind.fields:
            yield from _widths(field.type)
    else:
        yield kind.width if isinstance(kind, Bits) else 1


def _sample(values: Values, widths: Sequence[int]) -> bytes:
    return b"".join(padded(value, width) for value, width in zip(values, widths, strict=True))
