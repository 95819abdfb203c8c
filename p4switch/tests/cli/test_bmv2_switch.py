"""simple_switch's and simple_switch_grpc's options, as a command line of `p4switch run`."""

from __future__ import annotations

import shlex

import pytest

from p4switch.cli.bmv2_switch import GRPC, SIMPLE, WITHOUT_EFFECT, switch_command

DEFAULTS = ["--device-id", "0", "--log-level", "warn", "--priority-queues", "1"]
GRPC_DEFAULTS = [*DEFAULTS, "--grpc-server-addr", "0.0.0.0:9559"]

BMV2_OPTIONS = """
    -i 1@veth1 --interface 2@veth2 --pcap --use-files 3 --thrift-port 9091 --device-id 7
    --nanolog ipc:///tmp/bm-7-log.ipc --log-console -L info --log-flush
    --log-file-max-size 1000 --log-file-max-files 2 --notifications-addr ipc:///tmp/n.ipc
    --debugger --debugger-addr ipc:///tmp/d.ipc --restore-state state --dump-packet-data 100
    --max-port-count 16 prog.json -- --drop-port 511 --priority-queues 8 --max-mc-groups 5
    --max-l1-entries 6 --max-l2-entries 7 --load-modules a.so,b.so
"""
"""All options of options_parse.cpp and of the targets in behavioral-model 1.15.5 that run one."""
GRPC_OPTIONS = """
    --disable-swap --grpc-server-addr 127.0.0.1:50051 --grpc-server-ssl --grpc-server-cacert ca
    --grpc-server-cert cert --grpc-server-key key --grpc-server-with-client-auth --cpu-port 255
"""


def arguments(program: str, line: str) -> list[str]:
    return switch_command(program, shlex.split(line)).arguments


def test_defaults_are_bmv2s() -> None:
    assert arguments(GRPC, "prog.json") == ["run", "prog.json", *GRPC_DEFAULTS]
    thrift = ["--thrift-port", "9090", "--notifications-addr"]
    thrift.append("ipc:///tmp/bmv2-0-notifications.ipc")
    assert arguments(SIMPLE, "prog.json") == ["run", "prog.json", *DEFAULTS, *thrift]
    assert arguments(GRPC, "--no-p4") == ["run", "--no-p4", *GRPC_DEFAULTS]


def test_all_options_are_accepted() -> None:
    command = switch_command(GRPC, shlex.split(BMV2_OPTIONS + GRPC_OPTIONS))
    assert shlex.join(command.arguments) == (
        "run prog.json -i 1@veth1 -i 2@veth2 --device-id 7 --log-level info --log-console --pcap . "
        "--drop-port 511 --priority-queues 8 --use-files 3 --thrift-port 9091 "
        "--notifications-addr ipc:///tmp/n.ipc "
        "--grpc-server-cacert ca --grpc-server-cert cert --grpc-server-key key --cpu-port 255 "
        "--grpc-server-addr 127.0.0.1:50051 --grpc-server-ssl --grpc-server-with-client-auth"
    )
    options = [f"--{name.replace('_', '-')}" for name in WITHOUT_EFFECT]
    assert command.without_effect == [name for name in options if name != "--enable-swap"]
    simple = switch_command(SIMPLE, shlex.split(BMV2_OPTIONS + "--enable-swap"))
    assert "--enable-swap" in simple.without_effect


def test_the_command_lines_of_tutorials() -> None:
    """run_exercise.py joins its arguments with spaces, and starts the line in a shell."""
    line = (
        "-i 1@s1-eth1 -i 2@s1-eth2 --pcap pcaps --nanolog ipc:///tmp/bm-0-log.ipc --device-id 0 "
        "build/basic.json --log-console --thrift-port 9090 -- --grpc-server-addr 0.0.0.0:50051 "
        "--cpu-port 255 --priority-queues 8"
    )
    made = arguments(GRPC, line)
    assert made[:2] == ["run", "build/basic.json"]
    assert made[made.index("--pcap") + 1] == "pcaps"
    assert made[made.index("--cpu-port") + 1] == "255"


def test_the_folder_of_pcap_may_be_left_out_and_attached() -> None:
    def folder(line: str) -> str:
        made = arguments(GRPC, line)
        return made[made.index("--pcap") + 1]

    assert folder("prog.json --pcap") == "."
    assert folder("--pcap --thrift-port 9090 prog.json") == "."
    assert folder("--pcap=logs prog.json") == "logs"


def test_logs_go_where_bmv2s_go() -> None:
    def logs(line: str) -> list[str]:
        made = arguments(SIMPLE, f"prog.json {line}")
        return made[made.index("--log-level") : made.index("--priority-queues")]

    assert logs("") == ["--log-level", "warn"]
    assert logs("-L debug") == ["--log-level", "warn"]
    assert logs("--log-console") == ["--log-level", "trace", "--log-console"]
    assert logs("--log-file ss-log") == ["--log-level", "trace", "--log-file", "ss-log.txt"]
    assert logs("--log-console -L off") == ["--log-level", "off", "--log-console"]


def test_without_thriftpy2_a_switch_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4switch.cli.bmv2_switch.find_spec", lambda name: None)
    command = switch_command(GRPC, ["prog.json", "--thrift-port", "9091"])
    assert "--thrift-port" not in command.arguments
    assert command.without_effect == ["--thrift-port (for lack of p4switch[thrift])"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "please specify an input JSON"),
        ("prog.json --packet-in ipc:///tmp/p.ipc", "--packet-in is not supported"),
        ("prog.json -- --dp-grpc-server-addr 0.0.0.0:1", "--dp-grpc-server-addr is not supported"),
        ("prog.json --log-console --log-file x", "are exclusive"),
    ],
)
def test_what_cannot_be_done_is_refused(line: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        switch_command(GRPC, shlex.split(line))


def test_nothing_pushes_a_program_to_simple_switch() -> None:
    with pytest.raises(SystemExit, match="use simple_switch_grpc"):
        switch_command(SIMPLE, ["--no-p4"])


def test_errors_end_with_1_as_bmv2s(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("--no-such-option", "prog.json -L loud"):
        with pytest.raises(SystemExit) as ended:
            switch_command(SIMPLE, shlex.split(line))
        assert ended.value.code == 1
        assert capsys.readouterr().err.startswith("simple_switch: ")


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for option, shown in (("--version", "1.15.5-p4switch\n"), ("--json-version", "2.24\n")):
        with pytest.raises(SystemExit) as ended:
            switch_command(GRPC, [option])
        assert (ended.value.code, capsys.readouterr().out) == (0, shown)
