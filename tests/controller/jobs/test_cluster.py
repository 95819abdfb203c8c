"""A cluster in one process: the controller's service, agents' processes as threads, TCP between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cli.job_commands import job_dict, make_submission
from collectives.plan import DataType, JobPlan
from controller import clock
from controller.api.client import ControllerClient, NoClusterError
from controller.api.cluster_service import ClusterService
from controller.api.service import ControllerService, at
from controller.dataplane.driver import DriverError
from controller.dataplane.rules import SwitchRules
from controller.jobs.agents import AgentRegistry
from controller.jobs.cluster import Cluster
from controller.jobs.job_queue import JobSpec
from controller.jobs.manager import Manager
from controller.jobs.reoptimizer import Reoptimizer, free_network
from controller.jobs.replanning import ReplanningPolicy
from controller.jobs.sharing import SharingPolicy
from controller.telemetry.state import StateError
from host_agent.io.controller_client import AgentStream
from host_agent.node.bandwidth import Counted
from host_agent.node.client import NodeClient
from host_agent.node.serve import NodeServer
from network.loaders import load_network
from network.model import Network
from packet_io.port import MemoryPort
from protocol import hopsum_pb2 as pb
from protocol.channel import ControllerError, Tls, server_credentials
from tests.host_agent.node.test_schedule_member import on_loopback
from tests.support.machine import PATIENCE as WAIT

pytestmark = pytest.mark.usefixtures("time_to_plan")

GOING = ("queued", "waiting", "running")


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline, f"waited {WAIT} s for {what}"
        threading.Event().wait(0.02)


def local(name: str, link_rate: float | None = None) -> Network:
    """A network whose hosts are reached on this machine, and by this test alone."""
    return on_loopback(load_network(name, link_rate=link_rate))


class World:
    """A controller in a thread, and agents' processes in others."""

    def __init__(
        self,
        folder: Path,
        name: str = "star:4",
        tls: Tls | None = None,
        grace: float = WAIT,
        link_rate: float | None = None,
        replanning: ReplanningPolicy | None = None,
    ) -> None:
        self.network = local(name, link_rate)
        self._replanning = replanning
        self.journal = folder / "jobs"
        self._grace = grace
        self.address = f"unix:{folder}/controller" if tls is None else "localhost:0"
        self.refuse = False
        self._tls = tls
        self._agents: list[tuple[threading.Thread, int]] = []
        self.nodes: list[NodeServer] = []
        self.start()
        self.queries = ControllerClient(self.address)

    def start(self) -> None:
        """Start the controller."""
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._up.wait(WAIT)
        if self._tls is None:
            until(self._answers, "an answer of the controller")

    def _answers(self) -> bool:
        """Whether it can be asked: gRPC tries again only a second after it found nobody."""
        try:
            ControllerClient(self.address).jobs()
        except ControllerError:
            return False
        return True

    def stop(self) -> None:
        """Stop the controller; its jobs and the agents are left as they are."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT)

    async def _install(self, rules: Mapping[str, SwitchRules]) -> None:
        if self.refuse:
            raise DriverError("s1", "it will not")

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        cluster = Cluster(
            Manager(self.network, self._install),
            book=self.journal,
            grace=self._grace,
            replanning=self._replanning,
        )
        self._manager = cluster.manager
        service = ClusterService(cluster)
        await cluster.restore()
        credentials = None if self._tls is None else server_credentials(self._tls)
        agents = ControllerService(
            cluster.manager.agents,
            cluster.manager.server_restarted,
            why_waiting=lambda number: cluster.why_waiting(cluster.book.find(number)),
        )
        async with agents.serve(at(self.address, credentials), [service.add_to]) as bound:
            self.address = bound
            self._up.set()
            await self._stop.wait()
            await cluster.close()

    def call(self, work: Callable[[Manager], Any]) -> None:
        """Let the manager do something, to its end."""

        async def call() -> None:
            done = work(self._manager)
            if asyncio.iscoroutine(done):
                await done

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(call(), self._loop).result(WAIT)

    def agent(self, host: str, tls: Tls | None = None) -> list[Exception]:
        """Start an agent's process; gives the list of what ends it."""
        ended: list[Exception] = []
        stop = os.eventfd(0, os.EFD_NONBLOCK)
        client = NodeClient(self.address, host, tls)
        port = MemoryPort.pair()[0]
        node = NodeServer(client, port, lambda now: Counted(0, 0, now), stop, tls)
        self.nodes.append(node)

        def run() -> None:
            try:
                node.run()
            except ControllerError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._agents.append((thread, stop))
        return ended

    def agents(self, *hosts: str) -> None:
        """Start agents and wait until they are attached."""
        for host in hosts:
            self.agent(host)
        until(lambda: set(hosts) <= self.attached(), f"agents on {', '.join(hosts)}")

    def attached(self) -> set[str]:
        return {node.host for node in self.queries.nodes() if node.attached}

    def stop_agent(self, number: int) -> None:
        thread, stop = self._agents[number]
        os.eventfd_write(stop, 1)
        thread.join(WAIT)

    def state(self, name: str) -> str:
        return self.queries.job(name).state

    def exact(self, name: str) -> None:
        """Wait for the end of a job, which must be a good one."""
        until(lambda: self.state(name) not in GOING, f"the end of {name}")
        job = job_dict(self.queries.job(name))
        assert job["state"] == "finished", job["reason"]
        assert job["checked"] > 0
        assert job["wrong"] == 0

    def close(self) -> None:
        for number in range(len(self._agents)):
            self.stop_agent(number)
        self.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def ring(name: str, workers: str, rounds: int = 3) -> pb.Submission:
    return make_submission(name, workers, elements=5000, rounds=rounds, algorithm="ring")


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


def test_a_job_that_waits_for_a_switch_outlasts_the_deadline_of_its_fragments(
    world: World,
) -> None:
    """No switch sums here: fragments are sent into nothing."""
    world.agents("h1", "h2", "h3")
    submission = make_submission("patient", "h1,h2", "h3", rounds=1)
    submission.task = json.dumps(json.loads(submission.task) | {"options": {"deadline": 8.0}})
    world.queries.submit(submission)
    until(lambda: world.state("patient") == "running", "the start")
    world.call(lambda manager: manager.mark_failed(["s1"]))
    started = time.monotonic()
    until(lambda: time.monotonic() > started + 10.0, "more than the deadline")
    assert world.state("patient") == "running"
    world.call(lambda manager: manager.recover(["s1"]))
    until(lambda: world.state("patient") == "failed", "the deadline")
    assert "no result for 8" in world.queries.job("patient").reason


def test_a_job_says_which_agent_has_not_joined(world: World) -> None:
    """One agent is not there, and one is attached but never attends."""
    world.agents("h1", "h2")
    deaf = NodeClient(world.address, "h3")
    try:
        deaf.open()
        until(lambda: "h3" in world.attached(), "the agent of h3")
        world.queries.submit(ring("mute", "h1,h2,h3,h4"))
        until(lambda: world.queries.job("mute").reason.count("agent") == 2, "the others")
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
    task = json.loads(broken.task)
    broken.task = json.dumps(task | {"options": {"nope": 1}})
    world.queries.submit(ring("never", "h1,h4"))
    world.queries.submit(broken)
    world.queries.submit(ring("good", "h1,h2,h3"))
    until(lambda: world.state("broken") == "failed", "the broken job's end")
    assert "TaskError: the job's task cannot be read" in world.queries.job("broken").reason
    world.exact("good")
    assert world.queries.cancel("never").state == "cancelled"
    assert world.queries.cancel("never").reason == "cancelled by its owner"
    world.queries.submit(ring("broken", "h1,h2"))
    world.exact("broken")


def test_an_embedding_with_helping_hosts(tmp_path: Path) -> None:
    """Of a torus four hosts work; others sum for them, as far as they have an agent."""
    world = World(tmp_path, "torus:3x3", link_rate=1e8)
    workers = "h1,h3,h5,h9"
    try:
        world.agents("h1", "h3", "h5", "h9", "h4", "h6", "h7", "h8")
        for name, dtype in (("exact", DataType.INT32), ("near", DataType.FLOAT32)):
            submission = make_submission(
                name, workers, elements=20_003, dtype=dtype, algorithm="embedding"
            )
            world.queries.submit(submission)
            world.exact(name)
            servers = world.queries.job(name).servers
            assert servers and set(servers) <= {"h4", "h6", "h7", "h8"}
        submission = make_submission("named", workers, "h8", algorithm="embedding")
        world.queries.submit(submission)
        world.exact("named")
        assert set(world.queries.job("named").servers) <= {"h8"}
    finally:
        world.close()


def test_an_embedding_goes_on_after_the_controller_was_restarted(tmp_path: Path) -> None:
    """Its weights and topologies are kept: another choice would be a wrong sum."""
    world = World(tmp_path, "torus:3x3", link_rate=1e8)
    try:
        world.agents("h1", "h3", "h5", "h9", "h4", "h6", "h7", "h8")
        world.queries.submit(
            make_submission("long", "h1,h3,h5,h9", rounds=60, algorithm="embedding")
        )
        until(lambda: world.queries.job("long").round > 0, "rounds")
        servers = list(world.queries.job("long").servers)
        world.stop()
        world.start()
        world.exact("long")
        assert list(world.queries.job("long").servers) == servers
    finally:
        world.close()


@pytest.mark.parametrize("every", [2, 5])
def test_weights_change_at_borders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """With the links' loads other hosts sum other parts; relays come and go; the controller too."""
    random = Random(every)
    cuts: list[object] = []

    async def recut(self: Reoptimizer, elements: int, now: float) -> JobPlan:
        loads = {
            link: random.choice([0.1, 0.5, 1.0]) for link in self.manager.network.directed_links()
        }
        view = free_network(self.manager.working(), loads)
        plan = await self.manager.replan(self.job, on=view, recut=True)
        cuts.append(plan.cut)
        return plan

    monkeypatch.setattr(Reoptimizer, "recut", recut)
    monkeypatch.setattr("controller.jobs.cluster.WATCH_SECONDS", 0.01)
    policy = ReplanningPolicy(every=every, pause=0.0)
    world = World(tmp_path, "torus:3x3", link_rate=1e8, replanning=policy)
    try:
        world.agents("h1", "h3", "h5", "h9", "h4", "h6", "h7", "h8")
        for name, dtype in (("exact", DataType.INT32), ("near", DataType.FLOAT32)):
            submission = make_submission(
                name, "h1,h3,h5,h9", rounds=40, elements=5003, dtype=dtype, algorithm="embedding"
            )
            world.queries.submit(submission)
            until(lambda n=name: world.queries.job(n).round > 5, "rounds")  # type: ignore[misc]
            world.stop()
            world.start()
            world.exact(name)
    finally:
        world.close()
    assert len(set(map(str, cuts))) > 4


def test_an_embedding_needs_links_with_bandwidth(world: World) -> None:
    with pytest.raises(ControllerError, match="needs one on every link"):
        world.queries.submit(make_submission("free", "h1,h2", algorithm="embedding"))
    assert not world.queries.jobs()


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


# -- Bad input: an error at the caller, and all else goes on


def wrong_jobs() -> Iterator[tuple[str, dict[str, Any], str]]:
    """What is wrong, fields of a submission of job `b` on h1 and h2, and what the error says."""
    yield "name", {"name": "a"}, "there is a job 'a' already: number 1"
    yield "letters", {"name": "b c"}, "job name 'b c'"
    yield "worker", {"workers": ["h1", "h9"]}, "there is no host 'h9'"
    yield "server", {"servers": ["h9"]}, "there is no host 'h9'"
    yield "twice", {"workers": ["h1", "h1"]}, "worker h1 is named more than once"
    yield "both", {"servers": ["h2"]}, "cannot be worker and server"
    yield "many", {"workers": [], "worker_count": 99}, "99 workers: expected 1 to 3"
    yield "algorithm", {"algorithm": "gossip"}, "algorithm 'gossip': expected one of"
    yield "planner", {"planner": "guess"}, "there is no planner 'guess'"
    yield "lanes", {"lanes": 64}, "64 lanes a packet; the switches .* compiled for 256"
    yield "slots", {"window": 8192}, "8192 slots: its quota at switch s1 is 2048 of 4096"
    yield "window", {"window": 48}, "window 48: expected a power of two"
    yield "text", {"task": "{"}, "its task is '{': expected a JSON object"
    yield "list", {"task": "[]"}, "expected a JSON object"


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
        else:
            setattr(submission, name, value)
    with pytest.raises(ControllerError, match=f"INVALID_ARGUMENT: .*{words}"):
        shared.queries.submit(submission)
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


@pytest.mark.parametrize("shares", [("0", "0"), ("3/2", "-1/2")])
def test_weights_that_cannot_be_met_end_their_job_only(
    world: World, shares: tuple[str, str]
) -> None:
    world.agents("h1", "h2")
    world.queries.submit(ring("good", "h1,h2", rounds=30))
    submission = ring("bad", "h1,h2")
    trees = [["h1", {"h2": "h1"}, shares[0]], ["h2", {"h1": "h2"}, shares[1]]]
    task = json.loads(submission.task) | {"schedule": "multi-tree", "trees": trees}
    submission.task = json.dumps(task)
    world.queries.submit(submission)
    until(lambda: world.state("bad") not in GOING, "the end of bad")
    assert world.state("bad") == "failed"
    assert "shares" in world.queries.job("bad").reason
    world.exact("good")


@pytest.mark.parametrize("lie", [-1.0, float("inf"), float("nan"), 1e12])
def test_an_agent_that_lies_about_its_bandwidth(tmp_path: Path, lie: float) -> None:
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


def test_levels_follow_progress_and_reach_the_hosts(tmp_path: Path) -> None:
    network = local("star:3")
    told: list[tuple[str, int, int]] = []

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(Manager(network, install))

        def send(host: str, command: pb.NodeCommand) -> None:
            if command.WhichOneof("message") == "priority":
                told.append((host, command.priority.job, command.priority.level))

        cluster.send = send
        await cluster.submit(JobSpec("a", ("h1", "h2"), ("h3",)))
        assert told == [("h1", 1, 0), ("h2", 1, 0), ("h3", 1, 0)]
        told.clear()

        def report(host: str, round_: int, now: float) -> None:
            features = pb.JobFeatures(job=1, round=round_, sent_bytes=50_000_000)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), now)

        report("h3", 0, 1.0)
        report("h2", 9, 2.0)
        report("h1", 10, 3.0)
        assert not told
        report("h2", 10, 4.0)
        assert told == [("h1", 1, 2), ("h2", 1, 2), ("h3", 1, 2)]
        with pytest.raises(StateError, match=r"h1 reports that it sends -1\.0 bit/s"):
            lie = pb.InterfaceReport(peer="s1", sent=-1.0)
            cluster.take_report("h1", pb.NodeReport(interfaces=[lie]), 5.0)
        await cluster.cancel(cluster.book.find(1))
        report("h1", 11, 6.0)
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
    """The older job goes on in a new epoch, without the switch."""
    network = local("star:4")
    commands: list[tuple[str, str | None]] = []

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(Manager(network, install), sharing=SharingPolicy(Fraction(1)))
        cluster.send = lambda host, command: commands.append((host, command.WhichOneof("message")))
        old = await cluster.submit(JobSpec("old", ("h1", "h2"), ("h3",), window=4096))
        assert cluster.manager.slots_held("s1") == {1: 4096}
        assert (await cluster.submit(JobSpec("equal", ("h1", "h2"), ("h3",)))).state == "queued"
        await cluster.cancel(cluster.book.find(name="equal"))
        for host in ("h1", "h2"):
            features = pb.JobFeatures(job=1, round=10, sent_bytes=1)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), time.monotonic())
        assert cluster.priorities.levels() == {1: 1}
        new = await cluster.submit(JobSpec("new", ("h1", "h2"), ("h3",)))
        assert new.state == "waiting"
        assert (old.bypassed, new.bypassed) == (("s1",), ())
        assert cluster.manager.slots_held("s1") == {3: 64}
        tracker = cluster.manager.agents.tracker(1)
        assert tracker.plan.epoch == 2
        assert not tracker.plan.trees[0].parts["s1"].aggregate
        await cluster.cancel(new)
        assert cluster.manager.regained(1) == {"s1"}
        await cluster.cancel(old)
        assert old.bypassed == ()
        await cluster.close()

    asyncio.run(main())


