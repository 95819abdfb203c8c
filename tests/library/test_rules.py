"""The rules of a plan are those that the driver installs, and p4runtime-shell's commands too."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy import P4Schema
from finsy.p4entity import decode_entity
from finsy.proto import p4r, p4r_grpc
from typer.testing import CliRunner

import hopsum
from hopsum.cli import shell
from hopsum.cli.main import app
from hopsum.controller.dataplane.entries import in_program_order, rules_read
from hopsum.controller.dataplane.rule_text import rules_dict
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.network.loaders import save_network
from hopsum.protocol.errors import InputError
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.rpc import as_channel
from tests.support.machine import PATIENCE, until
from tests.support.paths import HOPSUM_P4, HOPSUM_P4INFO
from tests.support.virtual_cluster import LANES, network_of, run, running, submit

BIN = Path(sys.executable).parent
SCHEMA = P4Schema(HOPSUM_P4INFO)
ALL = [
    p4r.Entity(table_entry=p4r.TableEntry()),
    p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            multicast_group_entry=p4r.MulticastGroupEntry()
        )
    ),
    p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            clone_session_entry=p4r.CloneSessionEntry()
        )
    ),
]


def in_order(rules: SwitchRules) -> Any:
    """Rules as plain data, independent of the order in which a switch lists them."""
    plain = rules_dict({"s": in_program_order(rules, SCHEMA)})["s"]
    plain["entries"].sort(key=json.dumps)
    for part in ("groups", "clones"):
        plain[part] = dict(sorted(plain[part].items()))
    return plain


@pytest.mark.parametrize(
    ("network", "servers", "planner"),
    [("star:3", ["ps"], "multi-hop"), ("leaf-spine:2x2", ["ps"], "multi-tree")],
)
def test_a_plan_has_the_rules_that_the_driver_installs(
    network: str, servers: list[str], planner: str, tmp_path: Path
) -> None:
    installed: dict[str, SwitchRules] = {}

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=50, planner=planner)
        await running(cluster, "a")
        for name, switch in cluster.switches.items():
            channel = as_channel(cluster.exchange.channel("test", switch.address))
            stub = p4r_grpc.P4RuntimeStub(channel)
            request = p4r.ReadRequest(device_id=switch.device_id, entities=ALL)
            found = [
                decode_entity(entity, SCHEMA)
                async for response in stub.Read(request)
                for entity in response.entities
            ]
            installed[name] = rules_read(found, SCHEMA)

    run(tmp_path, network, test)
    plan = hopsum.plan(
        network_of(network),
        ["h1", "h2", "h3"],
        servers=servers,
        planner=planner,
        window=16,
        lanes=LANES,
    )
    planned = plan.switch_rules()
    assert planned.keys() == installed.keys()
    for name, rules in planned.items():
        assert in_order(rules) == in_order(installed[name])
    assert {row["table"] for row in plan.rules} >= {"admission", "replication", "ipv4_route"}


def test_the_command_prints_them(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    save_network(network_of("star:2"), file)
    shared = ["plan", "--topology", str(file), "--workers", "2", "--window", "16"]

    def output(*options: str) -> str:
        done = CliRunner().invoke(app, [*shared, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    lines = output("--rules").splitlines()
    assert lines[0] == "# switch s1"
    assert any(line.startswith("admission[job=1, tree=0, ingress_port=") for line in lines)
    assert output("--rules", "text").splitlines() == lines
    commands = output("--rules", "shell").splitlines()
    assert len(commands) == len(lines)
    assert all(line.endswith("insert()") for line in commands[1:])
    plan = hopsum.plan(hopsum.load(file), 2, window=16)
    assert json.loads(output("--rules", "--json"))["rules"] == rules_dict(plan.switch_rules())
    assert "rules" not in json.loads(output("--json"))
    assert plan.shell_commands("s1") == commands[1:]
    refused = CliRunner().invoke(app, ["plan", "--topology", "torus:2x2", "--rules"])
    assert isinstance(refused.exception, InputError)


@pytest.mark.slow
def test_the_shell_takes_the_commands(tmp_path: Path) -> None:
    if not shell.shell_is_ready():
        pytest.skip("p4runtime-shell is not prepared: `hopsum shell --prepare`")
    plan = hopsum.plan(hopsum.leaf_spine(2, 2, link_rate="25M"), 3)
    address, log = f"unix:{tmp_path}/p4runtime", tmp_path / "log"
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("wb"))
        command = [str(BIN / "p4switch"), "run", str(HOPSUM_P4), "--grpc-server-addr", address]
        switch = subprocess.Popen(command, stdout=out, stderr=out)
        stack.callback(switch.wait)
        stack.callback(switch.terminate)
        until(lambda: "P4Runtime on" in log.read_text() or switch.poll() is not None, "the switch")
        done = subprocess.run(
            [str(BIN / "hopsum"), "shell", address, "--election-id", "11"],
            input="\n".join([*plan.shell_commands("l1"), ""]),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "Error" not in done.stdout + done.stderr, done.stdout
        with grpc.insecure_channel(address) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            found = [
                decode_entity(entity, SCHEMA)
                for response in stub.Read(p4r.ReadRequest(device_id=1, entities=ALL))
                for entity in response.entities
            ]
    assert in_order(rules_read(found, SCHEMA)) == in_order(plan.switch_rules()["l1"])
