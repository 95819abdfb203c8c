"""examples/containers: a valid compose file, whose services sum in namespaces with their rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hopsum.network.loaders import load_network
from tests.support.machine import until
from tests.support.machines import Machines, inside, machines
from tests.support.paths import ROOT

FOLDER = ROOT / "examples/containers"
COMPOSE = (FOLDER / "compose.yaml").read_text()
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
    return found


def test_the_compose_file_is_valid() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="`make test-tools` installs it")
    # YAML's merges, which the library only takes on one level.
    compose = compose_spec.PyCompose.from_json(json.dumps(yaml.safe_load(COMPOSE)))
    for part in ("networks", "volumes", "configs", "secrets"):
        getattr(compose, f"validate_{part}")()
    assert "l1" in compose.service_names()


def test_services_are_the_nodes_of_the_network_at_the_addresses_they_know(
    services: dict[str, Any],
) -> None:
    network = load_network("leaf-spine:2x2")
    assert set(services) == {"controller", *network.switches, *network.hosts}
    own = {name: each["networks"]["management"]["ipv4_address"] for name, each in services.items()}
    assert all(each["extra_hosts"] == own for each in services.values())
    assert all(each["cap_drop"] == ["ALL"] for each in services.values())
    assert "cap_add" not in services["controller"]
    assert all(
        each["command"] == [name] and each["entrypoint"][2] == network.name
        for name, each in services.items()
        if name != "controller"
    )


@pytest.fixture
def up(services: dict[str, Any], tmp_path: Path) -> Iterator[Machines]:
    """Namespaces where the names of the services are known."""
    addresses = {
        name: f"{each['networks']['management']['ipv4_address']}/24"
        for name, each in services.items()
    }
    with machines(tmp_path, addresses) as made:
        folders = [Path("/etc/netns") / namespace for namespace in made.namespaces.values()]
        try:
            for folder in folders:
                folder.mkdir(parents=True)
                known = services["controller"]["extra_hosts"].items()
                lines = [f"{address} {name}\n" for name, address in known]
                (folder / "hosts").write_text("".join(lines))
            yield made
        finally:
            for folder in folders:
                (folder / "hosts").unlink(missing_ok=True)
                folder.rmdir()


def started(up: Machines, name: str, service: dict[str, Any]) -> Path:
    """Start a service with the rights of its container, though always as root."""
    entry = service.get("entrypoint", ["hopsum"])
    if entry[0] == "python":
        entry = [sys.executable, str(FOLDER / "start.py"), *entry[2:]]
    rights = ",".join(["-all", *(f"+{each.lower()}" for each in service.get("cap_add", []))])
    limited = ["setpriv", "--no-new-privs", "--inh-caps", rights, "--bounding-set", rights, "--"]
    for setting, value in service.get("sysctls", {}).items():
        inside(up.namespaces[name], "sysctl", "-qw", f"{setting}={value}")
    path = f"PATH={BIN}:{os.environ['PATH']}"
    files = f"XDG_RUNTIME_DIR={up.home(name)}"
    return up.start(name, ["env", path, files, *limited, *entry, *service["command"]])


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.long
def test_the_services_sum(services: dict[str, Any], up: Machines) -> None:
    logs = {name: started(up, name, service) for name, service in services.items()}

    def asked(*command: str) -> subprocess.CompletedProcess[str]:
        options = ["--controller", "controller:9600"]
        return up.run("controller", [str(BIN / "hopsum"), *command, *options])

    def attached() -> bool:
        ended = {
            name: logs[name].read_text()
            for name, process in zip(logs, up.running, strict=True)
            if process.poll() is not None
        }
        assert not ended, ended
        return asked("nodes").stdout.count("attached for") == 5

    until(attached, "the agents")
    for algorithm in ("in-network", "ring"):
        done = asked(
            *("submit", algorithm, "--workers", "4", "--elements", "20000", "--rounds", "3"),
            *("--dtype", "int32", "--wait", "--algorithm", algorithm, "--json"),
        )
        assert '"state": "finished"' in done.stdout, (done.stdout, logs["controller"].read_text())
        assert '"wrong": 0' in done.stdout