# -- A restart of the controller


def test_jobs_go_on_after_a_restart_and_are_exact(world: World) -> None:
    world.agents("h1", "h2", "h3")
    world.queries.submit(ring("before", "h1,h2"))
    world.exact("before")
    world.queries.submit(ring("long", "h1,h2,h3", rounds=400))
    world.queries.submit(ring("early", "h1,h4"))
    until(lambda: world.state("long") == "running", "its start")
    started = world.queries.job("long").started
    for _ in range(2):
        seen = world.queries.job("long").round
        until(lambda seen=seen: world.queries.job("long").round > seen, "rounds")  # type: ignore[misc]
        world.stop()
        world.start()
    assert world.state("long") == "running"
    with pytest.raises(ControllerError, match="there is a job 'long' already: number 2"):
        world.queries.submit(ring("long", "h1,h2"))
    world.exact("long")
    assert [(job.job, job.name) for job in world.queries.jobs()] == [
        (1, "before"), (2, "long"), (3, "early"),
    ]  # fmt: skip
    world.exact("before")
    # Its time goes on over the restarts, as its agents do.
    assert world.queries.job("long").started == started
    assert world.state("early") == "waiting"
    until(lambda: {"h1", "h2", "h3"} <= world.attached(), "the agents")
    world.agents("h4")
    world.exact("early")


def test_a_job_that_ends_while_no_controller_is_there(world: World) -> None:
    world.agents("h1", "h2")
    world.queries.submit(ring("short", "h1,h2", rounds=60))
    until(lambda: world.queries.job("short").round > 0, "rounds")
    world.stop()
    until(lambda: all_finished(world), "the end of the rounds")
    world.start()
    world.exact("short")


def test_a_controller_that_dies_as_a_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is written down before the agents know of it, who leave then."""
    monkeypatch.setattr("controller.jobs.cluster.WATCH_SECONDS", 3600.0)
    with contextlib.closing(World(tmp_path)) as world:
        world.agents("h1", "h2")
        world.queries.submit(ring("short", "h1,h2"))
        until(lambda: '"finished"' in world.journal.read_text(), "the end in the journal")
        until(lambda: not any(node.agent.members for node in world.nodes), "the agents' leaving")
        assert world.state("short") == "running"
        world.stop()
        world.start()
        world.exact("short")


def all_finished(world: World) -> bool:
    """Whether every agent here has said its last word, to nobody."""
    clients = [member.stream for node in world.nodes for member in node.agent.members.values()]
    return all(client._session.state == pb.FINISHED for client in clients)


class Clock:
    """The controller's clock, but `ahead` seconds before it."""

    ahead = 0.0

    def now(self) -> float:
        return clock.now() + self.ahead


def test_a_worker_that_does_not_come_back_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Clock()
    monkeypatch.setattr("controller.jobs.cluster.clock", later)
    with contextlib.closing(World(tmp_path)) as world:
        world.agents("h1", "h2", "h3")
        in_network(world, "long", "h1,h2", "h3")
        world.stop()
        world.stop_agent(0)
        until(lambda: "closing job 1" not in threads(), "h1's end")
        world.start()
        until(lambda: world.attached() == {"h2", "h3"}, "the return of the others")
        later.ahead = WAIT
        until(lambda: world.state("long") == "failed", "the end of long")
        assert "h1: not back since the restart" in world.queries.job("long").reason
        world.agents("h1")
        world.queries.submit(ring("again", "h1,h2"))
        world.exact("again")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_plans_are_made_anew_after_a_restart_with_what_is_fixed_for_a_job(tmp_path: Path) -> None:
    network = local("leaf-spine:2x2", link_rate=1e8)

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    def controller() -> Cluster:
        return Cluster(Manager(network, install), book=tmp_path / "jobs")

    async def main() -> None:
        cluster = controller()
        spec = JobSpec("two", ("h1", "h3"), ("h2", "ps"), planner="multi-tree")
        await cluster.submit(spec)
        await cluster.submit(JobSpec("one", 2))
        await cluster.manager.replan(1)
        plan = cluster.manager.plan_of(1)
        assert plan.epoch == 2
        await cluster.close()
        again = controller()
        await again.restore()
        newer = again.manager.plan_of(1)
        assert (newer.epoch, again.manager.plan_of(2).epoch) == (3, 2)
        assert newer.window == plan.window
        assert [tree.share for tree in newer.trees] == [tree.share for tree in plan.trees]
        assert [job.state for job in again.book] == ["waiting", "waiting"]
        await again.close()
        other = Cluster(Manager(local("star:2", link_rate=1e8), install), book=tmp_path / "jobs")
        await other.restore()
        assert [job.state for job in other.book] == ["failed", "failed"]
        reason = other.book.find(1).reason
        assert "cannot go on after a restart of the controller: worker 'h3'" in reason
        await other.close()

    asyncio.run(main())


