"""Monitors the links of interfaces, for selector members that watch ports."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import close, eventfd, eventfd_write

RTMGRP_LINK = 1
SIOCGIFFLAGS = 0x8913
IFF_UP = 0x1
IFF_RUNNING = 0x40
LARGEST_MESSAGE = 65_536


class LinkMonitor:
    """Calls `changed(port, up)` for each port without a link, and at each change, until closed.

    The kernel reports over netlink that some link has changed (rtnetlink(7)); the interfaces are
    then queried (netdevice(7)). The first calls come from the constructor, the others from a
    thread.
    """

    def __init__(self, ports: Mapping[int, str], changed: Callable[[int, bool], None]) -> None:
        self._ports = dict(ports)
        self._changed = changed
        self._up = dict.fromkeys(self._ports, True)
        self._news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._news.bind((0, RTMGRP_LINK))
        self._asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stop = eventfd(0)
        self._look()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        eventfd_write(self._stop, 1)
        self._thread.join()
        close(self._stop)
        self._news.close()
        self._asked.close()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._stop, self._news.fileno()):
            poll.register(descriptor, select.POLLIN)
        while not any(descriptor == self._stop for descriptor, _ in poll.poll()):
            with suppress(OSError):  # ENOBUFS: a message is only a trigger for a query.
                self._news.recv(LARGEST_MESSAGE)
            self._look()

    def _look(self) -> None:
        for port, interface in self._ports.items():
            up = self._has_link(interface)
            if up != self._up[port]:
                self._up[port] = up
                self._changed(port, up)

    def _has_link(self, interface: str) -> bool:
        request = struct.pack("16sH14x", interface.encode(), 0)
        try:
            answer = fcntl.ioctl(self._asked, SIOCGIFFLAGS, request)
        except OSError:
            return False  # The interface is gone.
        flags: int = struct.unpack_from("16xH", answer)[0]
        return flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING
