"""The rights that examples/kubernetes gives an agent and a rank are enough for them to meet."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.machine import until
from tests.support.machines import Machines, machines
from tests.support.paths import ROOT
from tests.support.units import Unit

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is an extra: make torch"),
]

BIN = Path(sys.executable).parent
RANK = 1000
"""User of the training's container."""


def test_a_rank_of_another_user_and_network_reaches_an_agent_with_two_rights(
    tmp_path: Path,
) -> None:
    manifests = yaml.safe_load_all((ROOT / "examples/kubernetes/agents.yaml").read_text())
    [container] = next(iter(manifests))["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["runAsUser"] == 0
    rights = container["securityContext"]["capabilities"]
    assert rights["drop"] == ["ALL"]
    capabilities = " ".join(f"CAP_{name}" for name in rights["add"])
    with machines(tmp_path, {"h1": "192.0.2.21/24", "pod": "192.0.2.31/24"}) as up:
        socket = start_agent(up, capabilities)
        tmp_path.chmod(0o755)
        home = up.home("pod")
        script = home / "find.py"
        script.write_text(
            "from hopsum_torch.agent import connect\nprint(connect('/mnt/agent').host)\n"
        )
        unit = Unit.read(f"[Service]\nExecStart={sys.executable} {script}\nProtectHome=yes\n")
        *shell, text = unit.command(home / "lib", home / "cache")
        # As a container has it: the node's folder, which it cannot write to.
        enter = f"mount --bind {socket.parent} /mnt && mount -o remount,bind,ro /mnt"
        rank = f"exec setpriv --reuid {RANK} --clear-groups --bounding-set -all"
        assert "exec setpriv" in text
        done = up.run("pod", [*shell, text.replace("exec setpriv", f"{enter}; {rank}")])
        assert (done.returncode, done.stdout) == (0, "h1\n"), done.stdout


def start_agent(up: Machines, capabilities: str) -> Path:
    """Start an agent with no rights but these; return its socket once it listens."""
    up.cable(("h1", "eth1"), ("pod", "eth1"))
    folder = up.home("h1") / "run"
    folder.mkdir()
    serve = "serve --controller 192.0.2.1:9600 --host h1 --interface eth1"
    program = f"{BIN}/hopsum-agent {serve} --socket {folder}/agent"
    text = (
        f"[Service]\nExecStart={program}\nCapabilityBoundingSet={capabilities}\n"
        f"AmbientCapabilities={capabilities}\nNoNewPrivileges=yes\n"
    )
    var = up.home("h1") / "var"
    log = up.start("h1", Unit.read(text).command(var / "lib", var / "cache"))
    until(
        lambda: (folder / "agent").exists() or up.running[-1].poll() is not None,
        "the agent's socket",
    )
    assert up.running[-1].poll() is None, log.read_text()
    return folder / "agent"
