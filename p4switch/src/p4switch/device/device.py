"""A running switch: ports, packet loop, engine and P4Runtime in one process."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from p4switch.bmv2_runtime.grpc_calls import handler
from p4switch.bmv2_runtime.notifications import Notifications
from p4switch.bmv2_runtime.runtime import Runtime
from p4switch.device.links import LinkMonitor
from p4switch.device.loading import Loader
from p4switch.device.plane import DigestSink, FrameSink, Plane, PythonPlane
from p4switch.device.runtime_host import RuntimeHost
from p4switch.p4runtime.interfaces import InterfaceService
from p4switch.p4runtime.names import digest_types
from p4switch.p4runtime.p4info import p4info
from p4switch.p4runtime.server import P4RuntimeServer
from p4switch.p4runtime.service import P4RuntimeService
from p4switch.packet_io.sockets import FullCounts, InterfaceError, open_packet_socket
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import Digest, EngineStatistics

if TYPE_CHECKING:
    # Imported late: most switches start without them.
    from p4switch.bmv2_runtime.thrift import ThriftServer
    from p4switch.device.capture import Capture
    from p4switch.device.metrics import MetricsServer
    from p4switch.p4runtime.tls import Tls

LARGEST_PORT = 510
"""511 is BMv2's drop port."""

log = logging.getLogger(__name__)


class PortError(ValueError):
    """A port number or interface cannot be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class PortName:
    """A port's number and its interface."""

    number: int
    interface: str

    @classmethod
    def parse(cls, text: str) -> PortName:
        """Parse `PORT@INTERFACE`. Raises PortError."""
        number, at, interface = text.partition("@")
        if not at or not re.fullmatch("[0-9]+", number) or not interface:
            raise PortError(f"port {text!r:.80}: expected PORT@INTERFACE, as in 1@veth1")
        # Python refuses to convert thousands of digits to a number.
        if len(number) > 9 or int(number) > LARGEST_PORT:
            raise PortError(f"port {text!r:.80}: numbers are 0..{LARGEST_PORT}")
        return cls(int(number), interface)


