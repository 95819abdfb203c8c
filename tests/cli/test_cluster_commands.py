"""Commands that bring clusters up: what they ask of what they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import cluster_commands
from cli.cluster_commands import switch_addresses
from cli.main import app
from controller.jobs.priorities import ONE_LEVEL
from controller.jobs.settings import ClusterSettings
from network.loaders import load_network, save_network
from network.model import Network
from protocol.errors import InputError


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        (["cluster", "star:2"], "run_emulated_cluster"),
        (["controller", "serve", "star:2"], "run_controller"),
    ],
)
def test_priorities_can_be_left_out(
    command: list[str], starts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cluster_commands, "switch_drivers", lambda *arguments: None)
    monkeypatch.setattr(
        cluster_commands, starts, lambda *arguments, **options: asked.append((arguments, options))
    )
    for options in ([], ["--no-priorities"]):
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 0, done.output
    with_levels, without = (
        next(value for value in arguments if isinstance(value, ClusterSettings))
        for arguments, _ in asked
    )
    assert without.priorities == ONE_LEVEL
    # Which thresholds suit is for the cluster to say, that knows the network.
    assert with_levels.priorities is None


def test_a_cluster_of_a_file_has_the_rates_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Network] = []
    monkeypatch.setattr(
        cluster_commands, "run_emulated_cluster", lambda network, *rest: started.append(network)
    )
    file = tmp_path / "network.json"
    save_network(load_network("star:2", link_rate="8M"), file)
    for arguments in ([str(file)], ["star:2"], [str(file), "--link-rate", "5M"]):
        done = CliRunner().invoke(app, ["cluster", *arguments])
        assert done.exit_code == 0, done.output
    assert [network.links[0].bandwidth for network in started] == [8e6, 25e6, 5e6]


def test_switches_have_one_address_each() -> None:
    network = load_network("leaf-spine:1x1")
    given = ["l1=192.0.2.1:9559", "s1=unix:/run/s1"]
    assert switch_addresses(network, given) == {"l1": "192.0.2.1:9559", "s1": "unix:/run/s1"}
    assert switch_addresses(network, []) == {}
    for addresses, words in (
        ([*given, "l1=192.0.2.2:9559"], "switch l1: two addresses"),
        (["l1=[2001:db8::1]:9559"], "switch s1: no address"),
        (["l1=192.0.2.1"], "expected NAME=HOST:PORT or NAME=unix:PATH"),
        (["l1"], "expected NAME=HOST:PORT or NAME=unix:PATH"),
        (["l9=192.0.2.1:9559"], "has none of this name, but l1, s1"),
    ):
        with pytest.raises(InputError, match=words):
            switch_addresses(network, addresses)
