"""The `p4switch` command: run a switch, compile a program, run packet tests."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from p4switch.backends.reference.trace import Tracer
    from p4switch.device.loading import Loader
    from p4switch.p4runtime.tls import Tls
    from p4switch.stf import EngineFactory
    from p4switch.targets.v1model.engine import EngineOptions

app = typer.Typer(
    help="A P4_16 switch: v1model programs in, packets and P4Runtime out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DEFAULT_DROP_PORT = 511
MOST_PORT = 511
"""Of bit<9>."""
MOST_DEVICE_ID = (1 << 64) - 1
MOST_SEND_BUFFER = 1 << 30
DEFAULT_SEND_BUFFER = 1 << 18
DEFAULT_PACKET_BUDGET = 1 << 17
"""As in `EngineOptions`, which is imported late."""
LARGEST_BUDGET = (1 << 32) - 1
LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,
}
"""BMv2's names."""

Includes = Annotated[
    list[Path] | None, typer.Option("-I", help="Folder to look for #include files in.")
]
Defines = Annotated[
    list[str] | None, typer.Option("-D", help="NAME or NAME=VALUE to define for #if and macros.")
]
Executor = Annotated[
    str | None,
    typer.Option(
        help="`native` (C, needs a compiler) or `interpreter`; default: native if it can."
    ),
]


Externs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.py",
        help="Externs of the program's own, in Python (docs/externs.md). Runs the interpreter.",
    ),
]

TraceForm = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="text|json",
        help="Say what happens to each packet, as text or as a line of JSON. Packets then go "
        "through the interpreter, one by one.",
    ),
]
TraceFile = Annotated[
    Path | None, typer.Option(help="Where to write the trace; default: standard output.")
]
TracePorts = Annotated[
    list[int] | None,
    typer.Option("--trace-port", min=0, max=MOST_PORT, help="Only packets that came in here."),
]
TraceTables = Annotated[
    list[str] | None,
    typer.Option("--trace-table", help="Only packets that were looked up in this table."),
]
TraceHeaders = Annotated[
    list[str] | None,
    typer.Option("--trace-header", help="Only packets with this header, such as hdr.ipv4."),
]


def main() -> None:
    """Run the command line."""
    # gRPC's own log lines would come before the errors that say what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # BMv2's target options stand behind a `--`; here they are options like any other.
    arguments = [argument for argument in sys.argv[1:] if argument != "--"]
    app(args=arguments, prog_name="p4switch")


def fail(message: str) -> NoReturn:
    """End the program with an error."""
    typer.echo(message, err=True)
    raise typer.Exit(1)


