"""The command line: compiling, packet tests, starting and refusing to start."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import getdoc
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format
from typer.testing import CliRunner

from p4switch.backends.reference.trace import Tracer
from p4switch.cli import run_command
from p4switch.cli.main import COMMANDS, app, main
from p4switch.cli.options import parse_defines
from p4switch.cli.run_command import make_loader, noted_signals
from p4switch.cli.tracing import make_tracer
from p4switch.device.bundle import make_bundle
from p4switch.device.loading import Loader, default_executor
from p4switch.packet_io.sockets import open_packet_socket
from p4switch.programs import is_bundle
from p4switch.targets.v1model.engine import EngineOptions
from tests.support.machine import PATIENCE, until
from tests.support.paths import EVERYTHING_P4, PROGRAMS

ROUTER = PROGRAMS / "router.p4"
COMMAND = [sys.executable, "-m", "p4switch.cli.main"]


@pytest.fixture(autouse=True)
def _quiet_afterwards() -> Iterator[None]:
    """Take away the log handlers that a command in this process has set up."""
    yield
    logger = logging.getLogger("p4switch")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


def invoke(*arguments: str | Path) -> tuple[int, str]:
    """Run a command in this process: exit code, and all that it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_only_the_start_of_a_switch_does_without_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enabled = []

    @contextmanager
    def signals() -> Iterator[Callable[..., None]]:
        enabled.append(gc.isenabled())
        yield lambda *_: enabled.append(gc.isenabled())

    monkeypatch.setattr(run_command, "noted_signals", signals)
    monkeypatch.setattr(sys, "argv", ["p4switch", "run", str(ROUTER)])
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        gc.unfreeze()
    assert enabled == [False, True]
    assert gc.isenabled()


def test_compile_writes_a_bundle_and_p4info(tmp_path: Path) -> None:
    bundle, info = tmp_path / "out" / "r.p4bin", tmp_path / "info" / "r.txtpb"
    assert invoke("compile", ROUTER, "-o", bundle, "--p4runtime-files", info) == (0, "")
    assert is_bundle(bundle.read_bytes())
    assert text_format.Parse(info.read_text(), p4i.P4Info()).tables


@pytest.mark.slow
@pytest.mark.skipif(default_executor()[0] != "native", reason="needs a C compiler")
def test_compile_to_a_file_makes_the_native_code_that_switches_will_run(
    tmp_path: Path, cache: Path
) -> None:
    source = tmp_path / "r.p4"
    source.write_text(f"// Of this test alone.\nconst bit<8> OWN = 1;\n{ROUTER.read_text()}")
    assert invoke("compile", source) == (0, "")
    assert not list(cache.rglob("*.so"))
    assert invoke("compile", source, "-o", tmp_path / "r.p4bin") == (0, "")
    built = list(cache.rglob("*.so"))
    assert built
    Loader("native", EngineOptions())(make_bundle(source))
    assert list(cache.rglob("*.so")) == built


def test_compile_of_a_bundle_is_the_same_program(tmp_path: Path) -> None:
    first, second = tmp_path / "a.p4bin", tmp_path / "b.p4bin"
    invoke("compile", ROUTER, "-o", first)
    assert invoke("compile", first, "-o", second) == (0, "")
    assert first.read_bytes() == second.read_bytes()


def test_compile_warns_of_restrictions_that_it_does_not_understand(tmp_path: Path) -> None:
    source = tmp_path / "restricted.p4"
    table = "table routes {"
    assert table in ROUTER.read_text()
    source.write_text(ROUTER.read_text().replace(table, f'@entry_restriction("x == 1") {table}'))
    code, output = invoke("compile", source, "-o", tmp_path / "out")
    assert code == 0
    assert "warning: @entry_restriction of" in output
    assert "is not checked: line 1 of the constraint: nothing is called 'x'" in output


def test_errors_look_like_a_compilers(tmp_path: Path) -> None:
    source = tmp_path / "bad.p4"
    source.write_text("const bit<8> a = missing;\n")
    code, output = invoke("compile", source, "-o", tmp_path / "x")
    assert code == 1
    assert f"{source}:1:18: error:" in output
    assert "const bit<8> a = missing;\n                     ^" in output
    assert not (tmp_path / "x").exists()


