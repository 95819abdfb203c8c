"""Authentication of the controller's callers, and what each role may do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.controller.api.callers import MAY_CALL, Caller, caller_by_user, owner_of
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.jobs import job_table
from hopsum.host_agent.node.client import NodeClient
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError, Tls, server_credentials
from hopsum.protocol.roles import ROLE_URI, Role
from tests.support.agent_client import AgentClient
from tests.support.certificates import certify
from tests.support.cluster_world import World, ring
from tests.support.machine import until


@pytest.mark.slow
def test_tls_lets_in_who_is_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(tmp_path, "ours")
    certify(tmp_path, "theirs")
    for name in ("controller", "h1"):
        certify(tmp_path, name, "ours")
    certify(tmp_path, "person", "ours", role="operator")
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


@pytest.mark.slow
def test_a_certificate_is_of_one_host(tmp_path: Path) -> None:
    """An agent that is certified as h1 is refused as h2, of the cluster and of a job."""
    certify(tmp_path, "ours")
    for name in ("controller", "h1", "h2"):
        certify(tmp_path, name, "ours")
    certify(tmp_path, "person", "ours", role="operator")

    def files(name: str) -> Tls:
        return Tls(tmp_path / "ours.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")

    with contextlib.closing(World(tmp_path, tls=files("controller"))) as world:
        world.queries = ControllerClient(world.address, files("person"))
        words = "its certificate is for h1, localhost, not of host h2; expected one with the common"
        ended = world.agent("h2", files("h1"))
        until(lambda: bool(ended), "the end of a stranger's agent")
        assert words in str(ended[0])
        assert world.attached() == set()
        job = world.queries.submit(ring("secret", "h1,h2"))
        client = AgentClient(world.address, job.job, "h2", tls=files("h1"))
        with contextlib.closing(client), pytest.raises(ControllerError, match=words):
            client.register()
        client = AgentClient(world.address, job.job, "h2", tls=files("h2"))
        with contextlib.closing(client):
            assert client.register().plan.workers == ("h1", "h2")


@pytest.mark.slow
def test_an_agent_whose_tls_files_are_replaced_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certify(tmp_path, "ours")
    certify(tmp_path, "controller", "ours")
    # One of both: a host's name, and the role of a person.
    certify(tmp_path, "h1", "ours", role="operator")
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


def test_every_method_says_who_may_call_it() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Controller"].methods_by_name
    assert set(MAY_CALL) == set(methods)
    for method, roles in MAY_CALL.items():
        assert Role.OPERATOR in roles, method
    # Who looks changes nothing.
    changing = {"Serve", "Attend", "Submit", "Cancel"}
    assert {m for m, roles in MAY_CALL.items() if Role.VIEWER not in roles} == {
        *changing,
        "Inspect",
        "SetLink",
    }


def refusal(ask: Callable[[], object]) -> str:
    """The error of a call that is not allowed."""
    with pytest.raises(ControllerError) as caught:
        ask()
    return str(caught.value)


@pytest.mark.slow
def test_roles_of_certificates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each caller may do what its role allows; a refusal names caller and role."""
    certify(tmp_path, "ours")
    certify(tmp_path, "controller", "ours")
    certify(tmp_path, "h1", "ours")
    for role in (Role.OPERATOR, Role.USER, Role.VIEWER):
        certify(tmp_path, f"a-{role}", "ours", role=role)
    certify(tmp_path, "other", "ours", role="user")
    certify(tmp_path, "king", "ours", role="king")
    certify(tmp_path, "both", "ours", f"DNS:localhost,URI:{ROLE_URI}viewer", role="operator")

    def files(name: str) -> Tls:
        return Tls(tmp_path / "ours.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")

    with contextlib.closing(World(tmp_path, tls=files("controller"))) as world:

        def client(name: str) -> ControllerClient:
            return ControllerClient(world.address, files(name))

        world.queries = client("a-operator")
        user, other, viewer, host = map(client, ("a-user", "other", "a-viewer", "h1"))
        mine = user.submit(ring("mine", "h1,h2"))
        assert mine.owner == "CN=a-user"
        assert [job.owner for job in viewer.jobs()] == ["CN=a-user"]
        words = "Submit: you are CN=a-viewer, viewer; it requires role agent or operator or user"
        refused = refusal(lambda: viewer.submit(ring("no", "h1,h2")))
        assert refused == words
        assert "Cancel: you are CN=a-viewer" in refusal(lambda: viewer.cancel("mine"))
        assert "Cancel: you are CN=h1, agent" in refusal(lambda: host.cancel("mine"))
        assert "Jobs: you are CN=h1, agent" in refusal(host.jobs)
        assert "Inspect: you are CN=a-user" in refusal(lambda: user.slots("s1", 0, 1))
        words = "job 1 (mine) belongs to CN=a-user, and you are CN=other, user; only its owner"
        assert words in refusal(lambda: other.cancel("mine"))
        assert world.state("mine") not in ("cancelled", "draining")
        # A user cannot register as an agent.
        world.agent("h3", files("a-user"))
        words = "Serve: you are CN=a-user, user; it requires role agent or operator"
        until(lambda words=words: words in caplog.text, "the complaint of an agent that is none")  # type: ignore[misc]
        assert world.attached() == set()
        for name, words in (
            ("king", "CN=king: the certificate's roles are king; expected one of operator, user"),
            ("both", "CN=both: the certificate's roles are viewer, operator; expected one of"),
        ):
            assert refusal(client(name).jobs).startswith(words)
        # Its owner may, and an operator.
        assert user.cancel("mine").outcome == "cancelled"
        user.submit(ring("second", "h1,h2"))
        assert world.queries.cancel("second").outcome == "cancelled"


