"""TLS between controller, agents and people: who is let in, and as whom."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.client import ControllerClient
from host_agent.io.controller_client import AgentStream
from host_agent.node.client import NodeClient
from protocol.channel import ControllerError, Tls, server_credentials
from tests.support.certificates import certify
from tests.support.cluster_world import World, ring
from tests.support.machine import until


@pytest.mark.slow
def test_tls_lets_in_who_is_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(tmp_path, "ours")
    certify(tmp_path, "theirs")
    for name in ("controller", "h1", "person"):
        certify(tmp_path, name, "ours")
    certify(tmp_path, "machine", "ours", "DNS:h2,DNS:localhost")
    certify(tmp_path, "stranger", "theirs")

    def files(name: str) -> Tls:
        return Tls(tmp_path / "ours.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")

    for part, file in (
        ("AUTHORITY", "ours.pem"),
        ("CERTIFICATE", "person.pem"),
        ("KEY", "person.key"),
    ):
        monkeypatch.setenv(f"HOPSUM_TLS_{part}", str(tmp_path / file))
    with contextlib.closing(World(tmp_path, tls=files("controller"))) as world:
        world.agent("h3")
        world.agent("h4", files("stranger"))
        for host, name in (("h1", "h1"), ("h2", "machine")):
            world.agent(host, files(name))
        until(lambda: {"h1", "h2"} <= world.attached(), "agents with certificates")
        world.queries.submit(ring("secret", "h1,h2"))
        world.exact("secret")
        assert world.attached() == {"h1", "h2"}
        with pytest.raises(ControllerError, match="UNAVAILABLE"):
            ControllerClient(world.address, files("stranger")).jobs()
    with pytest.raises(ControllerError, match=r"TLS: .*none\.pem cannot be read"):
        server_credentials(Tls(None, tmp_path / "none.pem", tmp_path / "controller.key"))


def test_a_certificate_is_of_one_host(tmp_path: Path) -> None:
    """An agent that is certified as h1 is refused as h2, of the cluster and of a job."""
    certify(tmp_path, "ours")
    for name in ("controller", "h1", "h2"):
        certify(tmp_path, name, "ours")

    def files(name: str) -> Tls:
        return Tls(tmp_path / "ours.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")

    with contextlib.closing(World(tmp_path, tls=files("controller"))) as world:
        world.queries = ControllerClient(world.address, files("h1"))
        words = "its certificate is of h1, localhost, not of host h2; expected one with the common"
        ended = world.agent("h2", files("h1"))
        until(lambda: bool(ended), "the end of a stranger's agent")
        assert words in str(ended[0])
        assert world.attached() == set()
        job = world.queries.submit(ring("secret", "h1,h2"))
        client = AgentStream(world.address, job.job, "h2", tls=files("h1"))
        with contextlib.closing(client), pytest.raises(ControllerError, match=words):
            client.register()
        client = AgentStream(world.address, job.job, "h2", tls=files("h2"))
        with contextlib.closing(client):
            assert client.register().plan.workers == ("h1", "h2")


@pytest.mark.slow
def test_an_agent_whose_tls_files_are_replaced_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certify(tmp_path, "ours")
    for name in ("controller", "h1"):
        certify(tmp_path, name, "ours")
    own = Tls(tmp_path / "ours.pem", tmp_path / "h1.pem", tmp_path / "h1.key")
    controller = replace(
        own, certificate=tmp_path / "controller.pem", key=tmp_path / "controller.key"
    )
    with contextlib.closing(World(tmp_path, tls=controller)) as world:
        world.queries = ControllerClient(world.address, own)
        world.agent("h1", own)
        until(lambda: "h1" in world.attached(), "the agent")
        away = (tmp_path / "h1.pem").rename(tmp_path / "away")
        unreadable = f"TLS: {tmp_path}/h1.pem cannot be read: No such file"
        with pytest.raises(ControllerError, match=unreadable):
            NodeClient(world.address, "h1", own)
        world.stop()
        until(lambda: unreadable in caplog.text, "the agent's complaint")
        away.rename(tmp_path / "h1.pem")
        world.start()
        until(lambda: "h1" in world.attached(), "the agent, again")
