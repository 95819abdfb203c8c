"""The manifests of examples/kubernetes: valid, and what they name of each other is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

BIN = Path(sys.executable).parent
FOLDER = ROOT / "examples/kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


def resources() -> dict[tuple[str, str], Any]:
    """Return what the manifests make, by kind and name."""
    texts = [manifest.read_text() for manifest in MANIFESTS]
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_manifests_are_valid_by_the_schema_of_the_api() -> None:
    validate = BIN / "kubernetes-validate"
    if not validate.exists():
        pytest.skip("kubernetes-validate is not installed (`make test-tools` installs it)")
    command = [validate, "--strict", "--quiet", *MANIFESTS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_training_finds_the_agent_of_its_node() -> None:
    """Its path, and the folder that both have of the node's."""
    made = resources()
    agent = made["DaemonSet", "agent"]["spec"]["template"]["spec"]
    training = made["Job", "digits"]["spec"]["template"]["spec"]
    paths = {}
    for pod in (agent, training):
        of_node = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
        [container] = pod["containers"]
        paths[container["name"]] = {
            mount["mountPath"]: of_node.get(mount["name"]) for mount in container["volumeMounts"]
        }
    [listens] = [
        word.removeprefix("--socket=")
        for word in agent["containers"][0]["command"]
        if word.startswith("--socket=")
    ]
    environment = {each["name"]: each.get("value") for each in training["containers"][0]["env"]}
    assert environment["HOPSUM_AGENT"] == listens
    folder = str(Path(listens).parent)
    assert paths["agent"][folder] == paths["rank"][folder] == folder
    assert environment["WORLD_SIZE"] == str(made["Job", "digits"]["spec"]["completions"])
    service = made["Service", "digits"]
    [port] = service["spec"]["ports"]
    assert environment["MASTER_PORT"] == str(port["port"])
    assert environment["MASTER_ADDR"] == f"digits-0.{service['metadata']['name']}"
    assert training["subdomain"] == service["metadata"]["name"]
