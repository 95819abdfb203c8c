"""`hopsum exec`: a command on a host, by its exit code and environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.network.loaders import load_network


class Hosts:
    """Hosts of which each is a variable of the environment."""

    def command(self, arguments: Sequence[str], host: str) -> list[str]:
        return ["env", f"HOST={host}", *arguments]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MARK": "of the cluster"}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(address="unix:/there", state=lambda: SimpleNamespace(network=None))
    monkeypatch.setattr("hopsum.cli.exec_command.connect", lambda address: client)
    network = load_network("star:2")
    monkeypatch.setattr("hopsum.collectives.messages.network_from", lambda message: network)
    monkeypatch.setattr("hopsum.mininet_topos.hosts.hosts_of_controller", lambda *there: Hosts())


def run(*words: str) -> int:
    return CliRunner().invoke(app, ["exec", *words], catch_exceptions=False).exit_code


def test_options_after_the_host_are_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import os, sys; print(os.environ['HOST'], os.environ['MARK'], sys.argv[1:])"
    assert run("h2", sys.executable, "-c", program, "--controller", "x", "-h") == 0
    assert capfd.readouterr().out == "h2 of the cluster ['--controller', 'x', '-h']\n"


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_the_commands(end: str, code: int) -> None:
    assert run("h1", sys.executable, "-c", f"import os, sys; {end}") == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("h9", "true"), "h9: no host of star:2; expected h1, h2, ps"),
        (("h1", "/nonesuch"), "/nonesuch: expected a program"),
    ],
)
def test_what_cannot_run_is_an_error(words: tuple[str, str], message: str) -> None:
    done = CliRunner().invoke(app, ["exec", *words])
    assert message in str(done.exception)
