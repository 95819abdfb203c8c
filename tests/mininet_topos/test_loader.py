"""Whether Mininet can be used on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hopsum.mininet_topos.loader import runs_in_namespace

ENTRY = "from hopsum.cli.entry import main; main()"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="root only: capabilities are taken away")


def without(capability: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of hopsum as root in a container that lacks a capability does."""
    return subprocess.run(
        ["setpriv", f"--bounding-set=-{capability}", sys.executable, "-c", ENTRY, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@AS_ROOT
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["sys_admin", "net_admin"])
def test_a_container_without_rights_is_refused_and_does_not_wait(capability: str) -> None:
    refused = without(
        capability, "run", "--topology", "star:2", "--world", "mininet", "--elements", "10"
    )
    assert refused.returncode == 2
    assert "network namespaces and veth pairs" in refused.stderr
    assert "--privileged" in refused.stderr
    assert "Traceback" not in refused.stderr
    cluster = without(capability, "cluster", "star:2")
    assert cluster.returncode == 2
    assert "--privileged" in cluster.stderr


def test_a_script_that_fails_is_told_from_one_that_succeeds() -> None:
    if os.geteuid() == 0:
        assert runs_in_namespace("true") or not runs_in_namespace("ip link")
    assert not runs_in_namespace("false")
