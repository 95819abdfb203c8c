"""Every option and argument of every command, with values that cannot be: one error, no traceback.

What is found here is found by going through the commands' own signatures, so that a new option is
tried as soon as it is there.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
import typer.main
from typer.models import ArgumentInfo

from hopsum.cli import main as hopsum
from hopsum.cli.commands import COMMANDS
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.host_agent import main as agent
from hopsum.network.model import Network
from p4switch.cli import main as p4switch

NOWHERE = ["--controller", "unix:/nowhere/controller"]
BASES: dict[str, list[str]] = {
    "hopsum run": ["--topology", "star:2", "--workers", "2", "--elements", "16", "--rounds", "1"],
    "hopsum simulate": ["--topology", "star:2", "--size", "1kB", "--algorithm", "ring"],
    "hopsum soak": ["--schedules", "1"],
    "hopsum export": ["folder"],
    "hopsum demo": ["--world", "simulation"],
    "hopsum drive": ["star:2"],
    "hopsum cluster": ["star:2"],
    "hopsum controller serve": ["star:2", "--listen", "127.0.0.1:0", "--insecure"],
    "hopsum controller recover": ["journal"],
    "hopsum topology": ["star:2"],
    "hopsum plan": ["--topology", "star:2", "--elements", "16"],
    "hopsum schedule make": ["--topology", "star:2", "--elements", "16"],
    "hopsum schedule check": ["schedule.json"],
    "hopsum schedule draw": ["schedule.json", "--output", "picture.svg"],
    "hopsum submit": ["a", *NOWHERE],
    "hopsum job": ["a", *NOWHERE],
    "hopsum cancel": ["a", *NOWHERE],
    "hopsum jobs": NOWHERE,
    "hopsum nodes": NOWHERE,
    "hopsum link list": NOWHERE,
    "hopsum link down": ["h1-s1", *NOWHERE],
    "hopsum link up": ["h1-s1", *NOWHERE],
    "hopsum status": NOWHERE,
    "hopsum dashboard": NOWHERE,
    "hopsum top": NOWHERE,
    "hopsum stats": NOWHERE,
    "hopsum slots": ["s1", *NOWHERE],
    "hopsum why-stuck": ["1", *NOWHERE],
    "hopsum trace": ["1", "3", "--pcap", "folder"],
    "hopsum shell": ["s1", *NOWHERE],
    "hopsum doctor": [],
    "hopsum manual": [],
    "hopsum certificates": ["star:2", "--folder", "folder", "--controller", "192.0.2.1"],
    "hopsum torchrun": ["train.py"],
    "hopsum exec": ["h1", "true", *NOWHERE],
    "hopsum-agent serve": [
        *("--controller", "unix:/nowhere/controller", "--host", "h1", "--interface", "nonesuch"),
    ],
    "hopsum-agent send": ["--interface", "nonesuch"],
    "hopsum-agent sniff": ["--read", "empty.pcap"],
    "p4switch run": ["program.p4"],
    "p4switch compile": ["program.p4"],
    "p4switch stf": ["program.p4", "script.stf"],
    "p4switch explain": ["program.p4", "--packet", "00"],
    "p4switch demo": ["--in-process"],
    "p4switch cli": ["show_tables"],
    "p4switch shims": ["folder"],
    "p4switch lsp": [],
}
PROGRAM = """
#include <core.p4>
#include <v1model.p4>
struct none {}
parser P(packet_in p, out none h, inout none m, inout standard_metadata_t s) {
    state start { transition accept; }
}
control C(inout none h, inout none m) { apply {} }
control I(inout none h, inout none m, inout standard_metadata_t s) { apply {} }
control D(packet_out p, in none h) { apply {} }
V1Switch(P(), C(), I(), I(), C(), D()) main;
"""
SCHEDULE = """{"algorithm": "none", "collective": "all-reduce", "ranks": 1, "elements": 1,
"given": [[0, 0, 1]], "wanted": [[0, 0, 1]], "steps": []}"""

NO_WHOLE_NUMBERS = ["", "x", "1.5", "nan", "1e400", "9" * 5000]
NO_NUMBERS = ["", "x", "nan"]
LONG = "x" * 3000

ALLOWED = {
    # A number that may be as large as one likes.
    "hopsum plan --top": ["9" * 20],
    "hopsum run --limit": ["inf"],
    # Ignored, as is all that BMv2 takes there.
    "p4switch run --nanolog": ["", "\N{SNOWMAN}", LONG],
    "p4switch run --dump-packet-data": ["-1", "9" * 20],
    # Whether one can listen there is for who listens.
    "hopsum controller serve --listen": ["", "\N{SNOWMAN}", LONG],
    # A folder that exists, or can be made.
    "p4switch shims folder": ["folder"],
    # Without ports nothing is captured.
    "p4switch run --pcap": ["folder", "file/below"],
    "hopsum run --pcap": ["folder"],
    "hopsum cluster --pcap": ["folder"],
    "hopsum export folder": ["folder"],
    "hopsum demo --output": ["folder"],
    "hopsum certificates --folder": ["folder"],
    "hopsum soak --output": ["folder"],
    "hopsum manual --folder": ["folder"],
    "p4switch run -D": [LONG],
    "p4switch compile -D": [LONG],
    "p4switch stf -D": [LONG],
    "p4switch explain --packet": [""],
    "p4switch explain -D": [LONG],
    "p4switch run -I": ["folder", "file/below"],
    "p4switch compile -I": ["folder", "file/below"],
    "p4switch stf -I": ["folder", "file/below"],
    "p4switch explain -I": ["folder", "file/below"],
    # They matter once an editor opens a program, which shows what is wrong.
    "p4switch lsp -D": ["", "\N{SNOWMAN}", LONG],
    "p4switch lsp -I": ["folder", "file/below"],
    # A file that is made.
    "hopsum controller serve --jobs": ["\N{SNOWMAN}"],
}
"""Values that are not refused, by option."""


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a command."""

    command: str
    option: str
    kind: Any
    place: int | None
    """Of an argument, among the arguments."""

    def __str__(self) -> str:
        return f"{self.command} {self.option}"

    def line(self, value: str) -> list[str]:
        """The command's words with this value."""
        words, base = self.command.split(), BASES[self.command]
        if self.place is None:
            given = f"{self.option}={value}" if self.option.startswith("--") else None
            return [*words, *base, *([given] if given else [self.option, value])]
        count = sum(not word.startswith("-") for word in base[: self.place + 1])
        assert count == self.place + 1
        arguments = [*base[: self.place], value, *base[self.place + 1 :]]
        options = arguments[self.place + 1 :]
        return [*words, *options, "--", *arguments[: self.place + 1]]

    def values(self) -> list[str]:
        """What cannot be, for its type."""
        if self.kind is int:
            return [*NO_WHOLE_NUMBERS, "-1", "9" * 20]
        if self.kind is float:
            return [*NO_NUMBERS, "-1", "inf"]
        if self.kind is Path:
            return ["folder", "file/below"]
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return ["", "x", LONG]
        return ["", "\N{SNOWMAN}", LONG]


