"""simple_switch_CLI's commands against a switch in this process."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from p4switch.bmv2_runtime.thrift import ThriftServer
from p4switch.cli.client import Client, GrpcClient, ThriftConnection
from p4switch.cli.main import app
from p4switch.cli.runtime_cli import RuntimeCli, session
from p4switch.cli.runtime_names import CommandError, number
from p4switch.device.runtime_host import RuntimeHost
from p4switch.targets.v1model.engine import CloneSession, Engine, KeyMatch, MeterConfig, Replica
from tests.support.p4runtime_world import World, served

world = pytest.fixture(served)

Run = Callable[..., list[str]]


@pytest.fixture(params=["grpc", "thrift"])
def client(world: World, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A connection to a switch that runs `everything.p4`."""
    world.start()
    made: Client
    if request.param == "grpc":
        made = GrpcClient(world.address)
        yield made
        made.close()
        return
    pytest.importorskip("thriftpy2")
    server = ThriftServer(world.runtime, 0)
    made = ThriftConnection(server.port)
    yield made
    made.close()
    server.close()


@pytest.fixture
def run(client: Client) -> Run:
    """Do commands; what they print."""

    def commands(*texts: str) -> list[str]:
        """Each in a session of its own, as calls of the command are."""
        lines: list[str] = []
        for text in texts:
            assert RuntimeCli(client, lines.append).run(text)
        return lines

    return commands


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
    assert "Action entry: TestIngress.counted_forward - 0006" in shown
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
    assert engine.clone_sessions() == {5: CloneSession((Replica(3),))}
    assert run("mirroring_get 5") == ["session 5: port 3"]
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
        ("fly", "no command 'fly'; there are act_prof_add"),
        ("table_dump nowhere", "no table 'nowhere'; there are TestIngress.exact_table"),
        ("table_add lpm_table fly 1/1 =>", "no action of TestIngress.lpm_table 'fly'"),
        ("table_add lpm_table counted_forward 1/8 => 512", "'512': port has 9 bits"),
        ("table_add lpm_table counted_forward => 1", r"has 1 keys \(.*\(lpm\)\), not 0"),
        ("table_add lpm_table counted_forward 1/8 =>", r"takes 1 parameters \(port \(9 bits\)\)"),
        ("table_add lpm_table counted_forward 10.0 => 1", "lpm, written value/length"),
        ("table_add lpm_table counted_forward x/8 => 1", "'x': expected a number or an address"),
        ("table_delete lpm_table 4", r"InvalidTableOperation \(INVALID_HANDLE\)"),
        ("table_dump", "table_dump: .*table_dump TABLE"),
        ("mc_node_associate 1 1", r"InvalidMcOperation \(INVALID_L1_HANDLE\)"),
        ("set_crc16_parameters calc 1 0 0 true true", "no custom CRC 'calc'; there are none"),
        ("set_queue_depth 1 2 3 4", "set_queue_depth: "),
    ],
)
def test_errors_are_named(run: Run, command: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(command)


def test_handles_outlive_a_session(run: Run, engine: Engine) -> None:
    run("table_add lpm_table counted_forward 02:01:00:00:00:00/16 => 5")
    run("table_add lpm_table counted_forward 02:02:00:00:00:00/16 => 6", "table_delete lpm_table 0")
    assert "Dumping entry 0x1" in run("table_dump_entry lpm_table 1")
    run("table_modify lpm_table counted_forward 1 7")
    [entry] = engine.entries("TestIngress.lpm_table")
    assert entry.action is not None
    assert entry.action.arguments == (7,)


def test_direct_counters_and_meters(run: Run, engine: Engine) -> None:
    run("table_add lpm_table counted_forward 02:01:00:00:00:00/16 => 5")
    run("counter_write hits 0 4 500")
    assert run("counter_read hits 0") == ["TestIngress.hits[0]= (500 bytes, 4 packets)"]
    run("counter_reset hits")
    assert run("counter_read hits 0") == ["TestIngress.hits[0]= (0 bytes, 0 packets)"]
    run("table_add metered_table metered_forward 1 => 5", "meter_set_rates speed 0 0.5:10 1:20")
    assert run("meter_get_rates speed 0")[0] == "info rate = 0.5, burst size = 10"
    run("meter_array_set_rates rate 0.25:10 1:20")
    assert engine.meter("TestIngress.rate", 3) == MeterConfig(250_000, 10, 1_000_000, 20)


def test_action_profiles_and_selectors(run: Run, engine: Engine) -> None:
    assert run("act_prof_create_member paths forward 1", "act_prof_create_member paths drop") == [
        "Member has been created with handle 0",
        "Member has been created with handle 1",
    ]
    assert run("act_prof_create_group paths") == ["Group has been created with handle 0"]
    run("act_prof_add_member_to_group paths 0 0", "act_prof_add_member_to_group paths 1 0")
    run("table_indirect_add_with_group path_table 7 => 0")
    run("act_prof_modify_member paths forward 0 2")
    shown = run("act_prof_dump paths")
    assert "member 0: TestIngress.forward - 0002" in shown
    assert "group 0: members 0, 1" in shown
    assert "Action entry: group 0" in run("table_dump path_table")
    run("act_prof_remove_member_from_group paths 1 0", "act_prof_delete_member paths 1")
    assert engine.groups("TestIngress.paths") == {0: (0,)}
    run("act_prof_create_member next_hops forward 3", "table_indirect_add hop_table 7 => 0")
    assert "Action entry: member 0" in run("table_dump hop_table")


def test_value_sets(run: Run) -> None:
    run("pvs_add special_types 0x806", "pvs_add special_types 0x86dd")
    run("pvs_remove special_types 0x806")
    assert run("pvs_get special_types") == ["86dd"]
    run("pvs_clear special_types")
    assert run("pvs_get special_types") == []


def test_queues(run: Run, engine: Engine) -> None:
    run("set_queue_depth 5", "set_queue_depth 6 1", "set_queue_depth 7 1 2", "set_queue_rate 0")
    with pytest.raises(CommandError, match=r"need --executor native|its log says why"):
        run("set_queue_rate 100 1")


def test_nodes_of_multicast_groups(run: Run, engine: Engine) -> None:
    run("mc_mgrp_create 1", "mc_set_lag_membership 0 5 6")
    assert run("mc_node_create 7 1 2 | 0") == ["node was created with handle 0"]
    run("mc_node_associate 1 0")
    assert engine.multicast_groups() == {1: (Replica(1, 7), Replica(2, 7), Replica(5, 7))}
    assert run("mc_dump") == ["group 1", "  node 0: rid 7, ports [1, 2], LAGs [0]"]
    run("mc_node_update 0 3", "mirroring_add_mc 9 1")
    assert engine.clone_sessions() == {9: CloneSession((Replica(3, 7),))}
    run("mc_node_dissociate 1 0", "mc_node_destroy 0")
    assert engine.multicast_groups() == {1: ()}


def test_the_switch(run: Run, engine: Engine) -> None:
    assert "device_id: 3" in run("switch_info")[0]
    assert run("show_ports") == []
    assert int(run("get_time_elapsed")[0]) >= 0
    run("register_write totals 2 9", "reset_state")
    assert engine.read_register("TestIngress.totals", 2) == 0


def test_ports_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [(1, "veth1", True), (7, "veth7", False)]
    monkeypatch.setattr(RuntimeHost, "ports", lambda host: ports)
    assert [line.split() for line in run("show_ports")] == [
        ["1", "veth1", "UP"],
        ["7", "veth7", "DOWN"],
    ]


def test_numbers() -> None:
    assert [number(t) for t in ("10", "0x1f", "0b11", "1.2.3.4", "::1", "00:00:00:00:01:00")] == [
        10,
        31,
        3,
        0x01020304,
        1,
        256,
    ]


def test_a_session_goes_on_after_an_error(client: Client) -> None:
    printed: list[str] = []
    cli = RuntimeCli(client, printed.append)
    errors: list[str] = []
    assert not session(cli, ["fly", "register_read totals 0", "quit", "help"], errors.append)
    assert (len(errors), printed) == (1, ["TestIngress.totals[0]= 0"])


def test_the_command(world: World) -> None:
    world.start()
    options = ["cli", "--grpc-server-addr", world.address]
    result = CliRunner().invoke(app, [*options, "register_read totals 0", "show_tables"])
    assert result.exit_code == 0
    assert result.output.startswith("TestIngress.totals[0]= 0\n")
    result = CliRunner().invoke(app, options, input=io.StringIO("fly\n").read())
    assert result.exit_code == 1
    assert "no command 'fly'" in result.output


def test_a_switch_without_a_program_says_so(world: World) -> None:
    result = CliRunner().invoke(app, ["cli", "--grpc-server-addr", world.address, "help"])
    assert (result.exit_code, result.output) == (1, "the switch has no program yet\n")


def test_over_thrift_too_a_switch_without_a_program_says_so(world: World) -> None:
    pytest.importorskip("thriftpy2")
    server = ThriftServer(world.runtime, 0)
    result = CliRunner().invoke(app, ["cli", "--thrift-port", str(server.port), "help"])
    assert (result.exit_code, result.output) == (1, "the switch has no program yet\n")
    server.close()


def test_an_unreachable_switch_is_reported() -> None:
    result = CliRunner().invoke(app, ["cli", "--grpc-server-addr", "127.0.0.1:1", "help"])
    assert result.exit_code == 1
    assert "no switch answers at 127.0.0.1:1" in result.output
    pytest.importorskip("thriftpy2")
    result = CliRunner().invoke(app, ["cli", "--thrift-port", "1", "help"])
    assert "no Thrift server answers at localhost:1" in result.output
