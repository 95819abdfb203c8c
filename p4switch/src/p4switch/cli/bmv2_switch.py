"""BMv2's programs `simple_switch_grpc` and `simple_switch`: their options, their defaults.

Options are those of behavioral-model 1.15 (src/bm_sim/options_parse.cpp, and each target's
main.cpp). They become a command line of `p4switch run`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NoReturn

from p4switch.cli.run_command import LEVELS

BMV2_VERSION = "1.15.5"
"""The version of behavioral-model whose options these are."""
JSON_VERSION = "2.24"
THRIFT_PORT = "9090"
NOTIFICATIONS = "ipc:///tmp/bmv2-{}-notifications.ipc"
GRPC_ADDRESS = "0.0.0.0:9559"
PRIORITY_QUEUES = "1"

GRPC, SIMPLE = "simple_switch_grpc", "simple_switch"
WITHOUT_EFFECT = {
    "nanolog": "ADDRESS",
    "log_flush": None,
    "log_file_max_size": "BYTES",
    "log_file_max_files": "FILES",
    "debugger": None,
    "debugger_addr": "ADDRESS",
    "restore_state": "FILE",
    "dump_packet_data": "BYTES",
    "max_port_count": "PORTS",
    "enable_swap": None,
    "disable_swap": None,
    "max_mc_groups": "GROUPS",
    "max_l1_entries": "ENTRIES",
    "max_l2_entries": "ENTRIES",
    "load_modules": "FILES",
}
"""Options that are accepted and change nothing, with the names of their values."""
PASSED = {
    "drop_port": "PORT",
    "priority_queues": "QUEUES",
    "use_files": "SECONDS",
    "thrift_port": "PORT",
    "notifications_addr": "ADDRESS",
}
"""Options of both programs that are options of `p4switch run`."""
PASSED_BY_GRPC = {
    "grpc_server_cacert": "FILE",
    "grpc_server_cert": "FILE",
    "grpc_server_key": "FILE",
    "cpu_port": "PORT",
}
REFUSED = {"packet_in": "ADDRESS", "dp_grpc_server_addr": "ADDRESS"}
"""Other ways of packets to a switch than interfaces: without them it would be of no use."""


@dataclass(slots=True)
class SwitchCommand:
    """A command line of `p4switch run`, and the options that have no effect."""

    arguments: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message}; {self.prog} --help lists the options\n")


def switch_command(program: str, words: Sequence[str]) -> SwitchCommand:
    """Return what a command line of simple_switch or simple_switch_grpc means.

    Help, versions and errors end the process, as in BMv2.
    """
    # Options of the target follow a `--`, after which boost reads on as before.
    given = _parser(program).parse_args([word for word in words if word != "--"])
    for name, value in vars(given).items():
        if name in REFUSED and value is not None:
            _end(program, f"{_option(name)} is not supported: packets come from interfaces (-i)")
    if given.log_console and given.log_file is not None:
        _end(program, "--log-console and --log-file are exclusive")
    made = SwitchCommand(["run"])
    add = made.arguments
    if given.no_p4 and program == SIMPLE:
        _end(program, "--no-p4: nothing pushes a program; use simple_switch_grpc")
    if given.no_p4:
        add.append("--no-p4")
    elif given.config is None:
        _end(program, "please specify an input JSON configuration file, or --no-p4")
    else:
        add.append(given.config)
    for interface in given.interface or ():
        add += ["-i", interface]
    add += ["--device-id", given.device_id]
    add += _logging(given)
    if given.pcap is not None:
        add += ["--pcap", given.pcap]
    if program == SIMPLE and given.thrift_port is None:
        given.thrift_port = THRIFT_PORT  # There is no other control.
    if given.thrift_port is not None and find_spec("thriftpy2") is None:
        made.without_effect.append("--thrift-port (for lack of p4switch[thrift])")
        given.thrift_port = None
    if given.thrift_port is not None and given.notifications_addr is None:
        given.notifications_addr = NOTIFICATIONS.format(given.device_id)
    for name in (*PASSED, *(PASSED_BY_GRPC if program == GRPC else ())):
        if (value := getattr(given, name)) is not None:
            add += [_option(name), value]
    if program == GRPC:
        add += ["--grpc-server-addr", given.grpc_server_addr]
        for flag in ("grpc_server_ssl", "grpc_server_with_client_auth"):
            if getattr(given, flag):
                add.append(_option(flag))
    made.without_effect += [
        _option(name) for name in WITHOUT_EFFECT if getattr(given, name) not in (None, False)
    ]
    return made


def _logging(given: argparse.Namespace) -> list[str]:
    """BMv2 logs only if it is told where, and then all that happens to packets."""
    if given.log_file is not None:
        return ["--log-level", given.log_level or "trace", "--log-file", f"{given.log_file}.txt"]
    if given.log_console:
        return ["--log-level", given.log_level or "trace", "--log-console"]
    return ["--log-level", "warn"]


def _parser(program: str) -> _Parser:
    parser = _Parser(
        prog=program,
        description=f"p4switch with the options of BMv2's {program}. The program is BMv2's JSON, "
        "or P4 source.",
    )
    add = parser.add_argument
    version = f"{BMV2_VERSION}-p4switch"
    add("config", nargs="?", help=argparse.SUPPRESS)
    add("-i", "--interface", action="append", metavar="PORT@INTERFACE")
    add("--pcap", nargs="?", const=".", metavar="FOLDER", help="without a folder: the current one")
    add("--device-id", default="0", metavar="ID")
    add("--log-console", action="store_true")
    add("--log-file", metavar="FILE", help="the log is FILE.txt")
    add("-L", "--log-level", choices=list(LEVELS), help="default: trace")
    add("--no-p4", action="store_true")
    add("-v", "--version", action="version", version=version)
    add("--json-version", action="version", version=JSON_VERSION)
    for name, value in {**PASSED, **REFUSED}.items():
        add(_option(name), metavar=value)
    if program == GRPC:
        add("--grpc-server-addr", default=GRPC_ADDRESS, metavar="ADDRESS")
        add("--grpc-server-ssl", action="store_true")
        add("--grpc-server-with-client-auth", action="store_true")
        for name, value in PASSED_BY_GRPC.items():
            add(_option(name), metavar=value)
    parser.set_defaults(priority_queues=PRIORITY_QUEUES)
    for name, metavar in WITHOUT_EFFECT.items():
        text = "accepted, without effect"
        if metavar is None:
            add(_option(name), action="store_true", help=text)
        else:
            add(_option(name), metavar=metavar, help=text)
    return parser


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _end(program: str, message: str) -> NoReturn:
    sys.exit(f"{program}: {message}")


def simple_switch_grpc() -> None:
    """Run `simple_switch_grpc` with the arguments of this process."""
    _run(GRPC)


def simple_switch() -> None:
    """Run `simple_switch` with the arguments of this process."""
    _run(SIMPLE)


def simple_switch_cli() -> None:
    """Run `simple_switch_CLI` with the arguments of this process."""
    from p4switch.cli.main import main

    parser = _Parser(prog="simple_switch_CLI", description="p4switch cli over Thrift.")
    parser.add_argument("--thrift-port", default=THRIFT_PORT, metavar="PORT")
    parser.add_argument("--thrift-ip", default="localhost", choices=("localhost", "127.0.0.1"))
    for name in ("--json", "--pre"):
        parser.add_argument(name, help="accepted, without effect")
    given = parser.parse_args()
    main(["cli", "--thrift-port", given.thrift_port])


def _run(program: str) -> None:
    from p4switch.cli.main import main

    command = switch_command(program, sys.argv[1:])
    if command.without_effect:
        names = ", ".join(command.without_effect)
        sys.stderr.write(f"{program}: without effect in p4switch: {names}\n")
    main(command.arguments)
