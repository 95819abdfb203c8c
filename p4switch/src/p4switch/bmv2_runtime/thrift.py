"""The run-time interface over Thrift: its server, and a client.

The definitions are read from runtime.thrift when they are needed (thriftpy2, the extra `thrift`);
no code is generated.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from p4switch.bmv2_runtime.records import CODES, Fault, Record
from p4switch.bmv2_runtime.runtime import Runtime

DEFINITIONS = Path(__file__).with_name("runtime.thrift")
SERVICES = {
    "standard": "Standard",
    "simple_pre": "SimplePre",
    "simple_pre_lag": "SimplePreLAG",
    "simple_switch": "SimpleSwitch",
}
"""Services by the names that clients put before a call."""
DEFAULT_PORT = 9090
CLIENT_SECONDS = 10.0

log = logging.getLogger(__name__)


class ThriftError(OSError):
    """The server cannot listen, the client cannot connect, or thriftpy2 is not installed."""


@cache
def definitions() -> ModuleType:
    """Return the interface's structs, exceptions and services. Raises ThriftError."""
    try:
        import thriftpy2
    except ModuleNotFoundError as error:
        raise ThriftError("Thrift needs thriftpy2: pip install 'p4switch[thrift]'") from error
    loaded: ModuleType = thriftpy2.load(str(DEFINITIONS), module_name="p4switch_runtime_thrift")
    return loaded


def installed() -> bool:
    """Return whether Thrift can be served."""
    try:
        definitions()
    except ThriftError:
        return False
    return True


class _Handler:
    """A service: its calls go to the runtime, whose values become Thrift's."""

    def __init__(self, runtime: Runtime, service: str) -> None:
        self._runtime = runtime
        self._service = service

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return _thrift_value(self._runtime.call(self._service, method, arguments))
            except Fault as fault:
                log.info("Thrift: %s is refused: %s", method, fault)
                results = _results(self._service, method)
                if set(results) <= {0}:
                    return _refusal(results.get(0))
                raise getattr(definitions(), fault.kind)(code=int(fault.code)) from fault

        return call


def _results(service: str, method: str) -> dict[int, tuple[Any, ...]]:
    """Return the fields of a call's result: 0 is what it returns, others are its exceptions."""
    kind = getattr(definitions(), SERVICES[service])
    found: dict[int, tuple[Any, ...]] = getattr(kind, f"{method}_result").thrift_spec
    return found


def _refusal(field: tuple[Any, ...] | None) -> Any:
    """Return what says that a call without exceptions was refused, as far as there is a way."""
    from thriftpy2.thrift import TType

    if field is None:
        return None
    return {TType.I32: -1, TType.I64: -1, TType.STRING: ""}.get(field[0], b"")


class ThriftServer:
    """A server at a TCP port of an address, until closed; a thread for each client.

    Raises ThriftError.
    """

    def __init__(self, runtime: Runtime, port: int, host: str = "127.0.0.1") -> None:
        services = definitions()
        from thriftpy2.protocol import TBinaryProtocolFactory
        from thriftpy2.thrift import TMultiplexedProcessor, TProcessor
        from thriftpy2.transport import TBufferedTransportFactory

        self._processor = TMultiplexedProcessor()
        for name, kind in SERVICES.items():
            handler = _Handler(runtime, name)
            self._processor.register_processor(name, TProcessor(getattr(services, kind), handler))
        self._transports = TBufferedTransportFactory()
        self._protocols = TBinaryProtocolFactory()
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise ThriftError(
                f"cannot listen on {host}:{port} for Thrift: {error.strerror}; choose another "
                "--thrift-port"
            ) from error
        self.port = int(self._listener.getsockname()[1])
        runtime.thrift_port = self.port
        self._clients: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="thrift", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server and its clients' connections."""
        for each in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.add(client)
            threading.Thread(
                target=self._serve, args=(client,), name="thrift client", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        from thriftpy2.thrift import TException
        from thriftpy2.transport import TSocket

        endpoint = TSocket(sock=client)
        transport = self._transports.get_transport(endpoint)
        protocol = self._protocols.get_protocol(transport)
        try:
            while True:
                self._processor.process(protocol, protocol)
        except (TException, OSError, EOFError):
            pass  # The client has gone, or sent what is no Thrift.
        except Exception:
            log.exception("a call over Thrift failed")
        finally:
            self._clients.discard(client)
            client.close()


def connect(port: int, host: str, seconds: float | None = None) -> Any:
    """Return an open transport to a Thrift server. Raises ThriftError.

    `seconds`: timeout of each answer; None: none.
    """
    definitions()
    from thriftpy2.transport import TBufferedTransport, TSocket, TTransportException

    milliseconds = None if seconds is None else seconds * 1000
    transport = TBufferedTransport(TSocket(host, port, socket_timeout=milliseconds))
    try:
        transport.open()
    except TTransportException as error:
        raise ThriftError(
            f"no Thrift server answers at {host}:{port}: is a switch running with "
            f"--thrift-port {port}?"
        ) from error
    return transport


class ThriftClient:
    """A connection to a switch's Thrift server. Raises ThriftError."""

    def __init__(self, port: int, host: str = "localhost") -> None:
        services = definitions()
        from thriftpy2.protocol import TBinaryProtocolFactory, TMultiplexedProtocolFactory
        from thriftpy2.thrift import TClient

        self._transport = connect(port, host, CLIENT_SECONDS)
        self._clients = {}
        for name, kind in SERVICES.items():
            factory = TMultiplexedProtocolFactory(TBinaryProtocolFactory(), name)
            self._clients[name] = TClient(
                getattr(services, kind), factory.get_protocol(self._transport)
            )

    def call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method. Raises Fault, and ThriftError if the connection ends."""
        from thriftpy2.thrift import TException

        given = [_thrift_value(each) for each in arguments]
        try:
            return _record(getattr(self._clients[service], method)(*given))
        except TException as error:
            code = getattr(error, "code", None)
            if code is None:
                raise ThriftError(f"the Thrift server's connection failed: {error}") from error
            kind = type(error).__name__
            raise Fault(kind, CODES[kind](code)) from error

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


def _thrift_value(value: Any) -> Any:
    if isinstance(value, Record):
        fields = {k: _thrift_value(v) for k, v in vars(value).items() if k != "kind"}
        return getattr(definitions(), value.kind)(**fields)
    if isinstance(value, list | tuple):
        return [_thrift_value(each) for each in value]
    return value


def _record(value: Any) -> Any:
    if hasattr(value, "thrift_spec"):
        fields = {k: _record(v) for k, v in vars(value).items()}
        return Record(type(value).__name__, **fields)
    if isinstance(value, list):
        return [_record(each) for each in value]
    return value
