"""`p4switch run`: a switch on network interfaces.

Annotations are not postponed here: to evaluate those of all options takes as long as to parse them.
"""

import contextlib
import gc
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p4switch.cli.executors import chosen_executor, executor_of_externs
from p4switch.cli.options import (
    DEFAULT_ADDRESS,
    MOST_DEVICE_ID,
    MOST_PORT,
    Defines,
    Executor,
    Externs,
    Includes,
    P4InfoFile,
    fail,
    read_bundle,
    write_file,
)
from p4switch.cli.tracing import check_tables, make_tracer
from p4switch.packet_io.signals import RELOAD, end_signals

if TYPE_CHECKING:
    from p4switch.backends.reference.trace import Tracer
    from p4switch.device.device import Device
    from p4switch.device.loading import Loader
    from p4switch.p4runtime.tls import Tls
    from p4switch.targets.v1model.engine import EngineOptions

DEFAULT_DROP_PORT = 511
MOST_SEND_BUFFER = 1 << 30
DEFAULT_SEND_BUFFER = 1 << 18
DEFAULT_PACKET_BUDGET = 1 << 17
"""Defaults as in `EngineOptions`, which is imported late."""
LARGEST_BUDGET = (1 << 32) - 1
MOST_PACKET_THREADS = 16
LARGEST_RING = 1 << 16

COLLECTOR = (10_000, 20, 50)
"""Thresholds of Python's garbage collector: a table's entries are many objects without cycles, and
a tenth of the time to insert 100,000 went into looking for garbage among them."""

EVENT_SECONDS = 0.05
"""Polling interval in seconds for the end of capture files."""

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,
}
"""Level names of BMv2."""

TraceForm = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="text|json|pcapng",
        help="Show what happens to each packet, as text, as a line of JSON, or as a capture with "
        "a comment why it was dropped. The interpreter then processes packets one by one.",
    ),
]
TraceFile = Annotated[
    Path | None, typer.Option(help="Where to write the trace; default: standard output.")
]
TracePorts = Annotated[
    list[int] | None,
    typer.Option("--trace-port", min=0, max=MOST_PORT, help="Only packets received at this port."),
]
TraceTables = Annotated[
    list[str] | None,
    typer.Option("--trace-table", help="Only packets looked up in this table."),
]
TraceHeaders = Annotated[
    list[str] | None,
    typer.Option("--trace-header", help="Only packets with this header, such as hdr.ipv4."),
]
TraceFields = Annotated[
    list[str] | None,
    typer.Option(
        "--trace-field",
        metavar="HEADER.FIELD=NUMBER",
        help="Only packets received with this field value, such as hdr.ipv4.ttl=64.",
    ),
]


