"""simple_switch_CLI's commands against a switch in this process."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from p4switch.cli.client import Client, ClientError
from p4switch.cli.main import app
from p4switch.cli.runtime_cli import CommandError, RuntimeCli, number, session
from p4switch.targets.v1model.engine import CloneSession, Engine, KeyMatch, MeterConfig, Replica
from tests.support.p4runtime_world import DEVICE, World, served

world = pytest.fixture(served)

Run = Callable[..., list[str]]


@pytest.fixture
def run(world: World) -> Iterator[Run]:
    """Do commands; what they print."""
    world.start().leave()  # its client gives up being primary
    lines: list[str] = []
    client = Client(world.address, DEVICE, 7)
    cli = RuntimeCli(client, lines.append)

    def commands(*texts: str) -> list[str]:
        lines.clear()
        for text in texts:
            assert cli.run(text)
        return list(lines)

    yield commands
    client.close()


@pytest.fixture
def engine(world: World, run: Run) -> Engine:
    assert world.plane.engine is not None
    return world.plane.engine


def test_entries_are_added_shown_modified_and_deleted(run: Run, engine: Engine) -> None:
    assert run("table_add lpm_table counted_forward 02:01:00:00:00:00/16 => 5") == [
        "Entry has been added with handle 0"
    ]
    run("table_add TestIngress.lpm_table TestIngress.counted_forward 02:02:00:00:00:00/16 => 6")
    [first, second] = engine.entries("TestIngress.lpm_table")
    assert first.matches == (KeyMatch(0x020100000000, prefix_length=16),)
    assert second.action is not None
    assert second.action.arguments == (6,)
    shown = run("table_dump lpm_table")
    assert "Dumping entry 0x1" in shown
    assert any("LPM       020200000000/16" in line for line in shown)
    assert "Action entry: TestIngress.counted_forward - 06" in shown
    run("table_modify lpm_table counted_forward 1 => 9", "table_delete lpm_table 0")
    [left] = engine.entries("TestIngress.lpm_table")
    assert left.action is not None
    assert (left.matches, left.action.arguments) == (second.matches, (9,))
    assert run("table_num_entries lpm_table") == ["1"]
    run("table_clear lpm_table")
    assert engine.entries("TestIngress.lpm_table") == []


def test_the_smaller_priority_wins(run: Run, engine: Engine) -> None:
    words = "1&&&1 0->5 *"
    with pytest.raises(CommandError, match="has a priority, after the parameters"):
        run(f"table_add ternary_table forward {words} => 1")
    run(
        f"table_add ternary_table forward {words} => 1 10",
        f"table_add ternary_table forward {words} => 2 20",
    )
    ten, twenty = engine.entries("TestIngress.ternary_table")
    assert ten.priority > twenty.priority
    assert "Priority: 10" in run("table_dump ternary_table")


def test_defaults(run: Run, engine: Engine) -> None:
    before = engine.default("TestIngress.lpm_table")
    run("table_set_default lpm_table counted_forward 3")
    assert engine.default("TestIngress.lpm_table").arguments == (3,)
    run("table_reset_default lpm_table")
    assert engine.default("TestIngress.lpm_table") == before


def test_cells(run: Run, engine: Engine) -> None:
    run("register_write totals 2 0xff", "counter_write seen 1 4 500")
    assert run("register_read totals 2") == ["TestIngress.totals[2]= 255"]
    assert run("register_read totals") == ["TestIngress.totals= 0, 0, 255, 0"]
    assert run("counter_read seen 1") == ["TestIngress.seen[1]= (500 bytes, 4 packets)"]
    run("register_reset totals", "counter_reset seen", "meter_set_rates rate 1 0.5:10 1:20")
    assert engine.read_register("TestIngress.totals", 2) == 0
    assert engine.read_counter("TestIngress.seen", 1).packets == 0
    assert engine.meter("TestIngress.rate", 1) == MeterConfig(500_000, 10, 1_000_000, 20)
    assert run("meter_get_rates rate 1") == [
        "info rate = 0.5, burst size = 10",
        "info rate = 1, burst size = 20",
    ]


def test_replication(run: Run, engine: Engine) -> None:
    run("mirroring_add 5 3")
    assert engine.clone_sessions() == {5: CloneSession((Replica(3, 1),))}
    assert run("mirroring_get 5") == ["session 5: ports 3"]
    run("mirroring_delete 5", "mc_mgrp_create 1", "mc_node_create 7 1 2", "mc_node_create 8 3")
    run("mc_node_associate 1 0", "mc_node_associate 1 1")
    assert engine.clone_sessions() == {}
    assert engine.multicast_groups() == {1: (Replica(1, 7), Replica(2, 7), Replica(3, 8))}
    run("mc_mgrp_destroy 1")
    assert engine.multicast_groups() == {}


def test_show_commands_list_objects(run: Run) -> None:
    assert any(line.startswith("TestIngress.lpm_table") for line in run("show_tables"))
    assert any("TestIngress.forward" in line and "port(9)" in line for line in run("show_actions"))
    [table, *actions] = run("table_info lpm_table")
    assert table.startswith("TestIngress.lpm_table")
    assert len(actions) == 3
    assert "table_dump TABLE" in run("help")
    assert run("", "# a comment") == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fly", "no command 'fly'; there are counter_read"),
        ("table_dump nowhere", "no table 'nowhere'; there are TestIngress.exact_table"),
        ("table_add lpm_table fly 1/1 =>", "no action of TestIngress.lpm_table 'fly'"),
        ("table_add lpm_table counted_forward => 1", r"has 1 keys \(.*\(lpm\)\), not 0"),
        ("table_add lpm_table counted_forward 1/8 =>", r"takes 1 parameters \(port \(9 bits\)\)"),
        ("table_add lpm_table counted_forward 10.0 => 1", "lpm, written value/length"),
        ("table_add lpm_table counted_forward x/8 => 1", "'x': expected a number or an address"),
        ("table_delete lpm_table 4", "no entry 4 in table TestIngress.lpm_table; table_dump lists"),
        ("table_dump", "table_dump: .*table_dump TABLE"),
        ("mc_node_associate 1 1", "no group 1 or no node 1 of this session"),
    ],
)
def test_errors_are_named(run: Run, command: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(command)


def test_refusals_of_the_switch_have_its_words(run: Run) -> None:
    run("mirroring_add 5 3")
    with pytest.raises(ClientError, match=r"ALREADY_EXISTS|UNKNOWN"):
        run("mirroring_add 5 3")


def test_another_primary_is_named(world: World) -> None:
    world.start().arbitrate(9)
    client = Client(world.address, DEVICE, 7)
    with pytest.raises(ClientError, match="election id 9; give a larger --election-id"):
        RuntimeCli(client, print).run("mirroring_add 5 3")
    client.close()


def test_numbers() -> None:
    assert [number(t) for t in ("10", "0x1f", "0b11", "1.2.3.4", "::1", "00:00:00:00:01:00")] == [
        10,
        31,
        3,
        0x01020304,
        1,
        256,
    ]


def test_a_session_goes_on_after_an_error(run: Run, world: World) -> None:
    printed: list[str] = []
    client = Client(world.address, DEVICE, 7)
    cli = RuntimeCli(client, printed.append)
    errors: list[str] = []
    assert not session(cli, ["fly", "register_read totals 0", "quit", "help"], errors.append)
    assert (len(errors), printed) == (1, ["TestIngress.totals[0]= 0"])
    client.close()


def test_the_command(world: World) -> None:
    world.start()
    options = ["cli", "--grpc-server-addr", world.address, "--device-id", str(DEVICE)]
    result = CliRunner().invoke(app, [*options, "register_read totals 0", "show_tables"])
    assert result.exit_code == 0
    assert result.output.startswith("TestIngress.totals[0]= 0\n")
    result = CliRunner().invoke(app, options, input=io.StringIO("fly\n").read())
    assert result.exit_code == 1
    assert "no command 'fly'" in result.output


def test_an_unreachable_switch_is_reported() -> None:
    result = CliRunner().invoke(app, ["cli", "--grpc-server-addr", "127.0.0.1:1", "help"])
    assert result.exit_code == 1
    assert "no P4Runtime server answers at 127.0.0.1:1" in result.output