def parameters(app: typer.Typer, name: str) -> Iterator[Parameter]:
    """All that a command and its subcommands take, but switches that are on or off."""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from parameters(group.typer_instance, f"{name} {group.name or ''}".strip())
    for command in app.registered_commands:
        function: Callable[..., Any] | None = command.callback
        assert function is not None
        full = f"{name} {command.name or function.__name__.replace('_', '-')}"
        hints = typing.get_type_hints(function, include_extras=True)
        arguments = 0
        for parameter in inspect.signature(function).parameters:
            kind, info = typing.get_args(hints[parameter])[:2]
            inner = [each for each in typing.get_args(kind) if each is not type(None)]
            while inner:
                kind = inner[0]
                inner = [each for each in typing.get_args(kind) if each is not type(None)]
            if isinstance(info, ArgumentInfo):
                yield Parameter(full, parameter, kind, arguments)
                arguments += 1
            elif kind is not bool:
                # Typer takes the first name for a default, and knows better later.
                given = [info.default, *(info.param_decls or ())]
                names = [text for text in given if isinstance(text, str) and text[:1] == "-"]
                option = max(names, key=len, default=f"--{parameter.replace('_', '-')}")
                yield Parameter(full, option, kind, None)


def deferred(commands: Mapping[str, Any], program: str) -> Iterator[Parameter]:
    """The parameters of a program's subcommands, each of which is loaded when it runs."""
    for name, entry in commands.items():
        module, _, attribute = entry.target.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            yield from parameters(found, f"{program} {name}")
        else:
            alone = typer.Typer()
            alone.command(name)(found)
            yield from parameters(alone, program)


ALL = [
    *deferred(COMMANDS, "hopsum"),
    *parameters(agent.app, "hopsum-agent"),
    *deferred(p4switch.COMMANDS, "p4switch"),
]
COMMAND = functools.cache(typer.main.get_command)
"""Typer makes a command anew for every line, which takes longer than all that is tried here."""
MAINS = {"hopsum": hopsum.main, "hopsum-agent": agent.main, "p4switch": p4switch.main}