def parse_defines(texts: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping; a bare NAME is defined as 1, as compilers do."""
    pairs = (text.partition("=") for text in texts or [])
    return {name: value if equals else "1" for name, equals, value in pairs}


@app.command()
def run(
    program: Annotated[
        Path | None, typer.Argument(help="P4 source, or what `p4switch compile -o` wrote.")
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
        typer.Option(help="Where to speak P4Runtime: unix:PATH, or e.g. 0.0.0.0:9559; else not."),
    ] = None,
    grpc_server_ssl: Annotated[
        bool, typer.Option("--grpc-server-ssl", help="Speak P4Runtime over TLS.")
    ] = False,
    grpc_server_cert: Annotated[
        Path | None, typer.Option(help="With TLS: the switch's certificate (PEM).")
    ] = None,
    grpc_server_key: Annotated[
        Path | None, typer.Option(help="The key of that certificate.")
    ] = None,
    grpc_server_cacert: Annotated[
        Path | None, typer.Option(help="Whose certificates of clients are accepted (PEM).")
    ] = None,
    grpc_server_with_client_auth: Annotated[
        bool,
        typer.Option("--grpc-server-with-client-auth", help="Clients must have a certificate."),
    ] = False,
    cpu_port: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_PORT, help="Port number of packet-in and packet-out."),
    ] = None,
    drop_port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port number that drops packets.")
    ] = DEFAULT_DROP_PORT,
    priority_queues: Annotated[
        int, typer.Option(min=1, max=8, help="Queues of each egress port; the highest goes first.")
    ] = 8,
    send_buffer: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_SEND_BUFFER, help="Bytes that the kernel may hold for a port."
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
    defines: Defines = None,
    includes: Includes = None,
    executor: Executor = None,
    externs: Externs = None,
    pcap: Annotated[
        Path | None, typer.Option(help="Folder for a capture file of each port and direction.")
    ] = None,
    metrics_addr: Annotated[
        str | None,
        typer.Option(help="Where to serve Prometheus metrics (/metrics), e.g. 127.0.0.1:9101."),
    ] = None,
    use_files: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Ports are files: `-i 1@NAME` reads NAME_in.pcap and writes NAME_out.pcap. "
            "Packets go through after so many seconds, and the switch ends if it has no "
            "--grpc-server-addr.",
        ),
    ] = None,
    entries: Annotated[
        Path | None,
        typer.Option(help="With --use-files: table entries and so on to begin with, in STF."),
    ] = None,
    log_level: Annotated[str, typer.Option(help=", ".join(LEVELS))] = "info",
    log_file: Annotated[Path | None, typer.Option(help="Where to log; default: stderr.")] = None,
    log_console: Annotated[
        bool, typer.Option("--log-console", help="Log to stderr (the default).")
    ] = False,
    p4info_out: Annotated[
        Path | None, typer.Option(help="Write the program's P4Info here (protobuf text).")
    ] = None,
    trace: TraceForm = None,
    trace_file: TraceFile = None,
    trace_ports: TracePorts = None,
    trace_tables: TraceTables = None,
    trace_headers: TraceHeaders = None,
    thrift_port: Annotated[
        int | None, typer.Option(help="Ignored: there is no Thrift, only P4Runtime.")
    ] = None,
) -> None:
    """Run a switch on network interfaces until SIGTERM or SIGINT."""
    _start_logging(log_level, log_file if not log_console else None)
    if program is None and not no_p4:
        fail("name a P4 program, or start with --no-p4 and let a controller push one")
    if program is not None and no_p4:
        fail(f"{program} and --no-p4: give one of the two")
    if program is None and grpc_server_addr is None:
        fail("--no-p4 needs --grpc-server-addr: the program comes over P4Runtime")
    if entries is not None and (use_files is None or program is None):
        fail("--entries needs --use-files and a program; else a controller writes entries")
    if use_files is not None and not isfinite(use_files):
        fail(f"--use-files {use_files}: expected seconds, 0 or more")
    if use_files is not None and pcap is not None:
        fail("--pcap and --use-files: the files are captures already, give one of the two")
    tracer = _tracer(
        trace, trace_file, log_level, executor, trace_ports, trace_tables, trace_headers
    )
    if thrift_port is not None:
        logging.getLogger("p4switch").info("--thrift-port is ignored: p4switch has no Thrift")

    from p4switch.backends.reference.python_externs import ExternError
    from p4switch.device.device import Device, PortError, PortName
    from p4switch.p4runtime.server import AddressError
    from p4switch.p4runtime.tls import TlsError
    from p4switch.packet_io.pcap import PcapError
    from p4switch.packet_io.private_files import UnsafePathError
    from p4switch.position import P4Error
    from p4switch.stf import StfError
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
        config = _read_program(program, includes, defines) if program is not None else None
        if config is not None and trace_tables:
            _check_tables(config, trace_tables)
        if p4info_out is not None and config is not None:
            _write_p4info(config, p4info_out)
        # Whoever finds the switch answering may end it at once.
        wait_for_end = _note_signals()
        options = EngineOptions(
            drop_port=drop_port,
            cpu_port=cpu_port,
            priority_queues=priority_queues,
            send_buffer=send_buffer,
            packet_budget=packet_budget,
            externs=externs,
        )
        loader = _loader(executor, tracer, options)
        with Device(
            ports,
            loader if entries is None else _with_entries(loader, entries),
            device_id=device_id,
            address=grpc_server_addr,
            device_config=config,
            capture_folder=pcap,
            files_after=use_files,
            metrics_address=metrics_addr,
            tls=tls,
        ) as device:
            served = f", P4Runtime on {grpc_server_addr}" if device.server is not None else ""
            logging.getLogger("p4switch").info(
                "device %d runs, ports %s%s",
                device_id,
                " ".join(f"{p.number}@{p.interface}" for p in ports) or "none",
                served,
            )
            wait_for_end(device.files_done if grpc_server_addr is None else None)
    except (
        P4Error,
        PortError,
        AddressError,
        TlsError,
        UnsafePathError,
        PcapError,
        StfError,
        ExternError,
    ) as error:
        fail(str(error))
    except OSError as error:
        # Its capture files, and what it keeps of compiled programs.
        fail(str(error))


def _tls(
    ssl: bool, certificate: Path | None, key: Path | None, authority: Path | None, ask: bool
) -> Tls | None:
    """Return the options of TLS, or None without; an error where they do not go together."""
    from p4switch.p4runtime.tls import Tls

    if not ssl:
        if certificate or key or authority or ask:
            fail("--grpc-server-cert, -key, -cacert and -with-client-auth need --grpc-server-ssl")
        return None
    if certificate is None or key is None:
        fail("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    return Tls(certificate, key, authority, ask)


def _with_entries(loader: Loader, entries: Path) -> Loader:
    """Return a loader whose engines have the entries of an STF file. Raises StfError."""
    from p4switch.device.loading import LoaderWithEntries

    return LoaderWithEntries(loader, entries)


def _note_signals() -> Callable[..., None]:
    """From now on SIGTERM and SIGINT end no more than the wait that is returned.

    It takes another event that ends it, and raises typer.Exit if a thread of the switch dies.
    """
    stop = threading.Event()
    died: list[threading.ExceptHookArgs] = []

    def thread_died(what: threading.ExceptHookArgs) -> None:
        died.append(what)
        stop.set()

    def wait(other: threading.Event | None = None) -> None:
        if other is None:
            stop.wait()
        else:
            while not stop.is_set() and not other.wait(0.05):
                pass
        if died:
            name = died[0].thread.name if died[0].thread is not None else "a thread"
            logging.getLogger("p4switch").critical(
                "%s died, the switch ends", name, exc_info=died[0].exc_value
            )
            raise typer.Exit(1)

    threading.excepthook = thread_died
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return wait


def _start_logging(level: str, file: Path | None) -> None:
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


def _chosen_executor(executor: str | None) -> str:
    from p4switch.device.loading import EXECUTORS, default_executor
    from p4switch.packet_io.compile import cache_folder

    if executor is None:
        executor, reason = default_executor()
        if reason:
            logging.getLogger("p4switch").warning("%s; running the interpreter", reason)
    elif executor not in EXECUTORS:
        fail(f"--executor {executor}: expected one of {', '.join(EXECUTORS)}")
    if executor == "native":
        # A cache that cannot be trusted is an error now, not at the first push.
        cache_folder()
    return executor


def _loader(executor: str | None, tracer: Tracer | None, options: EngineOptions) -> Loader:
    from p4switch.device.loading import Loader

    if options.externs is not None and executor == "native":
        fail("externs in Python run in the interpreter: leave --executor native out")
    if tracer is not None or options.externs is not None:
        return Loader("interpreter", options, tracer)
    return Loader(_chosen_executor(executor), options)


def _tracer(
    form: str | None,
    file: Path | None,
    log_level: str,
    executor: str | None,
    ports: list[int] | None,
    tables: list[str] | None,
    headers: list[str] | None,
) -> Tracer | None:
    """Return the tracer that `--trace` asks for.

    `--log-level trace` asks for text in the log, as BMv2's does.
    """
    if form is None and log_level != "trace":
        if file is not None or ports or tables or headers:
            fail("--trace-file, -port, -table and -header need --trace text or --trace json")
        return None
    if executor == "native":
        fail("packets are traced by the interpreter: leave --executor native out")
    from p4switch.backends.reference.trace import FORMS, TraceFilter, Tracer, sink_of

    if form is not None and form not in FORMS:
        fail(f"--trace {form}: expected one of {', '.join(FORMS)}")
    write: Callable[[str], None] = logging.getLogger("p4switch.trace").debug
    if form is not None and file is None:
        write = _print_line
    elif file is not None:
        write = _line_writer(file)
    chosen = TraceFilter(frozenset(ports or ()), frozenset(tables or ()), frozenset(headers or ()))
    logging.getLogger("p4switch").info("packets are traced: they go through the interpreter")
    return Tracer(sink_of(form or "text", write), chosen)


def _print_line(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


def _line_writer(path: Path) -> Callable[[str], None]:
    """Return what appends lines to a file, each at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        fail(f"--trace-file {path}: cannot be written: {error.strerror}")

    def write(text: str) -> None:
        file.write(text + "\n")

    return write


def _check_tables(config: bytes, names: list[str]) -> None:
    from p4switch.device.loading import checked_program

    known = [table.name for table in checked_program(config).tables]
    for name in names:
        if not any(table == name or table.endswith(f".{name}") for table in known):
            fail(f"--trace-table {name}: no such table; there are {', '.join(known) or 'none'}")


def _read_program(path: Path, includes: list[Path] | None, defines: list[str] | None) -> bytes:
    from p4switch.device.loading import read_program

    return read_program(path, includes or [], parse_defines(defines))


def _write_p4info(config: bytes, path: Path) -> None:
    from p4switch.frontend.program import compile_program
    from p4switch.frontend.syntax.parser import parse_text
    from p4switch.p4runtime.p4info import p4info_text

    _write(path, p4info_text(compile_program(parse_text(config.decode()))).encode())


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")


@app.command("compile")
def compile_command(
    program: Annotated[Path, typer.Argument(help="P4 source.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write a self-contained program for `run` and pushes."),
    ] = None,
    p4runtime_files: Annotated[
        Path | None, typer.Option(help="Write the P4Info here (protobuf text).")
    ] = None,
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Check a P4 program; write what a controller needs to push it."""
    from p4switch.frontend.program import compile_program
    from p4switch.frontend.syntax.parser import parse_text
    from p4switch.midend.portability import bmv2_limits
    from p4switch.p4runtime.p4info import p4info_text
    from p4switch.position import P4Error

    try:
        config = _read_program(program, includes, defines)
        source = parse_text(config.decode())
        checked = compile_program(source)
        for position, message in (*source.warnings, *bmv2_limits(checked)):
            typer.echo(f"{position}: warning: {message}", err=True)
        information = p4info_text(checked)
    except P4Error as error:
        fail(str(error))
    for path, content in ((output, config), (p4runtime_files, information.encode())):
        if path is not None:
            _write(path, content)


@app.command()
def stf(
    program: Annotated[Path, typer.Argument(help="P4 source.")],
    scripts: Annotated[list[Path], typer.Argument(help="Packets and expectations, in STF.")],
    executor: Executor = None,
    coverage: Annotated[
        Path | None,
        typer.Option(
            help="Write a page (HTML) that says which statements, branches, parser transitions "
            "and table entries the tests reached. Runs the interpreter."
        ),
    ] = None,
    externs: Externs = None,
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Run STF packet tests (the format of p4c's tests) against a program."""
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.backends.reference.python_externs import ExternError
    from p4switch.frontend.program import compile_file
    from p4switch.packet_io.private_files import UnsafePathError
    from p4switch.position import P4Error
    from p4switch.stf import StfError, engine_factory, run_stf
    from p4switch.targets.v1model.engine import EngineOptions

    if externs is not None and executor == "native":
        fail("externs in Python run in the interpreter: leave --executor native out")
    if coverage is not None and executor == "native":
        fail("coverage is counted by the interpreter: leave --executor native out")
    failures = []
    try:
        checked = compile_file(
            program, include_paths=includes or [], defines=parse_defines(defines)
        )
        options = EngineOptions(externs=externs)
        factory: EngineFactory
        if coverage is not None:
            factory, write_page = _covering(coverage, program, options)
        elif externs is not None:
            factory = lambda made: Interpreter(made, options)  # noqa: E731
        else:
            factory = engine_factory(_chosen_executor(executor))
        for script in scripts:
            found = run_stf(factory, checked, script)
            failures += found
            if not found:
                typer.echo(f"{script}: passed")
        if coverage is not None:
            write_page()
    except (P4Error, StfError, UnsafePathError, ExternError) as error:
        fail(str(error))
    if failures:
        fail("\n".join(failures))


def _covering(
    path: Path, program: Path, options: EngineOptions
) -> tuple[EngineFactory, Callable[[], None]]:
    """Return what makes engines that count, and what writes the page and prints a summary."""
    from p4switch.backends.reference.coverage import Coverage
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.cli.coverage_page import page, summary

    counted = Coverage()

    def write_page() -> None:
        _write(path, page(f"Coverage of {program.name}", counted).encode())
        for line in summary(counted):
            typer.echo(line)

    return lambda checked: Interpreter(checked, options, coverage=counted), write_page


@app.command("cli")
def cli_command(
    commands: Annotated[
        list[str] | None,
        typer.Argument(help="Commands, each in quotes; else they are read from standard input."),
    ] = None,
    address: Annotated[
        str, typer.Option("--grpc-server-addr", help="Where the switch speaks P4Runtime.")
    ] = "127.0.0.1:9559",
    device_id: Annotated[
        int, typer.Option(min=0, max=MOST_DEVICE_ID, help="P4Runtime device id.")
    ] = 1,
    election_id: Annotated[
        int, typer.Option(min=1, help="To become primary with, at the first write.")
    ] = 1,
    cacert: Annotated[
        Path | None, typer.Option(help="Speak TLS, with a switch that this authority knows (PEM).")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="With TLS: a certificate of one's own (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The key of that certificate.")] = None,
) -> None:
    """Talk to a running switch in simple_switch_CLI's commands (`help` lists them)."""
    from p4switch.cli.client import Client, ClientError
    from p4switch.cli.runtime_cli import RuntimeCli, session
    from p4switch.p4runtime.tls import TlsError, channel_credentials

    if ((cert or key) and cacert is None) or (cert is None) != (key is None):
        fail("TLS: --cert and --key go together, and with --cacert")
    try:
        tls = None if cacert is None else channel_credentials(cacert, cert, key)
        client = Client(address, device_id, election_id, tls)
    except (ClientError, TlsError) as error:
        fail(str(error))

    def complain(text: str) -> None:
        typer.echo(text, err=True)

    try:
        lines = commands or _prompted(sys.stdin.isatty())
        if not session(RuntimeCli(client, _print_line), lines, complain):
            raise typer.Exit(1)
    finally:
        client.close()


def _prompted(interactive: bool) -> Iterator[str]:
    """Yield lines of standard input; a prompt before each for people."""
    while True:
        if interactive:
            typer.echo("RuntimeCmd: ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        yield line


@app.command()
def explain(
    program: Annotated[Path, typer.Argument(help="P4 source.")],
    packet: Annotated[str, typer.Option(help="The frame, in hexadecimal digits.")],
    port: Annotated[int, typer.Option(min=0, max=MOST_PORT, help="Port at which it comes in.")] = 0,
    entries: Annotated[
        Path | None,
        typer.Option(
            help="Table entries, clone sessions and so on, in STF: `add TABLE KEY:VALUE "
            "ACTION(NAME:VALUE)`, `setdefault`, `mirroring_add`, ... (packets in it are left out)."
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="text|json")] = "text",
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Say what a program does with one packet, step by step."""
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.backends.reference.trace import Tracer, sink_of
    from p4switch.frontend.program import compile_file
    from p4switch.position import P4Error
    from p4switch.stf import StfError, prepare

    try:
        frame = bytes.fromhex(packet.removeprefix("0x"))
    except ValueError as error:
        fail(f"--packet: expected pairs of hexadecimal digits: {error}")
    try:
        sink = sink_of(form, typer.echo)
    except ValueError as error:
        fail(f"--format: {error}")
    try:
        compiled = compile_file(
            program, include_paths=includes or [], defines=parse_defines(defines)
        )
        engine = Interpreter(compiled, None, Tracer(sink))
        if entries is not None:
            prepare(engine, entries)
    except (P4Error, StfError) as error:
        fail(str(error))
    engine.process([(port, frame)])


@app.command()
def demo(
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Use no interfaces, also as root.")
    ] = False,
    form: Annotated[str, typer.Option("--format", metavar="text|json")] = "text",
    source: Annotated[
        bool, typer.Option("--source", help="Print the router's P4 program instead.")
    ] = False,
) -> None:
    """Send a few packets through a router and say what happens to each, step by step.

    As root over veth pairs of its own, else in this process.
    """
    from p4switch.backends.reference.trace import PacketTrace, sink_of
    from p4switch.cli import demo as demonstration
    from p4switch.device.device import PortError
    from p4switch.packet_io.sockets import InterfaceError

    if source:
        typer.echo(demonstration.ROUTER.read_text(encoding="utf-8"), nl=False)
        return
    try:
        sink = sink_of(form, typer.echo)
    except ValueError as error:
        fail(f"--format: {error}")

    def show(step: demonstration.Step, trace: PacketTrace) -> None:
        if form == "text":
            typer.echo(f"\n# {step.title}")
        sink(trace)

    reason = "--in-process" if in_process else demonstration.why_in_process()
    where = "on veth pairs" if reason is None else f"in this process ({reason})"
    typer.echo(f"{demonstration.ROUTER}: a router of three ports, {where}", err=True)
    try:
        if reason is None:
            demonstration.run_on_veth(show)
        else:
            demonstration.run_in_process(show)
    except (demonstration.DemoError, PortError, InterfaceError) as error:
        fail(str(error))


if __name__ == "__main__":
    main()