# -- Servers


def in_network(world: World, name: str, workers: str, server: str) -> None:
    """A job that begins, and waits for switches that are not there."""
    world.queries.submit(make_submission(name, workers, server))
    until(lambda: world.state(name) == "running", f"the start of {name}")


def test_another_host_serves_where_a_server_is_lost_for_good(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path, grace=0.5)) as world:
        world.agents("h1", "h2", "h3", "h4")
        in_network(world, "a", "h1,h2", "h3")
        world.stop_agent(2)
        until(lambda: world.queries.job("a").epoch == 2, "another server")
        assert list(world.queries.job("a").servers) == ["h4"]
        agents = world.queries.status()[0].agents
        until(lambda: all_running(world), f"h4's beginning: {agents}")
        world.stop_agent(3)
        until(lambda: world.state("a") == "failed", "the end of a")
        assert world.queries.job("a").reason == (
            "h4: its connection ended, and no other host can serve"
        )


def all_running(world: World) -> bool:
    (job,) = world.queries.status()
    states = {agent.host: pb.AgentState.Name(agent.state) for agent in job.agents}
    return states == dict.fromkeys(("h1", "h2", "h4"), "RUNNING")


def test_a_server_that_comes_back_in_time_stays(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path)) as world:
        world.agents("h1", "h2", "h3", "h4")
        in_network(world, "a", "h1,h2", "h3")
        world.stop_agent(2)
        until(lambda: "h3" not in world.attached(), "h3's end")
        world.agents("h3")
        until(lambda: world.queries.job("a").epoch == 2, "a new epoch")
        assert list(world.queries.job("a").servers) == ["h3"]


def test_nothing_is_left_of_a_job_whose_rules_switches_refuse(world: World) -> None:
    world.refuse = True
    with pytest.raises(ControllerError, match="UNAVAILABLE: switch s1: it will not"):
        world.queries.submit(make_submission("a", "h1,h2"))
    assert world.state("a") == "failed"
    world.refuse = False
    assert world.queries.submit(make_submission("a", "h1,h2")).state == "waiting"
    assert world.queries.cancel("2").state == "cancelled"


def test_a_controller_of_one_run_has_no_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with ControllerService(AgentRegistry()).serve(at(f"unix:{tmp_path}/c")) as address:
            queries = ControllerClient(address)
            assert await asyncio.to_thread(queries.jobs) == []
            with pytest.raises(NoClusterError, match="`hopsum cluster`"):
                await asyncio.to_thread(queries.submit, ring("a", "h1,h2"))

    asyncio.run(main())


# -- TLS


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certify(
    folder: Path, name: str, authority: str | None = None, names: str = "localhost"
) -> None:
    """Make `name`.pem and `name`.key, an authority of its own or certified by another.

    The common name is `name`; `names` go to subjectAltName.
    """
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    if authority is None:
        openssl(
            folder, "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-subj", f"/CN={name}", "-days", "2",
        )  # fmt: skip
        return
    openssl(
        folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr",
        "-subj", f"/CN={name}",
    )  # fmt: skip
    (folder / "names").write_text(
        "subjectAltName=" + ",".join(f"DNS:{each}" for each in names.split(","))
    )
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
        "-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2",
        "-extfile", "names",
    )  # fmt: skip


def test_tls_lets_in_who_is_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(tmp_path, "ours")
    certify(tmp_path, "theirs")
    for name in ("controller", "h1", "person"):
        certify(tmp_path, name, "ours")
    certify(tmp_path, "machine", "ours", "h2,localhost")
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
