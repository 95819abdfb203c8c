"""`p4switch shims`, and the folder's commands used as p4lang's tutorials use BMv2's and p4c's."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import grpc
import pytest
from finsy.proto import U128, p4i, p4r, p4r_grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from typer.testing import CliRunner

from p4switch.bmv2_runtime.thrift import ThriftClient
from p4switch.cli.main import app
from p4switch.cli.shims_command import SHIMS
from p4switch.device.loading import Loader, default_executor, read_program
from p4switch.packet_io.pcap import read_pcap
from p4switch.packet_io.sockets import open_packet_socket
from p4switch.targets.v1model.engine import EngineOptions
from tests.support.machine import PATIENCE, own_port, until
from tests.support.paths import PROGRAMS

FRAME = "0800000000fe0800000001010800450000190001000040fdabe40a000202c000020168656c6c6f"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shims")
    result = CliRunner().invoke(app, ["shims", str(made)])
    assert (result.exit_code, result.output) == (0, f'export PATH="{made}:$PATH"\n')
    return made


def test_the_folder_holds_commands(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {*SHIMS, "python"}
    assert all(os.access(path, os.X_OK) for path in folder.iterdir())
    assert CliRunner().invoke(app, ["shims", str(folder)]).exit_code == 0  # Its own it may replace.


def test_the_package_p4_has_p4langs_messages(folder: Path) -> None:
    """What p4runtime_lib of p4lang/tutorials imports; PyPI has no p4.tmp."""
    code = (
        "from p4.config.v1 import p4info_pb2\n"
        "from p4.tmp import p4config_pb2\n"
        "from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc\n"
        "from google.protobuf import text_format\n"
        "request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=1)\n"
        "info = text_format.Parse('tables { preamble { id: 7 } }', p4info_pb2.P4Info())\n"
        "request.config.p4info.CopyFrom(info)\n"
        "config = p4config_pb2.P4DeviceConfig(reassign=True, device_data=b'{}')\n"
        "request.config.p4_device_config = config.SerializeToString()\n"
        "request.action = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT\n"
        "print(len(request.SerializeToString()), p4runtime_pb2_grpc.P4RuntimeStub.__name__)\n"
    )
    assert printed_beside_shims(code, folder) == "22 Stub\n"


def test_the_modules_that_p4_utils_imports(folder: Path) -> None:
    """thrift_API.py and sswitch_thrift_API.py; PyPI has none of these modules."""
    pytest.importorskip("thriftpy2")
    code = (
        "import bmpy_utils as utils\n"
        "from bm_runtime.standard import Standard\n"
        "from bm_runtime.standard.ttypes import *\n"
        "from bm_runtime.simple_pre import SimplePre\n"
        "from bm_runtime.simple_pre_lag import SimplePreLAG\n"
        "from sswitch_runtime import SimpleSwitch\n"
        "from sswitch_runtime.ttypes import *\n"
        "for service in Standard, SimplePre, SimplePreLAG, SimpleSwitch: service.Client\n"
        "print(SimplePreLAG.McOperationErrorCode._VALUES_TO_NAMES[2],\n"
        "      utils.thrift_connect.__name__, MirroringSessionConfig(port=5).port)\n"
    )
    assert printed_beside_shims(code, folder) == "INVALID_MGID thrift_connect 5\n"


def printed_beside_shims(code: str, folder: Path) -> str:
    """Run Python with the shims' modules; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "python")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_a_real_bmv2_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "p4c").write_bytes(b"\x7fELF\xff")
    result = CliRunner().invoke(app, ["shims", str(tmp_path)])
    assert (result.exit_code, f"{tmp_path}/p4c: exists" in result.output) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["p4c"]


def test_nothing_of_it_is_on_the_path_by_itself() -> None:
    """Nobody's BMv2 must be shadowed by an installation of p4switch."""
    scripts = {point.name for point in entry_points(group="console_scripts")}
    assert not scripts & set(SHIMS)


@pytest.mark.skipif(default_executor()[0] != "native", reason="no C compiler")
def test_a_program_compiled_as_by_p4_utils_starts_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p4-utils waits for 10 s; a busy machine takes that to compile the generated C."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = shutil.copy(PROGRAMS / "router.p4", tmp_path / "prog.p4")
    subprocess.run([folder / "p4c", program, "-o", tmp_path], check=True)
    compiled = {path: path.stat() for path in tmp_path.rglob("*.so")}
    config = read_program(tmp_path / "prog.json", [], {})
    Loader("native", EngineOptions(priority_queues=1))(config)
    assert compiled
    assert {path: path.stat() for path in tmp_path.rglob("*.so")} == compiled


