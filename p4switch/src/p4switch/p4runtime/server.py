"""The gRPC server around the P4Runtime service."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from p4switch.p4runtime.interfaces import MAX_SUBSCRIPTIONS, InterfaceService
from p4switch.p4runtime.reads import MAX_READS, ReadLimits
from p4switch.p4runtime.service import MAX_STREAMS, P4RuntimeService
from p4switch.proto import gnmi_grpc, p4r_grpc

if TYPE_CHECKING:
    from p4switch.p4runtime.tls import Tls

MESSAGE_BYTES = 64 << 20
METADATA_BYTES = 1 << 20
"""Maximum size of trailing metadata: one error for each update of a large batch."""

OTHER_CALLS = 8
"""Threads in addition to those of streams and reads."""
STOP_SECONDS, STOP_ATTEMPTS = 1.0, 5
"""How long the end of pending calls is waited for, and how often they are cancelled."""
LOGGER = logging.getLogger("p4switch")

UNIX = "unix:"


class AddressError(OSError):
    """The server cannot listen on its address."""


class P4RuntimeServer:
    """A P4Runtime service that listens on an address, e.g. `0.0.0.0:9559` or `unix:/run/s1`.

    `interfaces` and `others`: served there too. `port` is the actual port, for addresses that end
    in `:0`. A Unix socket is accessible to this user only (mode 0600). Anyone who reaches another
    address may program the switch, unless `tls` requires certificates of clients. Raises
    AddressError, TlsError.
    """

    def __init__(
        self,
        service: P4RuntimeService,
        address: str,
        tls: Tls | None = None,
        interfaces: InterfaceService | None = None,
        others: Sequence[grpc.GenericRpcHandler] = (),
    ) -> None:
        credentials = None if tls is None else tls.credentials()
        if address.startswith(UNIX):
            _refuse_taken(address.removeprefix(UNIX))
        self._service = service
        self._reads = ReadLimits()
        threads = MAX_STREAMS + MAX_SUBSCRIPTIONS + MAX_READS + OTHER_CALLS
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grpc")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
                ("grpc.max_metadata_size", METADATA_BYTES),
            ],
            interceptors=[self._reads],
        )
        p4r_grpc.add_P4RuntimeServicer_to_server(service, self._server)
        if interfaces is not None:
            gnmi_grpc.add_gNMIServicer_to_server(interfaces, self._server)
        self._server.add_generic_rpc_handlers(others)
        # gRPC creates the socket: keep others out until its mode is set.
        before = os.umask(0o177)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise AddressError(
                f"cannot listen on {address!r} for P4Runtime: is the address taken by another "
                "switch, or not this machine's? Choose another --grpc-server-addr"
            ) from error
        finally:
            os.umask(before)
        self._server.start()
        self._reads.start()

    def close(self) -> None:
        """End the server and pending calls."""
        ended = self._server.stop(grace=0.2)
        # Seen once: a call outlived gRPC's cancellation, and the wait never ended.
        for _ in range(STOP_ATTEMPTS):
            if ended.wait(STOP_SECONDS):
                break
            ended = self._server.stop(grace=0)
        else:
            LOGGER.warning("calls of P4Runtime clients do not end, and are abandoned")
        self._reads.close()
        self._service.close()
        self._pool.shutdown(wait=False)


def _refuse_taken(path: str) -> None:
    """Raise AddressError if the socket is in use: gRPC would replace it."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise AddressError(
        f"cannot listen on '{UNIX}{path}' for P4Runtime: another process listens there; choose "
        "another --grpc-server-addr"
    )
