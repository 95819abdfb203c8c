"""Bad input to a cluster: an error for the caller, and everything else continues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.host_agent.node.client import NodeClient
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError
from tests.support.cluster_world import GOING, World, ring
from tests.support.machine import until

pytestmark = pytest.mark.usefixtures("time_to_plan")


def test_an_embedding_needs_links_with_bandwidth(world: World) -> None:
    with pytest.raises(ControllerError, match="needs one on every link"):
        world.queries.submit(make_submission("free", "h1,h2", algorithm="embedding"))
    assert not world.queries.jobs()


def wrong_jobs() -> Iterator[tuple[str, dict[str, Any], str]]:
    """The fault, fields of a submission of job `b` on h1 and h2, and the error."""
    yield "name", {"name": "a"}, "a job 'a' exists already: number 1"
    yield "letters", {"name": "b c"}, "job name 'b c'"
    yield "worker", {"workers": ["h1", "h9"]}, "there is no host 'h9'"
    yield "server", {"servers": ["h9"]}, "there is no host 'h9'"
    yield "twice", {"workers": ["h1", "h1"]}, "worker h1 is named more than once"
    both = {"servers": ["h2"], "planner": "multi-tree"}
    yield "both", both, "cannot be worker and server of one job with this planner"
    yield "many", {"workers": [], "worker_count": 99}, "99 workers: expected 1 to 3"
    yield "algorithm", {"algorithm": "gossip"}, "algorithm 'gossip': expected one of"
    yield "planner", {"planner": "guess"}, "there is no planner 'guess'"
    yield "lanes", {"lanes": 64}, "64 lanes a packet; the switches .* compiled for 256"
    yield "slots", {"window": 8192}, "8192 slots: its quota at switch s1 is 2048 of 4096"
    yield "window", {"window": 48}, "window 48: expected a power of two"
    many = {"algorithm": "server", "window": 1 << 21}
    yield "windows", many, "window 2097152: expected a power of two, at most 65536"
    yield "task", {"task": pb.Task()}, "its task has no workload; expected one with kind, workers"
    nothing = pb.Task(workload=pb.Workload())
    yield "workload", {"task": nothing}, "workload: kind is missing"


@pytest.mark.parametrize(("fields", "words"), [case[1:] for case in wrong_jobs()],
                         ids=[case[0] for case in wrong_jobs()])  # fmt: skip
def test_wrong_jobs_are_refused_at_the_caller(
    shared: World, fields: dict[str, Any], words: str
) -> None:
    known = [job.name for job in shared.queries.jobs()]
    submission = make_submission("b", "h1,h2", "h3")
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(submission, name)[:]
            getattr(submission, name).extend(value)
        elif isinstance(value, pb.Task):
            submission.task.CopyFrom(value)
        else:
            setattr(submission, name, value)
    with pytest.raises(ControllerError, match=words) as caught:
        shared.queries.submit(submission)
    # The controller's sentence: neither its address nor gRPC's name for it.
    assert not re.search("controller at|INVALID_ARGUMENT", str(caught.value))
    assert [job.name for job in shared.queries.jobs()] == known
    assert shared.state("a") == "running"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a job `a` that runs all the time."""
    made = World(tmp_path_factory.mktemp("shared"))
    made.agents("h1", "h2")
    made.queries.submit(ring("a", "h1,h2", rounds=1_000_000))
    until(lambda: made.state("a") == "running", "the start of a")
    yield made
    made.queries.cancel("a")
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("shares", [("0", "0"), ("3/2", "-1/2")])
def test_weights_that_cannot_be_met_end_their_job_only(
    world: World, shares: tuple[str, str]
) -> None:
    world.agents("h1", "h2")
    world.queries.submit(ring("good", "h1,h2", rounds=30))
    submission = ring("bad", "h1,h2")
    submission.task.schedule = "multi-tree"
    submission.task.trees.add(root="h1", parents={"h2": "h1"}, share=shares[0])
    submission.task.trees.add(root="h2", parents={"h1": "h2"}, share=shares[1])
    world.queries.submit(submission)
    until(lambda: world.state("bad") not in GOING, "the end of bad")
    assert world.state("bad") == "failed"
    assert "shares" in world.queries.job("bad").reason
    world.exact("good")


@pytest.mark.slow
@pytest.mark.parametrize("lie", [-1.0, float("inf"), float("nan"), 1e12])
def test_false_bandwidth_reports_are_refused(tmp_path: Path, lie: float) -> None:
    world = World(tmp_path, link_rate=1e9)
    client = NodeClient(world.address, "h4")
    try:
        world.agents("h1", "h2")
        world.queries.submit(ring("a", "h1,h2", rounds=30))
        client.open()
        until(lambda: bool(client.commands()), "the liar's welcome")
        true = pb.NodeReport(interfaces=[pb.InterfaceReport(peer="s1", sent=1e6, received=0.0)])
        client.report(true)
        until(lambda: use(world, "h4", "s1") > 0, "the report")
        before = use(world, "h4", "s1")
        for report, words in (
            (pb.InterfaceReport(peer="s1", sent=lie), "h4 reports that it sends"),
            (pb.InterfaceReport(peer="s1", sent=1.0, free_sent=lie), "h4 reports"),
            (pb.InterfaceReport(peer="h1", sent=1.0), "h4 .*h1"),
        ):
            client.report(pb.NodeReport(interfaces=[report]))
            assert re.search(words, refusal(client))
        assert use(world, "h4", "s1") == before
        world.exact("a")
        assert "h4" in world.attached()
    finally:
        client.close()
        world.close()


def use(world: World, sender: str, receiver: str) -> float:
    links = {(link.sender, link.receiver): link.used for link in world.queries.use().links}
    return links[sender, receiver]


def refusal(client: NodeClient) -> str:
    """The next reason why a report is not used."""
    reasons: list[str] = []

    def came() -> bool:
        reasons.extend(
            command.report_refused.reason
            for command in client.commands()
            if command.WhichOneof("message") == "report_refused"
        )
        return bool(reasons)

    until(came, "a refusal")
    return reasons[0]


def test_two_agents_with_one_name(world: World) -> None:
    world.agents("h1")
    (error,) = wait_for_end(world.agent("h1"))
    assert "host h1 has an agent process already" in str(error)
    (error,) = wait_for_end(world.agent("h9"))
    assert "there is no host 'h9'" in str(error)
    assert world.attached() == {"h1"}


def wait_for_end(ended: list[Exception]) -> list[Exception]:
    until(lambda: bool(ended), "an agent's end")
    return ended


def test_nothing_is_left_of_a_job_whose_rules_switches_refuse(world: World) -> None:
    world.refuse = True
    with pytest.raises(ControllerError, match=r"^switch s1: it will not"):
        world.queries.submit(make_submission("a", "h1,h2"))
    assert world.state("a") == "failed"
    world.refuse = False
    assert world.queries.submit(make_submission("a", "h1,h2")).state == "waiting"
    assert world.queries.cancel("2").state == "cancelled"
