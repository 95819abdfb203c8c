"""Commands that bring clusters up: what they ask of what they start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.testing import CliRunner

from hopsum.cli import cluster_commands
from hopsum.cli.cluster_commands import switch_addresses
from hopsum.cli.main import app
from hopsum.controller.jobs.journal import JournalError
from hopsum.controller.jobs.priorities import ONE_LEVEL, PriorityPolicy, suitable_policy
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.network.loaders import load_network, save_network
from hopsum.network.model import Network, NetworkError
from hopsum.protocol.errors import InputError
from tests.support.machine import PATIENCE, until


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        (["cluster", "star:2"], "run_emulated_cluster"),
        (["controller", "serve", "star:2", "--link-rate", "25M"], "run_controller"),
    ],
)
def test_priorities_and_replanning_follow_the_options(
    command: list[str], starts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cluster_commands, "switch_drivers", lambda *arguments: None)
    monkeypatch.setattr(
        cluster_commands, starts, lambda *arguments, **options: asked.append((arguments, options))
    )
    for options in (
        [],
        ["--no-priorities"],
        ["--early-iterations", "3"],
        ["--queue-thresholds", "1MB,64MiB", "--replan-every", "7"],
    ):
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 0, done.output
    with_levels, without, early, chosen = (
        next(value for value in arguments if isinstance(value, ClusterSettings))
        for arguments, _ in asked
    )
    assert without.priorities == ONE_LEVEL
    assert with_levels.priorities == suitable_policy(load_network("star:2", link_rate="25M"))
    assert early.priorities == replace(with_levels.priorities, early_iterations=3)
    assert chosen.priorities == PriorityPolicy(thresholds=(1_000_000, 2**26))
    assert (early.replanning.every, chosen.replanning.every) == (50, 7)
    for options in (["--early-iterations", "3"], ["--queue-thresholds", "1MB"]):
        done = CliRunner().invoke(app, [*command, "--no-priorities", *options])
        assert isinstance(done.exception, InputError)
        assert "jobs have no priorities with --no-priorities" in str(done.exception)
    for sizes in ("1MB,1MB", "ten", "1,2,3,4,5,6,7"):
        done = CliRunner().invoke(app, [*command, "--queue-thresholds", sizes])
        assert done.exit_code == 2
        assert "--queue-thresholds" in done.output


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


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        (["cluster"], "run_emulated_cluster"),
        (["controller", "serve"], "run_controller"),
    ],
)
def test_the_largest_piece_of_a_file_is_taken_on_request(
    command: list[str], starts: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Network] = []
    monkeypatch.setattr(cluster_commands, "switch_drivers", lambda *arguments: None)
    monkeypatch.setattr(cluster_commands, starts, lambda network, *rest: started.append(network))
    graph: nx.Graph[str] = nx.path_graph(["a", "b", "c"])
    graph.add_edge("d", "e")
    file = tmp_path / "pieces.graphml"
    nx.write_graphml(graph, file)
    refused = CliRunner().invoke(app, [*command, str(file)])
    assert isinstance(refused.exception, NetworkError)
    done = CliRunner().invoke(app, [*command, str(file), "--largest-piece"])
    assert done.exit_code == 0, done.output
    assert [len(network.switches) for network in started] == [3]


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


@pytest.mark.slow
def test_a_second_controller_of_a_journal_is_refused(tmp_path: Path) -> None:
    """`recover` too, until the first has ended, whichever signal ends it."""
    hopsum = Path(sys.executable).with_name("hopsum")
    journal = tmp_path / "jobs"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    def command(name: str) -> list[str]:
        options = ["--jobs", "jobs", "--listen", f"unix:{tmp_path}/{name}"]
        return [str(hopsum), "controller", "serve", "star:2", *options]

    @contextlib.contextmanager
    def serving(name: str) -> Iterator[int]:
        """A controller that owns the journal; it is killed at the end."""
        with subprocess.Popen(command(name), cwd=tmp_path, env=environment) as process:
            try:
                until(lambda: owned_by(process.pid) and journal.exists(), f"the {name} controller")
                yield process.pid
            finally:
                process.kill()

    def owned_by(pid: int) -> bool:
        lock = tmp_path / "jobs.lock"
        return lock.exists() and f'"pid": {pid},' in lock.read_text()

    with serving("first") as first:
        second = subprocess.run(
            command("second"),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert second.returncode == 1
        assert "jobs: another controller uses this journal" in second.stderr
        assert f"process {first} of this machine; end it first" in second.stderr
        with journal.open("ab") as file:
            file.write(b"damaged\n")
        recovered = CliRunner().invoke(app, ["controller", "recover", str(journal)])
        assert isinstance(recovered.exception, JournalError)
        assert "another controller uses this journal" in str(recovered.exception)
    recovered = CliRunner().invoke(app, ["controller", "recover", str(journal)])
    assert recovered.exit_code == 0, recovered.output
    with serving("third"):
        pass
