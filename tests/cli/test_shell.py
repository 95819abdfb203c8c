"""p4runtime-shell on a switch: its helpers show hopsum's tables."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hopsum.cli import shell
from tests.support.machine import PATIENCE, until
from tests.support.paths import HOPSUM_P4

BIN = Path(sys.executable).parent

SCRIPT = """
trees
slots
outcomes
entry = table_entry["admission"](action="admit_children")
entry.match.set(job="7", tree="0", ingress_port="1")
entry.action.set(slot_base="16", window_mask="15", fan_in="2", children="1")
entry.insert()
entry.match.set(job="7", tree="0", ingress_port="2")
entry.action.set(slot_base="16", window_mask="15", fan_in="2", children="2")
entry.insert()
entry = table_entry["admission"](action="admit_results")
entry.match.set(job="7", tree="0", ingress_port="3")
entry.action.set(slot_base="16", window_mask="15")
entry.insert()
trees
slots()
"""


@pytest.mark.slow
def test_helpers_show_trees_slots_and_outcomes(tmp_path: Path) -> None:
    if not shell.shell_is_ready():
        pytest.skip("p4runtime-shell is not prepared: `hopsum shell --prepare`")
    address = f"unix:{tmp_path}/p4runtime"
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("wb"))
        command = [str(BIN / "p4switch"), "run", str(HOPSUM_P4), "--grpc-server-addr", address]
        switch = subprocess.Popen(command, stdout=out, stderr=out)
        stack.callback(switch.wait)
        stack.callback(switch.terminate)
        until(lambda: "P4Runtime on" in log.read_text() or switch.poll() is not None, "the switch")
        done = subprocess.run(
            [str(BIN / "hopsum"), "shell", address, "--election-id", "11"],
            input=SCRIPT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    said = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", done.stdout + done.stderr)
    assert "Error" not in said, said
    for words in ("no job aggregates here", "no slot in use", "no packet received"):
        assert words in said
    assert "job 7, tree 0: port 1: children 0 of 2\n" in said
    assert "job 7, tree 0: port 2: children 1 of 2\n" in said
    assert "job 7, tree 0: port 3: results\n" in said
    assert "slots 16 to 31: job 7, tree 0\n" in said


def test_the_shell_is_installed_once(tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    python = shell.install_shell(tmp_path)
    command = shell.shell_command(python, "127.0.0.1:9559", 1, 5)
    assert command[1:] == [
        "-m", "p4runtime_sh", "--grpc-addr", "127.0.0.1:9559",
        "--device-id", "1", "--election-id", "0,5",
    ]  # fmt: skip