def nothing(*arguments: Any, **options: Any) -> None:
    """In place of what would go on for long."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with what the commands read; nothing that is accepted starts anything."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "program.p4").write_text(PROGRAM)
    (tmp_path / "script.stf").touch()
    (tmp_path / "journal").touch()
    (tmp_path / "schedule.json").write_text(SCHEDULE)
    (tmp_path / "empty.pcap").write_bytes(
        bytes.fromhex("4d3cb2a1020004000000000000000000000004000100000000")[:24]
    )

    def accepted(*arguments: Any, **options: Any) -> NoReturn:
        raise SystemExit(0)

    def controller(network: Network, settings: ClusterSettings, *others: Any) -> None:
        JobTable(settings.journal)

    async def drive(*arguments: Any) -> None:
        """Nothing is driven."""

    monkeypatch.setattr("typer.main.get_command", COMMAND)
    monkeypatch.setattr("hopsum.experiment.runner._run", accepted)
    monkeypatch.setattr("hopsum.cli.demo.train_alone", accepted)
    monkeypatch.setattr("hopsum.cli.soak_command._soak", accepted)
    monkeypatch.setattr("hopsum.cli.cluster_commands.run_emulated_cluster", nothing)
    monkeypatch.setattr("hopsum.cli.cluster_commands.run_controller", controller)
    monkeypatch.setattr("hopsum.cli.cluster_commands.switch_drivers", nothing)
    monkeypatch.setattr("hopsum.experiment.drive.drive", drive)
    monkeypatch.setattr("hopsum.cli.controller_commands.run_shell", lambda *arguments: 0)
    monkeypatch.setattr("p4switch.device.device.Device.__enter__", accepted)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("AUTHORITY", "CERTIFICATE", "KEY"):
        monkeypatch.delenv(f"HOPSUM_TLS_{name}", raising=False)
    return tmp_path


@pytest.fixture
def outcome(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Callable[[list[str]], tuple[int, str]]:
    """Runs a command line; its exit code and all that it says."""

    def run(words: list[str]) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", words)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        capsys.readouterr()
        caplog.clear()
        try:
            MAINS[words[0]]()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        said = capsys.readouterr()
        logged = "".join(f"{record.getMessage()}\n" for record in caplog.records)
        assert isinstance(code, int), words
        return code, said.err + logged + (said.out if code else "")

    logger = logging.getLogger("p4switch")
    before = list(logger.handlers)
    try:
        yield run
    finally:
        logger.handlers[:] = before


def test_every_command_is_tried() -> None:
    commands = {parameter.command for parameter in ALL}
    assert commands <= set(BASES)
    assert len(ALL) > 150
    assert set(ALLOWED) <= set(map(str, ALL))


@pytest.mark.slow
@pytest.mark.parametrize("parameter", ALL, ids=str)
def test_invalid_values_give_one_clear_line(
    parameter: Parameter, outcome: Callable[[list[str]], tuple[int, str]]
) -> None:
    for value in parameter.values():
        code, said = outcome(parameter.line(value))
        shown = f"{parameter}={value[:20]!r}: {code}: {said[:500]}"
        assert "Traceback" not in said, shown
        if value in ALLOWED.get(str(parameter), ()):
            continue
        assert code in (1, 2), shown
        assert said.strip(), shown
        assert len(said) < 20_000, shown


# -- Files

NODES = '{"nodes": [{"id": "h1", "kind": "host"}, {"id": "s1", "kind": "switch"%s}], "edges": [%s]}'
EDGE = '{"source": "h1", "target": "s1"%s}'
DEEP = 20_000
"""Beyond every limit of recursion."""
CONTENTS: dict[str, str | bytes] = {
    "empty": "",
    "null": "null",
    "number": "7",
    "list": "[]",
    "object": "{}",
    "text": "hello\n",
    "binary": bytes(range(256)) * 4,
    "zeros": bytes(4096),
    "deep list": "[" * DEEP,
    "deep list in a field": '{"nodes": ' + "[" * DEEP,
    "deep object": '{"steps":' * DEEP,
    "deep XML": "<graphml>" * 100_000,
    "XML": "<graphml><",
    "a number of 5000 digits": '{"ranks": ' + "9" * 5000 + "}",
    "twice": NODES % (', "slots": 1, "slots": 2', EDGE % ""),
    "NaN": NODES % (', "slots": NaN', EDGE % ""),
    "many slots": NODES % (', "slots": 1e400', EDGE % ""),
    "no slots": NODES % (', "slots": true', EDGE % ""),
    "no rate": NODES % ("", EDGE % ', "bandwidth": -1'),
    "infinite rate": NODES % ("", EDGE % ', "bandwidth": 1e400'),
    "large rate": NODES % ("", EDGE % (', "bandwidth": ' + "9" * 400)),
    "no port": NODES % ("", EDGE % ', "source_port": 1e400'),
    "large port": NODES % ("", EDGE % ', "target_port": 99999999999999999999'),
    "name of a list": '{"nodes": [{"id": ["h1"], "kind": "host"}], "edges": []}',
    "no name": '{"nodes": [{"id": "", "kind": "host"}], "edges": []}',
    "half a letter": '{"nodes": [{"id": "\\ud800", "kind": "host"}], "edges": []}',
    "a line in a name": '{"nodes": [{"id": "h1\\nh2", "kind": "host"}], "edges": []}',
    "tutorial": '{"hosts": {"h1": {}}, "switches": {"s1": {}}, "links": [["h1", "s1-p1", 1e400]]}',
    "schedule of many ranks": SCHEDULE.replace('"ranks": 1', '"ranks": 99999999999999999999'),
    "schedule of many elements": SCHEDULE.replace(
        '"elements": 1', '"elements": 99999999999999999999'
    ),
    "schedule of few elements": SCHEDULE.replace('"elements": 1', '"elements": -1'),
    "schedule of no ranks": SCHEDULE.replace('"ranks": 1', '"ranks": 0'),
    "schedule without an end": SCHEDULE.replace(
        '"steps": []', '"steps": [{"combine": true, "transfers": [], "repeat": 99999999999}]'
    ).replace("[[0, 0, 1]]", "[]", 1),
}
READERS = {
    "run": ["hopsum", "run", "--topology"],
    "simulate": ["hopsum", "simulate", "--size", "1kB", "--algorithm", "ring", "--topology"],
    "topology": ["hopsum", "topology"],
    "plan": ["hopsum", "plan", "--topology"],
    "cluster": ["hopsum", "cluster"],
    "schedule check": ["hopsum", "schedule", "check"],
    "soak": ["hopsum", "soak", "--replay"],
    "schedule draw": ["hopsum", "schedule", "draw", "--output", "picture.svg"],
    "submit": ["hopsum", "submit", "a", *NOWHERE, "--task"],
    "serve": ["hopsum", "controller", "serve", "star:2", "--jobs"],
    "certificate": [
        *("hopsum", "controller", "serve", "star:2", "--listen", "127.0.0.1:0", "--insecure"),
        "--tls-certificate",
    ],
    "sniff": ["hopsum-agent", "sniff", "--read"],
    "controller's options": ["hopsum", "controller", "serve", "star:2", "--config"],
    "agent's options": [
        *("hopsum-agent", "serve", "--controller", "unix:/nowhere/controller", "--host", "h1"),
        *("--interface", "nonesuch", "--config"),
    ],
    "checked options": ["hopsum", "doctor", "--config"],
    "compile": ["p4switch", "compile"],
    "stf": ["p4switch", "stf", "program.p4"],
}
FINE = {
    # Names that are not safe become labels beside one that is.
    "simulate": ("half a letter", "a line in a name"),
    "topology": ("half a letter", "a line in a name"),
    "cluster": ("half a letter", "a line in a name"),
    "stf": ("empty",),
    "serve": ("empty", "zeros"),
}
"""The parameters of a command."""


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_invalid_files_give_one_clear_line(
    reader: str, folder: Path, outcome: Callable[[list[str]], tuple[int, str]]
) -> None:
    for name, content in CONTENTS.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / "input").write_bytes(data)
        code, said = outcome([*READERS[reader], "input"])
        shown = f"{reader}: {name}: {code}: {said[:300]}"
        assert "Traceback" not in said, shown
        if name in FINE.get(reader, ()):
            continue
        assert code in (1, 2), shown
        assert 0 < len(said) < 20_000, shown
        assert (folder / "input").read_bytes() == data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("simulate --size 1e400", "size: size '1e400': expected at least 1 byte, and at most"),
        ("simulate --algorithm=", "algorithm '': expected one or more"),
        ("run --seed -1", "seed -1: expected 0 to"),
        ("run --elements 99999999999999", "elements 99999999999999: expected 0 to"),
        ("run --elements 99999999999", "of memory, and"),
        ("run --algorithm ring --planner embedding", "planner embedding, which would not be"),
        ("topology complete:60000", "more than 524288 links"),
        ("topology fat-tree:100000", "more than 65536 switches"),
        ("topology random-regular:60000x50000", "expected at most 64000 hosts, and 524288 links"),
    ],
)
def test_hostile_command_lines_found_in_use(
    line: str, words: str, outcome: Callable[[list[str]], tuple[int, str]]
) -> None:
    code, said = outcome(["hopsum", *line.split()])
    assert code == 2, said
    assert words in said
