"""Jobs of a cluster: they share hosts and slots, wait, end and fail, each alone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.hosts import MOST_FEATURES
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.controller.telemetry.state import ReportError
from hopsum.host_agent.node.client import NodeClient
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError
from tests.support.cluster_world import World, local, ring
from tests.support.machine import until
from tests.support.manager import join


def test_jobs_that_share_hosts_run_at_once_and_are_exact(world: World) -> None:
    world.agents("h1", "h2", "h3")
    names = ["a", "b", "c"]
    for name, workers in zip(names, ("h1,h2", "h2,h3", "h3,h1,h2"), strict=True):
        world.queries.submit(ring(name, workers))
    for name in names:
        world.exact(name)
    assert [job.name for job in world.queries.jobs()] == names


def test_a_job_waits_for_agents_that_come_later(world: World) -> None:
    world.agents("h1")
    world.queries.submit(ring("early", "h1,h2"))
    assert world.state("early") == "waiting"
    world.agents("h2")
    world.exact("early")


@pytest.mark.slow
def test_a_job_says_which_agent_has_not_joined(world: World) -> None:
    """One agent is not there, and one is attached but never attends."""
    world.agents("h1", "h2")
    deaf = NodeClient(world.address, "h3")
    try:
        deaf.open()
        until(lambda: "h3" in world.attached(), "the agent of h3")
        world.queries.submit(ring("mute", "h1,h2,h3,h4"))
        until(lambda: world.queries.job("mute").reason.count("agent") == 2, "the others")
        until(lambda: "joining" not in world.queries.job("mute").reason, "patience with h3")
        assert re.fullmatch(
            r"agent on h3 attached but has not joined the job for \d+ s, "
            r"no agent attached on h4 for \d+ s",
            world.queries.job("mute").reason,
        )
        (job,) = world.queries.status()
        assert "agent on h3 attached but has not joined" in job.waits_for
        assert world.queries.cancel("mute").reason == "cancelled by its owner"
    finally:
        deaf.close()


def test_a_job_that_fails_or_is_cancelled_ends_alone(world: World) -> None:
    world.agents("h1", "h2", "h3")
    broken = ring("broken", "h1,h2")
    broken.task.options.deadline = -1.0
    world.queries.submit(ring("never", "h1,h4"))
    world.queries.submit(broken)
    world.queries.submit(ring("good", "h1,h2,h3"))
    until(lambda: world.state("broken") == "failed", "the broken job's end")
    reason = world.queries.job("broken").reason
    assert "TaskError: the job's task cannot be followed: option deadline -1.0" in reason
    world.exact("good")
    assert world.queries.cancel("never").state == "cancelled"
    assert world.queries.cancel("never").reason == "cancelled by its owner"
    world.queries.submit(ring("broken", "h1,h2"))
    world.exact("broken")


@pytest.mark.slow
def test_an_agent_that_dies_ends_its_jobs_and_may_come_again(world: World) -> None:
    world.agents("h1", "h2", "h3")
    world.queries.submit(ring("long", "h1,h2", rounds=100_000))
    until(lambda: world.queries.job("long").round > 0, "rounds")
    world.stop_agent(0)
    until(lambda: world.state("long") == "failed", "the end of long")
    assert "h1: its connection ended" in world.queries.job("long").reason
    world.queries.submit(ring("other", "h2,h3"))
    world.exact("other")
    world.agents("h1")
    world.queries.submit(ring("again", "h1,h2"))
    world.exact("again")


def test_levels_follow_progress_and_reach_the_hosts(tmp_path: Path) -> None:
    network = local("star:3")
    received: list[tuple[str, int, int]] = []
    """Host, level, and the tensors until which it has the first."""

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(network, install)

        def send(host: str, command: pb.NodeCommand) -> None:
            if command.WhichOneof("message") == "priority":
                assert command.priority.job == 1
                received.append((host, command.priority.level, command.priority.early_tensors))

        cluster.send = send
        await cluster.submit(JobSpec("a", ("h1", "h2"), ("h3",)))
        assert received == [("h1", 1, 10), ("h2", 1, 10), ("h3", 0, 0)]
        received.clear()

        def report(host: str, round_: int, now: float) -> None:
            features = pb.JobFeatures(job=1, round=round_, sent_bytes=50_000_000)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), now)

        report("h3", 0, 1.0)
        # Workers count for themselves: they hear what is theirs then.
        assert received == [("h1", 2, 10), ("h2", 2, 10), ("h3", 0, 0)]
        received.clear()
        report("h2", 9, 2.0)
        report("h1", 10, 3.0)
        assert not received
        report("h2", 10, 4.0)
        assert received == [("h1", 2, 10), ("h2", 2, 10), ("h3", 2, 0)]
        with pytest.raises(ReportError, match=r"h1 reports that it sends -1\.0 bit/s"):
            lie = pb.InterfaceReport(peer="s1", sent=-1.0)
            cluster.take_report("h1", pb.NodeReport(interfaces=[lie]), 5.0)
        await cluster.cancel(cluster.jobs.find(1))
        report("h1", 11, 6.0)
        await cluster.close()

    asyncio.run(main())


def test_a_job_that_is_ending_ends_no_more_after_close() -> None:
    """Else a controller that stops writes to the journal of its successor."""
    released = asyncio.Event()
    ending = asyncio.Event()

    async def main() -> None:
        async def install(rules: Mapping[str, SwitchRules]) -> None:
            if job is not None:
                ending.set()
                await released.wait()

        job = None
        cluster = Cluster(local("star:3"), install)
        job = await cluster.submit(JobSpec("a", ("h1", "h2"), ("h3",)))
        stream = join(cluster, "h1", job.number, pb.EXPECTED)
        cluster.receive(stream, pb.AgentMessage(failed=pb.Failed(reason="broken")))
        await asyncio.wait_for(ending.wait(), 60)
        await cluster.close()
        released.set()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert job.state is JobState.DRAINING

    asyncio.run(main())


def test_an_agent_has_no_say_in_jobs_of_others() -> None:
    """Else it could push a job to the last priority by what it claims to have sent for it."""
    received: list[int] = []

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(local("star:4"), install)
        cluster.send = lambda host, command: received.append(command.priority.level)
        job = await cluster.submit(JobSpec("a", ("h1", "h2"), ("h3",)))
        received.clear()
        for now in range(1, 20):
            features = pb.JobFeatures(job=1, round=1000, sent_bytes=now * 10**12)
            cluster.take_report("h4", pb.NodeReport(jobs=[features]), float(now))
            for host in ("h1", "h2"):
                features = pb.JobFeatures(job=1, round=now, sent_bytes=1000 * now)
                cluster.take_report(host, pb.NodeReport(jobs=[features]), float(now))
        assert set(received) <= {1}
        assert job.sent_bytes == 2 * 19_000
        many = pb.NodeReport(jobs=[pb.JobFeatures(job=1)] * (MOST_FEATURES + 1))
        with pytest.raises(ReportError, match="h1 reports on 4097 jobs; expected at most 4096"):
            cluster.take_report("h1", many, 20.0)
        awaited = pb.NodeReport(awaited=range(MOST_FEATURES + 1))
        with pytest.raises(ReportError, match="h1 awaits 4097 jobs; expected at most 4096"):
            cluster.take_report("h1", awaited, 20.0)
        await cluster.close()

    asyncio.run(main())


def test_counters_of_a_job_do_not_fall_when_an_agent_restarts() -> None:
    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(local("star:4"), install)
        cluster.send = lambda host, command: None
        job = await cluster.submit(JobSpec("a", ("h1", "h2"), ("h3",)))

        def report(host: str, sent: int, resent: int) -> tuple[int, int]:
            features = pb.JobFeatures(job=1, sent_bytes=sent, retransmissions=resent)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), time.monotonic())
            return job.sent_bytes, job.retransmissions

        assert report("h1", 100, 10) == (100, 10)
        assert report("h3", 1000, 0) == (1100, 10)
        assert report("h1", 5, 1) == (1105, 11)
        assert report("h1", 20, 2) == (1120, 12)
        # What came after the last report of this kind.
        job.reports = {"h1": pb.Report(sent_bytes=25, retransmissions=2), "h2": pb.Report()}
        assert (job.sent_bytes, job.retransmissions) == (1125, 12)
        # All workers sum the same tensors.
        for host, summed, total in (("h1", 800, 800), ("h2", 400, 800), ("h2", 100, 800)):
            features = pb.JobFeatures(job=1, summed_bytes=summed)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), time.monotonic())
            assert job.summed_bytes == total
        await cluster.cancel(job)
        await cluster.close()

    asyncio.run(main())


def test_jobs_queue_for_slots(world: World) -> None:
    def with_window(name: str, window: int) -> pb.JobInfo:
        submission = make_submission(name, "h1,h2")
        submission.window = window
        return world.queries.submit(submission)

    assert with_window("half", 2048).state == "waiting"
    assert with_window("other", 2048).state == "waiting"
    queued = with_window("next", 1024)
    assert queued.state == "queued"
    assert "4096 of 4096 are in use" in queued.reason
    assert with_window("small", 64).state == "queued"
    with pytest.raises(ControllerError, match="its quota at switch s1 is 2048 of 4096"):
        with_window("huge", 4096)
    world.queries.cancel("half")
    until(lambda: world.state("small") == "waiting", "the queue")
    assert world.state("next") == "waiting"
    assert world.queries.cancel("next").state == "cancelled"
    (use,) = world.queries.use().slots
    assert (use.slots, use.quota, dict(use.held)) == (4096, 2048, {2: 2048, 4: 64})


def test_a_new_job_takes_slots_from_one_that_has_run_for_long() -> None:
    """The older job continues in a new epoch, without the switch."""
    network = local("star:4")
    commands: list[tuple[str, str | None]] = []

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(network, install, ClusterSettings(sharing=SharingPolicy(Fraction(1))))
        cluster.send = lambda host, command: commands.append((host, command.WhichOneof("message")))
        old = await cluster.submit(JobSpec("old", ("h1", "h2"), ("h3",), window=4096))
        assert cluster.plans.slots_held("s1") == {1: 4096}
        assert (await cluster.submit(JobSpec("equal", ("h1", "h2"), ("h3",)))).state == "queued"
        await cluster.cancel(cluster.jobs.find(name="equal"))
        for host in ("h1", "h2"):
            features = pb.JobFeatures(job=1, round=10, sent_bytes=1)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), time.monotonic())
        assert cluster.priorities.levels() == {1: 1}
        new = await cluster.submit(JobSpec("new", ("h1", "h2"), ("h3",)))
        assert new.state == "waiting"
        assert (old.bypassed, new.bypassed) == ({"s1"}, frozenset())
        assert cluster.plans.slots_held("s1") == {3: 64}
        tracker = cluster.engine.tracker(1)
        assert tracker.plan.epoch == 2
        assert not tracker.plan.trees[0].parts["s1"].aggregate
        await cluster.cancel(new)
        assert cluster.plans.regained(1) == {"s1"}
        await cluster.cancel(old)
        assert old.bypassed == frozenset()
        await cluster.close()

    asyncio.run(main())
