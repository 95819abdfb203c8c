"""Packets of a fragment's size to another host and back: the latency of the network alone.

python -m benchmarks.echo server|client ADDRESS COUNT. The client waits for the server, and prints
the microseconds of each packet.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

PORT = 7
SIZE = 1024
PATIENCE = 1.0


def serve(address: str) -> None:
    """Send everything back until this process is ended."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, PORT))
        while True:
            server.sendto(*server.recvfrom(2 * SIZE))


def ask(address: str, count: int) -> list[float]:
    """Return the round-trip time of each of some packets in microseconds."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, PORT))
        client.settimeout(PATIENCE)
        taken: list[float] = []
        while len(taken) < count:
            began = time.perf_counter()
            # Refused, or not answered, until the server is up.
            with contextlib.suppress(ConnectionRefusedError, TimeoutError):
                client.send(bytes(SIZE))
                client.recv(2 * SIZE)
                taken.append(1e6 * (time.perf_counter() - began))
        return taken


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        print(*ask(sys.argv[2], int(sys.argv[3])))