def run(
    program: Annotated[
        Path | None,
        typer.Argument(help="P4 source, BMv2 JSON, or the output of `p4switch compile -o`."),
    ] = None,
    interfaces: Annotated[
        list[str] | None, typer.Option("-i", "--interface", help="PORT@INTERFACE, for each port.")
    ] = None,
    no_p4: Annotated[
        bool, typer.Option("--no-p4", help="Start without a program; a controller pushes one.")
    ] = False,
    device_id: Annotated[
        int, typer.Option(min=0, max=MOST_DEVICE_ID, help="P4Runtime device id.")
    ] = 1,
    grpc_server_addr: Annotated[
        str | None,
        typer.Option(
            help="Address of the P4Runtime server: unix:PATH, or e.g. 0.0.0.0:9559. Default: "
            f"{DEFAULT_ADDRESS} with --no-p4, else none."
        ),
    ] = None,
    grpc_server_ssl: Annotated[
        bool, typer.Option("--grpc-server-ssl", help="Serve P4Runtime over TLS.")
    ] = False,
    grpc_server_cert: Annotated[
        Path | None, typer.Option(help="With TLS: the switch's certificate (PEM).")
    ] = None,
    grpc_server_key: Annotated[
        Path | None, typer.Option(help="With TLS: the private key of that certificate (PEM).")
    ] = None,
    grpc_server_cacert: Annotated[
        Path | None, typer.Option(help="With TLS: the authority of clients' certificates (PEM).")
    ] = None,
    grpc_server_with_client_auth: Annotated[
        bool,
        typer.Option(
            "--grpc-server-with-client-auth", help="With TLS: require certificates of clients."
        ),
    ] = False,
    cpu_port: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_PORT, help="Port number of packet-in and packet-out."),
    ] = None,
    drop_port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port number that drops packets.")
    ] = DEFAULT_DROP_PORT,
    priority_queues: Annotated[
        int,
        typer.Option(min=1, max=8, help="Queues of each egress port; the highest is served first."),
    ] = 8,
    send_buffer: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_SEND_BUFFER, help="Bytes that the kernel may queue for a port."
        ),
    ] = DEFAULT_SEND_BUFFER,
    packet_budget: Annotated[
        int,
        typer.Option(
            min=1,
            max=LARGEST_BUDGET,
            help="Steps (passes of a control, copies, iterations of loops) that a packet and all "
            "that is made of it may take; it is dropped and counted then.",
        ),
    ] = DEFAULT_PACKET_BUDGET,
    packet_threads: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_PACKET_THREADS,
            help="Threads that receive, each from ports of its own, and send (native executor).",
        ),
    ] = 1,
    receive_ring: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LARGEST_RING,
            help="Frames that may wait at each port, 2 KiB of memory each; default: 64 to 1,024, "
            "in 8 MiB for all ports. 0: in the socket, from which system calls receive them "
            "(native executor).",
        ),
    ] = None,
    defines: Defines = None,
    includes: Includes = None,
    executor: Executor = None,
    externs: Externs = None,
    pcap: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|FILE.pcapng",
            help="Capture packets: in a file of each port and direction, or all in one file.",
        ),
    ] = None,
    metrics_addr: Annotated[
        str | None,
        typer.Option(help="Address of Prometheus metrics (/metrics), e.g. 127.0.0.1:9101."),
    ] = None,
    use_files: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Ports are files: `-i 1@NAME` reads NAME_in.pcap and writes NAME_out.pcap. "
            "Packets are replayed after SECONDS, and the switch ends if it has no "
            "--grpc-server-addr.",
        ),
    ] = None,
    entries: Annotated[
        Path | None,
        typer.Option(help="With --use-files: initial table entries and so on, in STF."),
    ] = None,
    log_level: Annotated[str, typer.Option("-L", "--log-level", help=", ".join(LEVELS))] = "info",
    log_file: Annotated[Path | None, typer.Option(help="Log file; default: stderr.")] = None,
    log_console: Annotated[
        bool, typer.Option("--log-console", help="Log to stderr (the default).")
    ] = False,
    p4info: P4InfoFile = None,
    p4info_out: Annotated[
        Path | None, typer.Option(help="Write the program's P4Info here (protobuf text).")
    ] = None,
    trace: TraceForm = None,
    trace_file: TraceFile = None,
    trace_ports: TracePorts = None,
    trace_tables: TraceTables = None,
    trace_headers: TraceHeaders = None,
    trace_fields: TraceFields = None,
    thrift_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Serve BMv2's Thrift services at this port, to this machine; needs thriftpy2.",
        ),
    ] = None,
    notifications_addr: Annotated[
        str | None, typer.Option(help="Publish digests as BMv2 does: ipc://PATH (nanomsg).")
    ] = None,
    nanolog: Annotated[
        str | None, typer.Option(help="Ignored: p4switch publishes no events; see --trace.")
    ] = None,
    log_flush: Annotated[
        bool, typer.Option("--log-flush", help="Ignored: the log is always flushed.")
    ] = False,
    dump_packet_data: Annotated[
        int | None, typer.Option(help="Ignored: --trace shows packets.")
    ] = None,
) -> None:
    """Run a switch on network interfaces until SIGTERM or SIGINT."""
    start_logging(log_level, log_file if not log_console else None)
    if program is None and not no_p4:
        fail("name a P4 program, or start with --no-p4 and let a controller push one")
    if program is not None and no_p4:
        fail(f"{program} and --no-p4: give one of the two")
    if program is None and grpc_server_addr is None:
        grpc_server_addr = DEFAULT_ADDRESS
    if entries is not None and (use_files is None or program is None):
        fail("--entries needs --use-files and a program; else a controller writes entries")
    if use_files is not None and not isfinite(use_files):
        fail(f"--use-files {use_files}: expected seconds, 0 or more")
    if use_files is not None and pcap is not None:
        fail("--pcap and --use-files: the files are captures already, give one of the two")
    if nanolog is not None or dump_packet_data is not None:
        logging.getLogger("p4switch").info(
            "--nanolog and --dump-packet-data are ignored: --trace shows what becomes of packets"
        )

    from p4switch.p4runtime.messages import import_messages

    import_messages()
    from p4switch.device.device import Device, PortName
    from p4switch.targets.v1model.engine import EngineOptions

    tls = _tls(
        grpc_server_ssl,
        grpc_server_cert,
        grpc_server_key,
        grpc_server_cacert,
        grpc_server_with_client_auth,
    )
    try:
        ports = [PortName.parse(text) for text in interfaces or []]
        tracer = make_tracer(
            trace,
            trace_file,
            log_level,
            executor,
            trace_ports,
            trace_tables,
            trace_headers,
            trace_fields,
            {port.number: port.interface for port in ports},
            # The clock of files begins with their first packet: always with the same times.
            start_ns=None if use_files is None else 0,
        )
        config = None
        if program is not None:
            config = read_bundle(program, includes, defines, p4info)
        if config is not None and trace_tables:
            check_tables(config, trace_tables)
        if p4info_out is not None and config is not None:
            _write_p4info(config, p4info_out)
        options = EngineOptions(
            drop_port=drop_port,
            cpu_port=cpu_port,
            priority_queues=priority_queues,
            send_buffer=send_buffer,
            packet_threads=packet_threads,
            receive_ring=receive_ring,
            packet_budget=packet_budget,
            externs=externs,
        )
        loader = make_loader(executor, tracer, options)
        with (
            # A client that sees the switch answer may end it immediately.
            noted_signals() as wait_for_end,
            Device(
                ports,
                loader if entries is None else _with_entries(loader, entries),
                device_id=device_id,
                address=grpc_server_addr,
                device_config=config,
                capture_path=pcap,
                files_after=use_files,
                metrics_address=metrics_addr,
                tls=tls,
                thrift_port=thrift_port,
                notifications_address=notifications_addr,
            ) as device,
        ):
            if not gc.isenabled():  # `main` has disabled it.
                gc.freeze()
                gc.set_threshold(*COLLECTOR)
                gc.enable()
            served = f", P4Runtime on {grpc_server_addr}" if device.server is not None else ""
            logging.getLogger("p4switch").info(
                "device %d runs, ports %s%s",
                device_id,
                " ".join(f"{p.number}@{p.interface}" for p in ports) or "none",
                served,
            )

            def reload() -> None:
                _reload(device, lambda: program and read_bundle(program, includes, defines, p4info))

            wait_for_end(device.files_done if grpc_server_addr is None else None, reload)
    except _errors() as error:
        fail(str(error))


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors that a user can correct; imported only when an error is raised."""
    from p4switch.device.device import PortError
    from p4switch.p4runtime.tls import TlsError
    from p4switch.packet_io.pcap import PcapError
    from p4switch.packet_io.private_files import UnsafePathError
    from p4switch.position import P4Error
    from p4switch.stf import StfError
    from p4switch.targets.v1model.engine import ExternError

    # OSError: of addresses, capture files and the cache of compiled programs.
    return P4Error, PortError, TlsError, UnsafePathError, PcapError, StfError, ExternError, OSError


def _tls(
    ssl: bool, certificate: Path | None, key: Path | None, authority: Path | None, ask: bool
) -> "Tls | None":
    """Return the TLS options; None without TLS; an error for inconsistent ones."""
    if not ssl:
        if certificate or key or authority or ask:
            fail("--grpc-server-cert, -key, -cacert and -with-client-auth need --grpc-server-ssl")
        return None
    from p4switch.p4runtime.tls import Tls

    if certificate is None or key is None:
        fail("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    return Tls(certificate, key, authority, ask)


def _with_entries(loader: "Loader", entries: Path) -> "Loader":
    """Return a loader whose engines start with the entries of an STF file. Raises StfError."""
    from p4switch.device.loading import LoaderWithEntries

    return LoaderWithEntries(loader, entries)


@contextlib.contextmanager
def noted_signals() -> Iterator[Callable[..., None]]:
    """Make SIGTERM and SIGINT only end the yielded wait while the block runs.

    The wait takes another event that ends it, and what to do at RELOAD; it raises typer.Exit if a
    thread of the switch dies.
    """
    died: list[threading.ExceptHookArgs] = []
    before = threading.excepthook
    with end_signals() as end:

        def thread_died(what: threading.ExceptHookArgs) -> None:
            died.append(what)
            os.write(end.write, b"d")

        def wait(
            other: threading.Event | None = None, reload: Callable[[], None] | None = None
        ) -> None:
            seconds = None if other is None else EVENT_SECONDS
            while True:
                if select.select([end.noted], (), (), seconds)[0]:
                    if died or set(os.read(end.noted, 256)) != {RELOAD}:
                        break
                    if reload is not None:
                        reload()
                elif other is not None and other.is_set():
                    break
            if died:
                name = died[0].thread.name if died[0].thread is not None else "a thread"
                logging.getLogger("p4switch").critical(
                    "%s died, the switch ends", name, exc_info=died[0].exc_value
                )
                raise typer.Exit(1)

        threading.excepthook = thread_died
        try:
            yield wait
        finally:
            threading.excepthook = before


def _reload(device: "Device", read: Callable[[], bytes | Path | None]) -> None:
    """Run a program anew, or log why not; the switch goes on."""
    from p4switch.targets.v1model.engine import ControlError

    log = logging.getLogger("p4switch")
    try:
        config = read()
        if not isinstance(config, bytes):
            log.error("nothing to read again: the switch was started without a program")
            return
        device.reload(config)
    except ControlError as error:
        log.error("the program was not read again, the switch goes on: %s", error)
    except _errors() as error:
        log.error("the program was not read again, the switch goes on: %s", error)


def start_logging(level: str, file: Path | None) -> None:
    """Log to a file or to standard error, at a level of `LEVELS` or above."""
    if level not in LEVELS:
        fail(f"--log-level {level}: expected one of {', '.join(LEVELS)}")
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler()
    else:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.FileHandler(file)
        except OSError as error:
            fail(f"--log-file {file}: cannot be written: {error.strerror}")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("p4switch")
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])


def make_loader(
    executor: str | None, tracer: "Tracer | None", options: "EngineOptions"
) -> "Loader":
    """Return a loader of the interpreter, if packets are traced or externs are in Python.

    For externs in C, return a loader of the native executor.
    """
    from p4switch.device.loading import Loader

    if options.externs is not None:
        executor = executor_of_externs(options.externs, executor)
        if tracer is not None and executor == "native":
            fail("packets are traced by the interpreter, which takes externs in Python")
    if tracer is not None:
        return Loader("interpreter", options, tracer)
    return Loader(chosen_executor(executor), options)


def _write_p4info(config: bytes, path: Path) -> None:
    from p4switch.device.loading import checked_program
    from p4switch.p4runtime.p4info import p4info_text

    write_file(path, p4info_text(checked_program(config)).encode())
