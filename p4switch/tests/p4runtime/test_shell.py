"""p4runtime-shell as a client: it shares neither code nor protobuf's version with the switch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format

from p4switch.packet_io.compile import cache_folder
from tests.support.machine import PATIENCE
from tests.support.p4runtime_world import World, frame, served

world = pytest.fixture(served)

SCRIPT = """
import os, sys
import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

# The shell's threads would outlive an error.
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(1))
address, info, config = sys.argv[1:]
sh.setup(3, address, (0, 7), config=sh.FwdPipeConfig(info, config), verbose=False)
print("api", sh.APIVersion())

entry = sh.TableEntry("exact_table")(action="forward")
entry.match["destination"] = "00:00:00:00:00:01"
entry.action["port"] = "2"
entry.insert()
entry.action["port"] = "4"
entry.modify()
entry.read(lambda e: print("exact", e.action["port"].value))
try:
    entry.insert()
except P4RuntimeWriteException as error:
    print("twice", str(error).split(",")[0].split()[-1])

entry = sh.TableEntry("ternary_table")(action="drop")
entry.match["source"] = "0x20&&&0xf0"
entry.match["ether_type"] = "5..9"
entry.match["port"] = "3"
entry.priority = 10
entry.insert()
entry.delete()
entry = sh.TableEntry("lpm_table")(action="counted_forward")
entry.match["destination"] = "0xab0000000000/8"
entry.action["port"] = "5"
entry.insert()

member = sh.ActionProfileMember("paths")(member_id=1, action="forward")
member.action["port"] = "6"
member.insert()
group = sh.ActionProfileGroup("paths")(group_id=1)
group.add(1, weight=2)
group.insert()
entry = sh.TableEntry("path_table")(group_id=1)
entry.match["destination"] = "2"
entry.insert()
group.read(lambda g: print("weights", [m.weight for m in g.members]))

tree = sh.MulticastGroupEntry(9)
tree.add(1, 1).add(2, 2)
tree.insert()
session = sh.CloneSessionEntry(5)
session.add(7, 0)
session.insert()
tree.read(lambda t: print("replicas", [r.egress_port for r in t.replicas]))

meter = sh.MeterEntry("rate")
meter.index = 1
meter.cir, meter.cburst, meter.pir, meter.pburst = 1, 2, 3, 4
meter.modify()
counter = sh.CounterEntry("seen")
counter.index = 3
counter.packet_count = 10
counter.modify()

back = sh.PacketIn()
out = sh.PacketOut(b"\\1\\x82hello", egress_port="510", pad="0")
out.send()
back.sniff(lambda p: print("back", p.packet.payload), timeout=1)

digest = sh.DigestEntry("learn_t")
digest.max_timeout_ns, digest.max_list_size, digest.ack_timeout_ns = 0, 1, 0
digest.insert()
entry = sh.TableEntry("exact_table")(action="learn", is_default=True)
entry.modify()
lists = sh.DigestList()
print("packets", flush=True)
sys.stdin.readline()
counter.read(lambda c: print("counted", c.packet_count))
direct = sh.DirectCounterEntry("hits")
direct.read(lambda c: print("direct", c.packet_count))
lists.sniff(lambda d: print("learnt", d.digest.data[0].struct.members[0].bitstring), timeout=1)
sh.teardown()
"""

EXPECTED = [
    "api 1.5.0",
    "exact b'\\x04'",
    "twice ALREADY_EXISTS",
    "weights [2]",
    "replicas [1, 2]",
    "back b'hello'",
    "packets",
    "counted 12",
    "direct 1",
    "learnt b'v'",
    "learnt b'w'",
]


@pytest.mark.slow
def test_every_entity_of_the_shell(world: World, tmp_path: Path) -> None:
    found = sorted(cache_folder().glob("p4runtime-shell-*/ready"))
    if not found:
        pytest.skip("p4runtime-shell is not prepared: `hopsum shell --prepare`")
    info, config, script = (tmp_path / name for name in ("p4info.txtpb", "config", "script.py"))
    info.write_text(text_format.MessageToString(world.p4info))
    config.write_bytes(world.device_config)
    script.write_text(SCRIPT)
    command = [found[-1].with_name("bin") / "python", script, world.address, info, config]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        said = []
        for line in shell.stdout:
            said.append(line.rstrip())
            if said[-1] == "packets":
                break
        # Both sources are learnt; one destination has an lpm entry.
        world.plane.process([(3, frame(0xAB << 40, ord("v"), 2)), (3, frame(5, ord("w"), 2))])
        rest, _ = shell.communicate("\n", timeout=PATIENCE)
    assert shell.returncode == 0
    assert said + rest.splitlines() == EXPECTED
