"""`hopsum doctor --config` and `--controller`: a finding a thing, and what to do about it."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli import configuration_check
from hopsum.cli.configuration_check import check_controller, check_file
from hopsum.cli.main import app
from hopsum.controller.api.authority import CertificateSubject, certify, open_authority
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.version import version


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = tmp_path / "certificates"
    authority = open_authority(folder, 100)
    certify(folder, authority, CertificateSubject("controller", ["localhost"]), 100)
    certify(folder, authority, CertificateSubject("old", ["localhost"]), 5)
    return folder


def checked(tmp_path: Path, text: str) -> dict[str, tuple[bool, str]]:
    """The findings for a file: whether it is valid, and the messages."""
    path = tmp_path / "hopsum.toml"
    path.write_text(text)
    return {f.name: (f.ok, f.found if f.ok else f.without) for f in check_file(path)}


def test_a_good_file_is_good(tmp_path: Path, certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as switch:
        port = switch.getsockname()[1]
        found = checked(
            tmp_path,
            f"""
            [controller]
            network = "star:2"
            listen = "127.0.0.1:0"
            jobs = "jobs"
            tls-authority = "certificates/authority.pem"
            tls-certificate = "certificates/controller.pem"
            tls-key = "certificates/controller.key"
            switch.s1 = "127.0.0.1:{port}"
            [agent]
            host = "h1"
            interface = "lo"
            controller = "127.0.0.1:{port}"
            tls-authority = "certificates/authority.pem"
            """,
        )
    # Offloads are as the machine has them.
    found.pop("offloads of lo")
    assert all(ok for ok, _ in found.values()), found
    assert found["[controller] network"] == (True, "star:2, 3 hosts, 1 switches")
    assert found["switch s1"] == (True, "accepts connections")
    assert "MTU" in found["interface lo"][1]


def test_all_interfaces_of_an_agent_are_checked(tmp_path: Path) -> None:
    found = checked(tmp_path, '[agent]\ninterface = ["0@lo", "1@nonesuch"]')
    assert found["interface lo"][0]
    assert not found["interface nonesuch"][0]
    found = checked(tmp_path, '[agent]\ninterface = ["lo", "1@lo"]')
    assert found["[agent] interface"] == (
        False,
        "'lo': expected PORT@INTERFACE such as 0@eth1, each port once",
    )


def test_each_error_is_named(tmp_path: Path, certificates: Path) -> None:
    (certificates / "old.key").chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    found = checked(
        tmp_path,
        f"""
        [controller]
        network = "leaf-spine:1x1"
        listen = "192.0.2.1:9600"
        jobs = "/nonesuch/jobs"
        tls-certificate = "certificates/old.pem"
        tls-key = "certificates/old.key"
        switch = {{l1 = "127.0.0.1:{port}", s1 = "unix:/nonesuch"}}
        [agent]
        interface = "nonesuch"
        tls-key = "certificates/old.key"
        """,
    )
    for name, words in {
        "[controller] listen": "Cannot assign requested address",
        "[controller] jobs": "no such folder; create it",
        "[controller] certificates": "valid for 5 more days; make new ones",
        "switch l1": "Connection refused; is it up",
        "switch s1": "No such file or directory; is it up",
        "interface nonesuch": "not found; this machine has",
        "[agent] certificates": "a key without its certificate",
    }.items():
        ok, said = found[name]
        assert not ok, name
        assert words in said, name
    assert found["[agent] the rest"] == (True, "on the command line")


@pytest.mark.parametrize(
    ("options", "ok", "words"),
    [
        ("", True, "its own user"),
        ('listen = "unix:/run/c"\ngroup = "root"', True, "its own user, and group root"),
        ('listen = "unix:/run/c"\ngroup = "none-such"', False, "no such group on this machine"),
        ('listen = "127.0.0.1:0"', False, "anyone could operate the cluster"),
        ('listen = "127.0.0.1:0"\ninsecure = true', True, "everybody (insecure)"),
        (
            'listen = "127.0.0.1:0"\ntls-authority = "certificates/authority.pem"',
            True,
            "who has a certificate of the authority",
        ),
    ],
)
def test_whom_the_controller_lets_in(
    tmp_path: Path, certificates: Path, options: str, ok: bool, words: str
) -> None:
    found = checked(tmp_path, f'[controller]\nnetwork = "star:2"\n{options}\n')
    good, said = found["[controller] access"]
    assert (good, words in said) == (ok, True), said


def test_a_readable_private_key_is_reported(tmp_path: Path, certificates: Path) -> None:
    (certificates / "controller.key").chmod(0o640)
    text = """[controller]
    network = "star:2"
    tls-certificate = "certificates/controller.pem"
    tls-key = "certificates/controller.key"
    """
    ok, said = checked(tmp_path, text)["[controller] certificates"]
    assert (ok, "chmod 600" in said) == (False, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[controller]\nlanes = 'x'", "lanes: 'x': expected a whole number"),
        (
            "[controler]",
            "expected the tables [controller] and [agent], or one of them; found [controler]",
        ),
        ("", "found nothing"),
        ("[controller]\nlanes = 32", "network: missing"),
        ("[controller]\nnetwork = 'moon'", "'moon' is neither a file nor the name of a topology"),
        ("[controller]\nnetwork = 'star:2'\nswitch.s2 = 'a:1'", "star:2 has none of this name"),
        ("[controller]\nnetwork = 'star:2'\nswitch.s1 = 'a'", "expected NAME=HOST:PORT"),
        (
            "[controller]\nnetwork = 'leaf-spine:1x1'\nswitch.s1 = 'unix:/x'",
            "switch l1: no address; expected addresses for all switches",
        ),
    ],
)
def test_an_unusable_file_is_reported(tmp_path: Path, text: str, words: str) -> None:
    found = checked(tmp_path, text)
    assert any(words in said for ok, said in found.values() if not ok), found


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 1
    assert "".join(done.output.split("\n")).count("none.toml") == 1


def test_the_command_ends_with_what_it_found(tmp_path: Path) -> None:
    path = tmp_path / "hopsum.toml"
    path.write_text("[controller]\nnetwork = 'star:2'")
    done = CliRunner().invoke(app, ["doctor", "--config", str(path)])
    assert (done.exit_code, "wrong" in done.stderr) == (0, False), done.stderr
    path.write_text("[controller]\nnetwork = 'star:0'")
    done = CliRunner().invoke(app, ["doctor", "--config", str(path), "--json"])
    assert done.exit_code == 1
    assert [finding["ok"] for finding in json.loads(done.stdout)][:2] == [True, False]


class FakeClient:
    """A controller whose clock is `ahead` seconds before ours."""

    version = version()
    ahead = 0.0

    def __init__(self, address: str | None) -> None:
        self.address = str(address)

    def state(self) -> pb.ClusterState:
        return pb.ClusterState(date=time.time() + self.ahead, version=self.version)


@pytest.mark.parametrize(
    ("there", "ahead", "wrong"),
    [
        (version(), 0.0, set()),
        ("9.9", 0.0, {"versions"}),
        ("", 0.0, {"versions"}),
        (version(), 60.0, {"clocks"}),
        (version(), -60.0, {"clocks"}),
    ],
)
def test_versions_and_clocks_are_compared(
    there: str, ahead: float, wrong: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClient, "version", there)
    monkeypatch.setattr(FakeClient, "ahead", ahead)
    monkeypatch.setattr("hopsum.controller.api.client.ControllerClient", FakeClient)
    assert {f.name for f in check_controller("here") if not f.ok} == wrong


def test_an_unreachable_controller_is_reported() -> None:
    [finding] = check_controller("unix:/nonesuch")
    assert not finding.ok
    assert "unix:/nonesuch" in finding.without


def test_interfaces_of_a_switchs_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        configuration_check, "command_output", lambda _: "tcp-segmentation-offload: on\n"
    )
    monkeypatch.setattr(configuration_check, "LEAST_MTU", 1)
    command = ["doctor", "--interface", "lo", "--interface", "nonesuch"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("good   interface lo: ")
    assert lines[1].startswith("wrong  offloads of lo: on: tcp-segmentation-offload; ")
    assert lines[2].startswith("wrong  interface nonesuch: not found; this machine has ")
    assert len(lines) == 3


def test_offloads_that_hurt_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for printed, words in (
        ("Features for x:\ntcp-segmentation-offload: on\nrx-checksumming: on\n", "tso off gso off"),
        ("Features for x:\ntcp-segmentation-offload: off\n", None),
    ):
        monkeypatch.setattr(configuration_check, "command_output", lambda _, said=printed: said)
        lines = CliRunner().invoke(app, ["doctor", "--interface", "lo"]).stderr.splitlines()
        [line] = [line for line in lines if "offloads of lo" in line]
        assert line.startswith("good" if words is None else "wrong")
        assert words is None or words in line
