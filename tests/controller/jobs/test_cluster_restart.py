"""Jobs outlive their controller, and go on under the next."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from hopsum.controller import clock
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.procedures import Compute, Procedure
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.host_agent.io.controller_client import AgentStream
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError
from tests.support.agent_client import AgentClient
from tests.support.cluster_world import World, in_network, local, ring
from tests.support.machine import PATIENCE, until
from tests.support.manager import manage


@pytest.mark.slow
def test_jobs_go_on_after_a_restart_and_are_exact(world: World) -> None:
    world.agents("h1", "h2", "h3")
    world.queries.submit(ring("before", "h1,h2"))
    world.exact("before")
    world.queries.submit(ring("long", "h1,h2,h3", rounds=250))
    world.queries.submit(ring("early", "h1,h4"))
    until(lambda: world.state("long") == "running", "its start")
    started = world.queries.job("long").started
    for _ in range(2):
        seen = world.queries.job("long").round
        until(lambda seen=seen: world.queries.job("long").round > seen, "rounds")  # type: ignore[misc]
        world.stop()
        world.start()
    assert world.state("long") == "running"
    with pytest.raises(ControllerError, match="a job 'long' exists already: number 2"):
        world.queries.submit(ring("long", "h1,h2"))
    world.exact("long")
    assert [(job.job, job.name) for job in world.queries.jobs()] == [
        (1, "before"), (2, "long"), (3, "early"),
    ]  # fmt: skip
    world.exact("before")
    # Its elapsed time includes the restarts, as its agents do.
    assert world.queries.job("long").started == started
    assert world.state("early") == "waiting"
    until(lambda: {"h1", "h2", "h3"} <= world.attached(), "the agents")
    world.agents("h4")
    world.exact("early")


@pytest.mark.slow
def test_a_job_that_ends_while_no_controller_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: set[str] = set()
    finish = AgentStream.finished

    def note(stream: AgentStream, report: pb.Report) -> None:
        finish(stream, report)
        finished.add(stream.host)

    monkeypatch.setattr(AgentStream, "finished", note)
    world.agents("h1", "h2")
    world.queries.submit(ring("short", "h1,h2", rounds=60))
    until(lambda: world.queries.job("short").round > 0, "rounds")
    world.stop()
    until(lambda: finished == {"h1", "h2"}, "the end of the rounds")
    world.start()
    world.exact("short")


CONTROLLER = """
import sys
from pathlib import Path
from tests.support.cluster_world import World
world = World(Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
world.stop()
"""


@pytest.mark.long
def test_a_controller_process_that_hangs_costs_a_job_nothing(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its agents have given up their connections when it goes on."""
    world.stop()
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        world.agents("h1", "h2", "h3")
        world.queries.submit(ring("long", "h1,h2,h3", rounds=1_000_000))
        until(lambda: world.queries.job("long").round > 0, "rounds")
        try:
            other.send_signal(signal.SIGSTOP)
            until(lambda: caplog.text.count("ping timeout") >= 6, "the end of six streams")
        finally:
            other.send_signal(signal.SIGCONT)
        until(lambda: world.attached() == {"h1", "h2", "h3"}, "the agents")
        seen = world.queries.job("long").round
        until(lambda: world.queries.job("long").round > seen, "rounds")
        assert (world.state("long"), world.queries.job("long").epoch) == ("running", 1)
        world.stop_agent(0)
        until(lambda: world.state("long") == "failed", "the end")
        assert "h1: its connection ended" in world.queries.job("long").reason
        other.stdin.close()
    world.start()


def test_a_controller_that_dies_as_a_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is recorded before the agents are informed and leave."""
    dies = threading.Event()

    def wait(self: Epochs, number: int) -> Procedure[None]:
        yield Compute(dies.wait)

    monkeypatch.setattr(Epochs, "remove", wait)
    with contextlib.closing(World(tmp_path)) as world:
        world.agents("h1", "h2")
        world.queries.submit(ring("short", "h1,h2"))
        until(lambda: '"finished"' in world.journal.read_text(), "the end in the journal")
        until(lambda: not any(node.agent.members for node in world.nodes), "the agents' leaving")
        assert world.state("short") == "draining"
        monkeypatch.undo()
        dies.set()
        world.stop()
        world.start()
        world.exact("short")


class Clock:
    """The controller's clock, but `ahead` seconds before it."""

    ahead = 0.0

    def now(self) -> float:
        return clock.now() + self.ahead


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False])
def test_a_worker_that_does_not_come_back_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """The job's start may be missing in the journal, as after a full disk."""
    later = Clock()
    monkeypatch.setattr("hopsum.controller.jobs.cluster.clock", later)
    with contextlib.closing(World(tmp_path)) as world:
        world.agents("h1", "h2", "h3")
        in_network(world, "long", "h1,h2", "h3")
        world.stop()
        world.stop_agent(0)
        until(lambda: "closing job 1" not in threads(), "h1's end")
        if not recorded:
            lines = world.journal.read_text().splitlines(keepends=True)
            world.journal.write_text("".join(line for line in lines if '"running"' not in line))
        world.start()
        until(lambda: world.attached() == {"h2", "h3"}, "the return of the others")
        later.ahead = PATIENCE
        until(lambda: world.state("long") == "failed", "the end of long")
        assert "h1: not attached since the restart" in world.queries.job("long").reason
        world.agents("h1")
        world.queries.submit(ring("again", "h1,h2"))
        world.exact("again")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_plans_stay_after_a_restart_or_are_made_anew_with_what_is_fixed_for_a_job(
    tmp_path: Path,
) -> None:
    network = local("leaf-spine:2x2", link_rate=1e8)

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    def controller() -> Cluster:
        return Cluster(network, install, ClusterSettings(journal=tmp_path / "jobs"))

    async def main() -> None:
        cluster = controller()
        spec = JobSpec("two", ("h1", "h3"), ("h2", "ps"), planner="multi-tree")
        await cluster.submit(spec)
        await cluster.submit(JobSpec("one", 2))
        await manage(cluster).replan(1)
        plan = cluster.plans.plan_of(1)
        assert plan.epoch == 2
        cluster.jobs.start(cluster.jobs.find(1))
        await cluster.close()
        again = controller()
        await again.restore()
        # Nothing has changed for the running job; the other may have ended without a record.
        assert again.plans.plan_of(1) == plan
        assert again.plans.plan_of(2).epoch == 2
        assert again.plans.slots_held("l1") == cluster.plans.slots_held("l1")
        await manage(again).fail(["s1"])
        around = again.plans.plan_of(1)
        assert around.epoch == 3
        await again.close()
        again = controller()
        await again.restore()
        # What was avoided may be back.
        newer = again.plans.plan_of(1)
        assert newer.epoch == 4
        assert newer.window == plan.window
        assert [tree.share for tree in newer.trees] == [tree.share for tree in plan.trees]
        assert [job.state for job in again.jobs] == ["running", "waiting"]
        await again.close()
        other = Cluster(
            local("star:2", link_rate=1e8),
            install,
            ClusterSettings(journal=tmp_path / "jobs"),
        )
        await other.restore()
        assert [job.state for job in other.jobs] == ["failed", "failed"]
        reason = other.jobs.find(1).reason
        assert "cannot be recovered after a restart of the controller: worker 'h3'" in reason
        await other.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "report",
    [
        pb.Report(),
        pb.Report(
            verdict=pb.Verdict(checked=2**64 - 1, wrong=2**64 - 1, max_error=math.nan),
            intervals=pb.Intervals(starts=[math.nan, -1e308, math.inf], finishes=[0.0]),
            retransmissions=2**64 - 1,
            forms=["", "\0" * 1000],
            outcome=pb.Outcome(accuracy=-math.inf, losses=[math.nan] * 10_000, cycles=2**32 - 1),
        ),
    ],
    ids=["nothing", "nonsense"],
)
def test_reports_are_kept_as_they_are(world: World, report: pb.Report) -> None:
    world.queries.submit(ring("odd", "h1,h2"))
    streams = [AgentClient(world.address, 1, host) for host in ("h1", "h2")]
    for stream in streams:
        stream.register(PATIENCE)
        stream.ready()
    for stream in streams:
        stream.wait_for_start(PATIENCE)
        stream.finished(report)
    until(lambda: world.state("odd") == "finished", "the end of odd")
    for stream in streams:
        stream.close()
    received = {host: report.SerializeToString() for host in ("h1", "h2")}
    for _ in range(2):
        reports = world.queries.job("odd").reports
        assert {host: reports[host].SerializeToString() for host in reports} == received
        world.stop()
        world.start()
    world.agents("h1", "h2")
    world.queries.submit(ring("good", "h1,h2"))
    world.exact("good")