def test_defines_and_include_folders(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "width.p4").write_text("const bit<WIDTH> a = 8w1;\n")
    source = tmp_path / "a.p4"
    source.write_text('#include "width.p4"\n#ifndef BARE\n#error no BARE\n#endif\n')
    command = ("compile", source, "-I", tmp_path / "inc", "-D", "BARE")
    code, output = invoke(*command, "-D", "WIDTH=4")
    assert (code, "width.p4:1:22: error" in output) == (1, True)
    code, output = invoke(*command, "-D", "WIDTH=8")
    assert "no package called 'main'" in output


def test_a_bare_define_is_1() -> None:
    assert parse_defines(["A", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}


def test_stf_passes_and_fails(tmp_path: Path) -> None:
    code, output = invoke("stf", ROUTER, ROUTER.with_suffix(".stf"), "--executor", "interpreter")
    assert (code, "passed" in output) == (0, True)
    script = tmp_path / "bad.stf"
    script.write_text("packet 1 00\nexpect 2 00\n")
    code, output = invoke("stf", ROUTER, script, "--executor", "interpreter")
    assert code == 1
    assert "expect" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--no-p4"),
        ((ROUTER, "--no-p4"), "one of the two"),
        ((ROUTER, "-i", "veth1"), "expected PORT@INTERFACE"),
        ((ROUTER, "-i", "511@veth1"), "0..510"),
        ((ROUTER, "-i", "5@veth1", "--cpu-port", "5"), "is the CPU port"),
        ((ROUTER, "-i", "5@veth1", "-i", "5@veth2"), "belong together once"),
        ((ROUTER, "-i", "5@veth1", "-i", "6@veth1"), "belong together once"),
        ((ROUTER, "--executor", "magic"), "native, interpreter"),
        ((ROUTER, "--grpc-server-cert", "x.pem"), "need --grpc-server-ssl"),
        ((ROUTER, "--grpc-server-ssl"), "needs --grpc-server-cert and --grpc-server-key"),
        ((ROUTER, "--log-level", "loud"), "trace, debug"),
        (("missing.p4",), "missing.p4"),
    ],
)
def test_bad_runs_end_with_1_and_say_why(arguments: tuple[str | Path, ...], message: str) -> None:
    code, output = invoke("run", *arguments)
    assert code == 1
    assert message in output


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A switch process; it must be ended inside the block or is killed."""
    process = subprocess.Popen(
        [*COMMAND, "run", *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(address: str) -> p4r_grpc.P4RuntimeStub:
    channel = grpc.insecure_channel(address)
    grpc.channel_ready_future(channel).result(PATIENCE)
    return p4r_grpc.P4RuntimeStub(channel)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_switch_with_bmv2s_flags_starts_and_ends_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    address = f"unix:{tmp_path}/p4rt"
    ignored = ("--nanolog", "ipc:///tmp/bm-0-log.ipc")
    logs = ("--log-flush", "--dump-packet-data", "10000", "--log-console", "-L", "info")
    bmv2_flags = (*ignored, *logs, "--", "--grpc-server-addr", address)
    with running("--no-p4", "--device-id", "7", *bmv2_flags, "--cpu-port", "510") as process:
        stub = wait_for(address)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Read(p4r.ReadRequest(device_id=7)).next()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert "--nanolog and --dump-packet-data are ignored" in errors


@pytest.mark.slow
def test_a_switch_reads_its_program_again(tmp_path: Path) -> None:
    program = tmp_path / "router.p4"
    text = ROUTER.read_text()
    program.write_text(text)
    address = f"unix:{tmp_path}/p4rt"
    flags = ("--executor", "interpreter", "--grpc-server-addr", address)
    with running(program.as_posix(), *flags) as process:
        stub = wait_for(address)

        def runs(part: str) -> bool:
            reply = stub.GetForwardingPipelineConfig(
                p4r.GetForwardingPipelineConfigRequest(device_id=1)
            )
            return part.encode() in reply.config.p4_device_config

        for number, broken in enumerate((False, True, False)):
            program.write_text(f"const bit<8> TURN_{number} = 1;\n{text}{broken * 'x'}")
            process.send_signal(signal.SIGUSR1)
            if broken:
                assert process.stderr is not None
                until(lambda: "not read again" in process.stderr.readline(), "the error")
            else:
                until(lambda part=f"TURN_{number}": runs(part), "the new program")  # type: ignore[misc]
        process.terminate()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


LOOP = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<96> addresses; bit<16> ether_type; bit<32> sum; }
struct headers_t { op_t op; }
struct meta_t { }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t s) {
    state start { packet.extract(hdr.op); transition accept; }
}
control N(inout headers_t hdr, inout meta_t meta) { apply { } }
control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    apply {
        for (bit<8> i = 0; i <= 255; i = i + 1) { hdr.op.sum = hdr.op.sum ^ 5; }
    }
}
control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def cpu_ticks(process: subprocess.Popen[str]) -> int:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["native", "interpreter"])
def test_a_packet_that_loops_does_not_keep_a_switch_from_ending(
    tmp_path: Path, veth: tuple[str, str], executor: str
) -> None:
    if executor == "native" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    program = tmp_path / "loop.p4"
    program.write_text(LOOP)
    address = f"unix:{tmp_path}/p4rt"
    flags = ("-i", f"1@{veth[0]}", "--grpc-server-addr", address, "--packet-budget", "4294967295")
    with running(program.as_posix(), *flags, "--executor", executor) as process:
        wait_for(address)
        sender = open_packet_socket(veth[1])
        before = cpu_ticks(process)
        for _ in range(300):
            sender.send(bytes(12) + b"\x88\xb5" + bytes(50))
        sender.close()
        while cpu_ticks(process) < before + 2:
            assert process.poll() is None
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert "over_budget" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_wait_ends_it(number: signal.Signals) -> None:
    # The one that answers is found, and may be ended, before the switch has said that it runs.
    with noted_signals() as wait:
        os.kill(os.getpid(), number)
        wait()


def test_a_switch_that_does_not_start_gives_the_signals_back() -> None:
    """Afterwards they interrupt the process again."""

    def handlers() -> tuple[object, ...]:
        descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(descriptor)
        numbers = signal.SIGTERM, signal.SIGINT
        return (descriptor, threading.excepthook, *map(signal.getsignal, numbers))

    before = handlers()
    code, output = invoke("run", "--no-p4", "--grpc-server-addr", "nowhere")
    assert (code, "nowhere" in output) == (1, True)
    assert handlers() == before


def test_a_switch_without_a_program_serves_p4runtime_at_its_usual_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_command.DEFAULT_ADDRESS == "127.0.0.1:9559"
    # The port may be in use: an address that cannot be served shows that it is asked for.
    monkeypatch.setattr(run_command, "DEFAULT_ADDRESS", "nowhere")
    code, output = invoke("run", "--no-p4")
    assert code == 1
    assert output.startswith("cannot listen on 'nowhere' for P4Runtime")


@pytest.mark.slow
def test_a_program_given_at_start_is_found_loaded(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/p4rt"
    info = tmp_path / "info.txtpb"
    options = ("--executor", "interpreter", "--p4info-out", str(info))
    with running(str(EVERYTHING_P4), "--grpc-server-addr", address, *options) as process:
        stub = wait_for(address)
        request = p4r.GetForwardingPipelineConfigRequest(device_id=1)
        config = stub.GetForwardingPipelineConfig(request).config
        assert config.p4info == text_format.Parse(info.read_text(), p4i.P4Info())
        assert is_bundle(config.p4_device_config)
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_taken_address_is_an_error(tmp_path: Path) -> None:
    server = grpc.server(None)
    port = server.add_insecure_port("127.0.0.1:0")
    arguments = ("--no-p4", "--grpc-server-addr", f"127.0.0.1:{port}")
    with running(*arguments) as process:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
    server.stop(None)
    assert errors.startswith(f"cannot listen on '127.0.0.1:{port}' for P4Runtime")


@pytest.mark.slow
def test_without_a_compiler_the_interpreter_runs_and_says_so(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/p4rt"
    process = subprocess.Popen(
        [*COMMAND, "run", "--no-p4", "--grpc-server-addr", address],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    try:
        wait_for(address)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    notices = [line for line in errors.splitlines() if "WARNING" in line]
    assert len(notices) == 1
    assert "no C compiler" in notices[0]
    assert "running the interpreter" in notices[0]


# --- traces ------------------------------------------------------------------------------------

FRAME = "0200000000aa0200000000bb08004500001800014000401124d00a0000010a010203cafef00d"


def test_explain_tells_the_way_of_a_packet(tmp_path: Path) -> None:
    entries = tmp_path / "entries.stf"
    entries.write_text("add routes hdr.ipv4.dst:0x0a010000/16 forward(next_hop:1, port:7)\n")
    code, output = invoke("explain", ROUTER, "--packet", FRAME, "--port", "5", "--entries", entries)
    assert code == 0
    assert "hit hdr.ipv4.dst=0xa010000/16 -> RouterIngress.forward(next_hop=1, port=7)" in output
    assert "sent: port 7, 38 bytes" in output


def test_explain_as_json() -> None:
    code, output = invoke("explain", ROUTER, "--packet", f"0x{FRAME}", "--format", "json")
    assert code == 0
    assert json.loads(output)["frame"] == FRAME


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--packet", "123"), "--packet: expected pairs of hexadecimal digits"),
        (("--packet", "12", "--format", "xml"), "--format: 'xml' is not a form of a trace"),
        (("--packet", "12", "--entries", "/nowhere.stf"), "/nowhere.stf: cannot be read"),
    ],
)
def test_explain_refuses(arguments: tuple[str, ...], message: str) -> None:
    code, output = invoke("explain", ROUTER, *arguments)
    assert code == 1
    assert output.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "xml"), "--trace xml: expected one of text, json"),
        (("--trace-port", "3"), "--trace-file, -port, -table, -header, -field need --trace"),
        (("--trace", "text", "--trace-field", "ttl=64.5"), "--trace-field ttl=64.5: expected HEAD"),
        (("--trace", "text", "--executor", "native"), "packets are traced by the interpreter"),
        (("--trace", "text", "--trace-table", "none"), "--trace-table none: no such table"),
    ],
)
def test_impossible_traces_are_refused(arguments: tuple[str, ...], message: str) -> None:
    code, output = invoke("run", ROUTER, *arguments)
    assert code == 1
    assert message in output


def _send(tracer: Tracer | None) -> None:
    """Let a packet through a router that is loaded as `run` loads it."""
    loader = make_loader(None, tracer, EngineOptions())
    assert loader.executor == "interpreter"
    loader(make_bundle(ROUTER)).process([(5, bytes.fromhex(FRAME))])


def test_a_trace_goes_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out" / "trace.jsonl"
    fields = ["hdr.ipv4.ttl=0x40"]
    _send(make_tracer("json", file, "info", None, [5], ["routes"], ["hdr.ipv4"], fields))
    [line] = file.read_text().splitlines()
    assert json.loads(line)["port"] == 5


def test_log_level_trace_logs_what_happens_to_packets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests in this process may have changed the loggers.
    for name in ("p4switch", "p4switch.trace"):
        caplog.set_level(logging.DEBUG, name)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    _send(make_tracer(None, None, "trace", None, None, None, None, None))
    assert "table RouterIngress.routes" in caplog.text


def test_nothing_is_traced_unless_asked_for() -> None:
    assert make_tracer(None, None, "debug", None, None, None, None, None) is None


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_the_first_line_of_the_docstring(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    summary = (getdoc(getattr(import_module(module), attribute)) or "").split("\n\n")[0]
    assert summary.replace("\n", " ") == COMMANDS[name].help
    code, output = invoke(name, "--help")
    assert (code, f"Usage: p4switch {name}" in output) == (0, True)


HEAVY = {"asyncio", "google.protobuf", "grpc", "rich", "p4switch.ir", "p4switch.frontend"}


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["stf", "--help"]])
def test_commands_import_lazily(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom p4switch.cli.main import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        f"sys.stderr.write(' '.join({HEAVY!r} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == ""


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("p4switch 0.")