class Device:
    """A switch with open ports. With `address` it serves P4Runtime there from the start.

    `device_config`: a bundle to run immediately. With `files_after` the ports are capture files,
    whose packets are processed that many seconds after a program is loaded (`FilePlane`);
    `files_done` is set at their end. With `metrics_address` it serves metrics there. `tls`: of
    P4Runtime. With `thrift_port` it serves BMv2's run-time interface there, to this machine only;
    at `address` that is served, too (`bmv2_runtime.grpc_calls`). At `notifications_address` digests
    are published as BMv2 does. Raises PortError, TlsError, AddressError, ThriftError,
    NotificationsError, P4Error, PcapError, MetricsAddressError.
    Use as a context manager.
    """

    def __init__(
        self,
        ports: Sequence[PortName],
        loader: Loader,
        *,
        device_id: int = 1,
        address: str | None = None,
        device_config: bytes | None = None,
        capture_path: Path | None = None,
        files_after: float | None = None,
        metrics_address: str | None = None,
        tls: Tls | None = None,
        thrift_port: int | None = None,
        notifications_address: str | None = None,
    ) -> None:
        _check_ports(ports, loader.options.cpu_port)
        engine = loader(device_config) if device_config is not None else None
        self._loader = loader
        self._sockets: dict[int, socket.socket] = {}
        self._capture: Capture | None = None
        self._plane: Plane | None = None
        self.files_done: threading.Event | None = None
        self.metrics: MetricsServer | None = None
        self._links: LinkMonitor | None = None
        self.service: P4RuntimeService | None = None
        self.server: P4RuntimeServer | None = None
        self._thrift: ThriftServer | None = None
        self._notifications: Notifications | None = None
        try:
            on_frames: FrameSink = lambda frames: service.packets_in(frames)  # noqa: E731
            on_digests: DigestSink = lambda digests: self._digests(digests)  # noqa: E731
            interfaces = {port.number: port.interface for port in ports}
            if files_after is not None:
                from p4switch.device.file_plane import FilePlane

                files = FilePlane(
                    interfaces, files_after, loader.options.cpu_port, on_frames, on_digests
                )
                plane: Plane = files
                self.files_done = files.done
            else:
                for port in ports:
                    self._sockets[port.number] = _open(port)
                if capture_path is not None:
                    from p4switch.device.capture import Capture

                    self._capture = Capture(list(interfaces.values()), capture_path)
                plane = _make_plane(loader, self._sockets, on_frames, on_digests)
            self._plane = plane
            service = self.service = P4RuntimeService(device_id, loader, plane)
            states = None
            if files_after is None:
                states = InterfaceService(interfaces)
                self._links = LinkMonitor(interfaces, _on_link(service, states))
            if engine is not None:
                assert device_config is not None
                config = p4r.ForwardingPipelineConfig(
                    p4info=p4info(engine.program), p4_device_config=device_config
                )
                service.start(engine, config)
            if metrics_address is not None:
                from p4switch.device.metrics import MetricsServer, exposition

                full = FullCounts(self._sockets)
                self.metrics = MetricsServer(
                    metrics_address,
                    lambda: exposition(plane.statistics(), service.engine, interfaces, full.read()),
                )
            if notifications_address is not None:
                self._notifications = Notifications(
                    notifications_address,
                    device_id,
                    lambda program: (each.type for each in digest_types(program)),
                )
            host = RuntimeHost(service, plane, interfaces)
            runtime = Runtime(host, device_id, notifications=self._notifications)
            if thrift_port is not None:
                from p4switch.bmv2_runtime.thrift import ThriftServer

                self._thrift = ThriftServer(runtime, thrift_port)
            if address is not None:
                self.server = P4RuntimeServer(service, address, tls, states, [handler(runtime)])
        except BaseException:
            self.close()
            raise

    def _digests(self, digests: Sequence[Digest]) -> None:
        assert self.service is not None
        self.service.digests(digests)
        engine = self.service.engine
        if self._notifications is not None and engine is not None:
            self._notifications.publish(engine.program, digests)

    def reload(self, device_config: bytes) -> None:
        """Run another bundle, with the state of the previous one and without losing packets.

        Raises P4Error, and ControlError if an entry does not fit the program.
        """
        assert self.service is not None
        engine = self._loader(device_config)
        config = p4r.ForwardingPipelineConfig(
            p4info=p4info(engine.program), p4_device_config=device_config
        )
        self.service.reload(engine, config)

    def close(self) -> None:
        """Stop packets and P4Runtime and close the ports."""
        if self.metrics is not None:
            self.metrics.close()
        if self._plane is not None:
            self._plane.interrupt()
            log_drops(self._plane.statistics())
        if self._links is not None:
            self._links.close()
        if self._thrift is not None:
            self._thrift.close()
        if self.server is not None:
            self.server.close()
        elif self.service is not None:
            self.service.close()
        if self._plane is not None:
            self._plane.close()
        if self._notifications is not None:
            self._notifications.close()
        if self._capture is not None:
            self._capture.close()
        for packet_socket in self._sockets.values():
            packet_socket.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def log_drops(statistics: EngineStatistics) -> None:
    """Log the packets that the switch dropped because of errors in the program."""
    dropped = statistics.extra.get("over_budget")
    if dropped:
        log.warning(
            "over_budget: %d packets dropped (they and their copies exceeded --packet-budget)",
            dropped,
        )


def _make_plane(
    loader: Loader, ports: dict[int, socket.socket], on_frames: FrameSink, on_digests: DigestSink
) -> Plane:
    cpu_port = loader.options.cpu_port
    if loader.executor != "native":
        return PythonPlane(ports, cpu_port, on_frames, on_digests)
    from p4switch.device.native_plane import NativePlane

    return NativePlane(ports, cpu_port, on_frames, on_digests, loader.options.receive_ring)


def _on_link(service: P4RuntimeService, states: InterfaceService) -> Callable[[int, bool], None]:
    """Return a function that informs selectors and clients of a port's link."""

    def changed(port: int, up: bool) -> None:
        service.port_changed(port, up)
        states.port_changed(port, up)

    return changed


def _check_ports(ports: Sequence[PortName], cpu_port: int | None) -> None:
    seen: dict[int | str, PortName] = {}
    for port in ports:
        if port.number == cpu_port:
            raise PortError(f"port {port.number} is the CPU port: it has no interface")
        for key in (port.number, port.interface):
            if key in seen:
                raise PortError(
                    f"ports {seen[key].number}@{seen[key].interface} and "
                    f"{port.number}@{port.interface}: a port and an interface belong together once"
                )
            seen[key] = port


def _open(port: PortName) -> socket.socket:
    try:
        return open_packet_socket(port.interface)
    except InterfaceError as error:
        raise PortError(f"port {port.number}: {error.strerror}") from error
