"""Capture files of a switch's interfaces, as BMv2's `--pcap` writes them."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from os import close, eventfd, eventfd_write
from pathlib import Path

from p4switch.packet_io.pcap import PcapWriter

ETH_P_ALL = 3
PACKET_OUTGOING = 4
LARGEST_FRAME = 65_536


class Capture:
    """Writes `INTERFACE_in.pcap` and `INTERFACE_out.pcap` into a folder until closed.

    It uses its own sockets, independent of the switch's packet loop.
    """

    def __init__(self, interfaces: Sequence[str], folder: Path) -> None:
        self._sockets: dict[int, tuple[socket.socket, PcapWriter, PcapWriter]] = {}
        for name in interfaces:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sock.setblocking(False)
            sock.bind((name, ETH_P_ALL))
            into = PcapWriter(folder / f"{name}_in.pcap")
            out = PcapWriter(folder / f"{name}_out.pcap")
            self._sockets[sock.fileno()] = (sock, into, out)
        self._stop = eventfd(0)
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write pending frames and finish the files."""
        eventfd_write(self._stop, 1)
        self._thread.join()
        close(self._stop)
        for sock, into, out in self._sockets.values():
            sock.close()
            into.close()
            out.close()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._stop, *self._sockets):
            poll.register(descriptor, select.POLLIN)
        stopped = False
        while not stopped:
            stopped = any(descriptor == self._stop for descriptor, _ in poll.poll())
            for sock, into, out in self._sockets.values():
                _drain(sock, into, out)


def _drain(sock: socket.socket, into: PcapWriter, out: PcapWriter) -> None:
    with suppress(BlockingIOError):
        while True:
            try:
                frame, address = sock.recvfrom(LARGEST_FRAME)
            except OSError as error:
                if error.errno != errno.ENETDOWN:
                    raise
                continue
            writer = out if address[2] == PACKET_OUTGOING else into
            writer.write(time.time(), frame)
