"""The gRPC server around the P4Runtime service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from finsy.proto import p4r_grpc

from p4switch.p4runtime.service import MAX_STREAMS, P4RuntimeService

MESSAGE_BYTES = 64 << 20
METADATA_BYTES = 1 << 20
"""Of trailing metadata: one error for each update of a large batch."""

OTHER_CALLS = 8
"""Threads in addition to those that streams hold."""


class AddressError(OSError):
    """The server cannot listen on its address."""


class P4RuntimeServer:
    """A P4Runtime service that listens on an address, e.g. `0.0.0.0:9559` or `unix:/run/s1`.

    `port` is the port in use, for an address that ends in `:0`. Raises AddressError.
    """

    def __init__(self, service: P4RuntimeService, address: str) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(MAX_STREAMS + OTHER_CALLS, thread_name_prefix="grpc")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
                ("grpc.max_metadata_size", METADATA_BYTES),
            ],
        )
        p4r_grpc.add_P4RuntimeServicer_to_server(service, self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressError(
                f"cannot listen on {address!r} for P4Runtime: is the address taken by another "
                "switch, or not this machine's? Choose another --grpc-server-addr"
            ) from error
        self._server.start()

    def close(self) -> None:
        """End the server and the calls under way."""
        self._server.stop(grace=0.2).wait()
        self._service.close()
        self._pool.shutdown(wait=False)