def test_the_owner_in_a_submission_is_ignored(world: World) -> None:
    submission = ring("mine", "h1,h2")
    submission.owner = "CN=somebody"
    assert world.queries.submit(submission).owner == str(caller_by_user(os.geteuid()).name)


def test_owners_outlive_the_controller(world: World) -> None:
    owner = world.queries.submit(ring("mine", "h1,h2")).owner
    world.stop()
    world.start()
    assert world.queries.job("mine").owner == owner


def test_jobs_of_one_who_is_no_operator_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table, "MOST_OWNED", 1)
    world.queries.submit(ring("first", "h1,h2"))
    world.queries.submit(ring("second", "h1,h2"))
    somebody = Caller("somebody", Role.USER)
    monkeypatch.setattr("hopsum.controller.api.listening.caller_by_user", lambda uid: somebody)
    world.stop()
    world.start()
    world.queries.submit(ring("third", "h1,h2"))
    words = "job fourth: somebody has 1 jobs queued or running; expected fewer than 1: cancel"
    assert words in refusal(lambda: world.queries.submit(ring("fourth", "h1,h2")))


@pytest.mark.parametrize(
    ("role", "uid", "owner", "limited"),
    [
        (Role.OPERATOR, 0, "root", False),
        (Role.OPERATOR, 1001, "user 1001 through root", True),
        (Role.AGENT, 1001, "user 1001 through root", True),
        (Role.AGENT, 0, "root", True),
        # Only agents speak for others.
        (Role.USER, 1001, "root", True),
    ],
)
def test_jobs_that_agents_submit_belong_to_users(
    role: Role, uid: int, owner: str, limited: bool
) -> None:
    assert owner_of(Caller("root", role), uid) == (owner, limited)


def test_users_behind_an_agent_are_told_apart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table, "MOST_OWNED", 1)

    def submit(name: str, uid: int) -> str:
        submission = ring(name, "h1,h2")
        submission.user, submission.limited = uid, False
        return world.queries.submit(submission).owner

    assert submit("first", 1001) != submit("second", 1002)
    assert "user 1001 through" in refusal(lambda: submit("third", 1001))