class Harness:
    """What p4lang/tutorials does: utils/Makefile, p4runtime_switch.py, p4runtime_lib."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.work = work
        self.environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        self.port = own_port()
        self.pid = 0

    def compile(self, program: Path) -> None:
        (self.work / "build").mkdir()
        shutil.copy(program, self.work / "prog.p4")
        line = "p4c-bm2-ss --p4v 16 --p4runtime-files build/prog.p4.p4info.txtpb -o build/prog.json"
        self._shell(f"{line} prog.p4")

    def start(self, interfaces: dict[int, str], config: str) -> None:
        """Start the switch in a shell and note its process, as P4RuntimeSwitch.start does."""
        args = ["simple_switch_grpc"]
        for number, name in interfaces.items():
            args.extend(["-i", f"{number}@{name}"])
        args.append("--pcap pcaps")
        args.extend(["--nanolog", "ipc:///tmp/bm-0-log.ipc"])
        args.extend(["--device-id", "0"])
        args.append(config)
        args.append("--log-console")
        args.append(f"-- --grpc-server-addr 127.0.0.1:{self.port}")
        (self.work / "pcaps").mkdir()
        command = " ".join(args)
        self._shell(f"{command} >{self.work}/s1.log 2>&1 & echo $! >> {self.work}/pid")
        self.pid = int((self.work / "pid").read_text())

    def start_simple(self, config: str) -> None:
        line = f"simple_switch --device-id 3 --thrift-port {self.port} --nanolog ipc:///x {config}"
        self._shell(f"{line} >{self.work}/s1.log 2>&1 & echo $! >> {self.work}/pid")
        self.pid = int((self.work / "pid").read_text())

    def _shell(self, line: str) -> None:
        subprocess.run(line, shell=True, check=True, cwd=self.work, env=self.environment)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        until(lambda: not _alive(self.pid), "the switch to end")

    def log(self) -> str:
        return (self.work / "s1.log").read_text()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # In a container nobody may wait for it.


@pytest.fixture
def harness(folder: Path, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(folder, tmp_path)
    yield made
    if made.pid and _alive(made.pid):
        os.kill(made.pid, signal.SIGKILL)


def device_config(json_file: Path) -> bytes:
    """Return a file in the envelope of p4runtime_lib.bmv2: p4.tmp.P4DeviceConfig."""
    file = descriptor_pb2.FileDescriptorProto(
        name="p4switch_tests/p4config.proto", package="p4.tmp", syntax="proto3"
    )
    message = file.message_type.add(name="P4DeviceConfig")
    message.field.add(name="reassign", number=1, type=8, label=1)
    message.field.add(name="device_data", number=3, type=12, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())  # type: ignore[no-untyped-call]
    found = pool.FindMessageTypeByName("p4.tmp.P4DeviceConfig")  # type: ignore[no-untyped-call]
    kind = message_factory.GetMessageClass(found)
    made = kind(reassign=True, device_data=json_file.read_text().encode())
    return bytes(made.SerializeToString())


@pytest.mark.slow
@pytest.mark.parametrize("started_with", ["build/prog.json", "--no-p4"])
def test_an_exercise_of_tutorials(
    harness: Harness, veth: tuple[str, str], other_veth: tuple[str, str], started_with: str
) -> None:
    """Compile, start, push in the old envelope, insert, forward, stop: no edit for p4switch."""
    harness.compile(PROGRAMS / "router.p4")
    harness.start({1: veth[0], 2: other_veth[0]}, started_with)
    info = text_format.Parse(
        (harness.work / "build" / "prog.p4.p4info.txtpb").read_text(), p4i.P4Info()
    )
    [table] = info.tables
    [forward] = [a for a in info.actions if a.preamble.alias == "forward"]
    config = device_config(harness.work / "build" / "prog.json")
    with grpc.insecure_channel(f"127.0.0.1:{harness.port}") as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        arbitration = p4r.MasterArbitrationUpdate(device_id=0, election_id=U128.encode(1))
        requests = iter([p4r.StreamMessageRequest(arbitration=arbitration)])
        stream = stub.StreamChannel(_then_wait(requests), wait_for_ready=True, timeout=PATIENCE)
        assert next(stream).arbitration.status.code == 0
        stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=0,
                election_id=U128.encode(1),
                action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                config=p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=config),
            )
        )
        entry = p4r.TableEntry(table_id=table.preamble.id)
        entry.match.add(field_id=1).lpm.CopyFrom(
            p4r.FieldMatch.LPM(value=bytes([192, 0, 2, 0]), prefix_len=24)
        )
        entry.action.action.action_id = forward.preamble.id
        entry.action.action.params.add(param_id=1, value=bytes([8, 0, 0, 0, 0, 9]))
        entry.action.action.params.add(param_id=2, value=b"\x02")
        update = p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=entry))
        stub.Write(p4r.WriteRequest(device_id=0, election_id=U128.encode(1), updates=[update]))
        with open_packet_socket(veth[1]) as sender, open_packet_socket(other_veth[1]) as receiver:
            receiver.settimeout(PATIENCE)
            sender.send(bytes.fromhex(FRAME))
            assert receiver.recv(2048)[:6] == bytes([8, 0, 0, 0, 0, 9])
        stream.cancel()
    harness.stop()
    assert harness.log().count("without effect in p4switch: --nanolog") == 1
    assert "hit hdr.ipv4.dst=0xc0000200/24" in harness.log()  # As BMv2 logs what it does.
    capture = harness.work / "pcaps" / f"{other_veth[0]}_out.pcap"
    assert any(frame[:6] == bytes([8, 0, 0, 0, 0, 9]) for _, frame in read_pcap(capture))


@pytest.mark.slow
def test_a_switch_with_thrift_alone(harness: Harness) -> None:
    """P4Switch of p4lang/tutorials and p4-utils: simple_switch, controlled at its Thrift port."""
    pytest.importorskip("thriftpy2")
    harness.compile(PROGRAMS / "router.p4")
    harness.start_simple("build/prog.json")
    until(lambda: _listens(harness.port), "the Thrift port")
    client = ThriftClient(harness.port)
    assert client.call("standard", "bm_mt_get_num_entries", [0, "RouterIngress.routes"]) == 0
    assert client.call("standard", "bm_mgmt_get_info", []).thrift_port == harness.port
    client.close()
    harness.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _then_wait(requests: Iterator[p4r.StreamMessageRequest]) -> Iterator[p4r.StreamMessageRequest]:
    yield from requests
    threading.Event().wait()


def test_the_commands_run_in_this_interpreter(folder: Path) -> None:
    for name in SHIMS:
        first, *_ = (folder / name).read_text().splitlines()
        assert first == f"#!{sys.executable}"
    shown = subprocess.run(
        [folder / "simple_switch_grpc", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "1.15.5-p4switch\n"
