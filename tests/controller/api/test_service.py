from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.messages import network_from, network_message, plan_from, plan_message
from collectives.plan import JobPlan, PlanError, Results
from controller.api.client import ControllerClient
from controller.api.service import ControllerService, ServiceError, at
from controller.dataplane.rules import Loss, SwitchRules, losses_on
from controller.jobs.agents import AgentRegistry, UnknownJobError
from controller.jobs.manager import Manager, next_request
from controller.jobs.tracker import Outgoing, Tracker
from host_agent.io.controller_client import AgentLostError, AgentStream
from host_agent.server import Server
from host_agent.session import AgentLost, AllDone, PlanChanged
from host_agent.worker import Worker
from network.loaders import load_network
from network.model import Network
from planning.model.placement import place
from planning.model.request import Algorithm, PlanRequest
from planning.registry import make_plan
from protocol import hopsum_pb2 as pb
from protocol.channel import ControllerError
from protocol.wire import Reduction
from tests.support.jobs import job_of
from tests.support.machine import PATIENCE as WAIT
from tests.support.machine import until


def star_request(hosts: int = 2, job: int = 1) -> tuple[Network, PlanRequest]:
    network = load_network(f"star:{hosts}")
    placement = place(network)
    return network, PlanRequest(job, 1, placement.workers, placement.servers)


def star(hosts: int = 2, job: int = 1) -> tuple[Network, JobPlan]:
    network, request = star_request(hosts, job)
    return network, make_plan(network, request)


# -- Messages


@pytest.mark.slow
@settings(max_examples=40)
@given(
    spec=st.sampled_from(["star:1", "star:5", "star:40", "leaf-spine:2x2", "fat-tree:4"]),
    servers=st.integers(1, 2),
    algorithm=st.sampled_from(Algorithm),
    results=st.sampled_from(Results),
    reduction=st.sampled_from(Reduction),
    lanes=st.sampled_from([32, 256, 352]),
    window=st.sampled_from([1, 32, 1024]),
    job=st.integers(1, 65535),
    epoch=st.integers(1, 65535),
    split=st.floats(0, 1),
)
def test_plans_survive_the_round_trip(
    spec: str,
    servers: int,
    algorithm: Algorithm,
    results: Results,
    reduction: Reduction,
    lanes: int,
    window: int,
    job: int,
    epoch: int,
    split: float,
) -> None:
    network = load_network(spec, servers=servers)
    placement = place(network, None, servers)
    shares = (split, 1 - split) if servers == 2 else None
    plan = make_plan(
        network,
        PlanRequest(
            job,
            epoch,
            placement.workers,
            placement.servers,
            algorithm,
            lanes,
            window,
            results,
            reduction,
            shares,
        ),
    )
    wire = plan_message(plan).SerializeToString()
    assert plan_from(pb.Plan.FromString(wire)) == plan


@pytest.mark.parametrize("spec", ["star:3", "torus:2x3", "dragonfly:1"])
def test_networks_survive_the_round_trip(spec: str) -> None:
    network = load_network(spec, link_rate=1e8 / 3, latency=0.1, plain=())
    again = network_from(pb.Network.FromString(network_message(network).SerializeToString()))
    assert again == network
    unlimited = load_network(spec)
    assert network_from(network_message(unlimited)) == unlimited


# -- Tracker


def kinds(messages: Outgoing) -> list[tuple[str, str | None]]:
    return [(host, message.WhichOneof("message")) for host, message in messages]


def say(**fields: Any) -> pb.AgentMessage:
    return pb.AgentMessage(**fields)


READY = say(ready=pb.Ready())
REPORT = pb.Report(retransmissions=1)
FINISHED = say(finished=pb.Finished(report=REPORT))


def started(hosts: int = 2) -> Tracker:
    tracker = Tracker(*star(hosts))
    for host in tracker.agents:
        tracker.register(host, 0.0)
    for host in tracker.agents:
        tracker.receive(host, READY, 0.0)
    assert tracker.state == "running"
    return tracker


def test_the_barrier_opens_when_all_are_ready() -> None:
    tracker = Tracker(*star())
    assert kinds(tracker.register("h1", 0.0)) == [("h1", "welcome")]
    assert tracker.receive("h1", READY, 0.0) == []
    tracker.register("h2", 0.0)
    tracker.register("ps", 0.0)
    tracker.receive("ps", READY, 0.0)
    assert tracker.state == "waiting"
    assert kinds(tracker.receive("h2", READY, 0.0)) == [
        ("h1", "start"),
        ("h2", "start"),
        ("ps", "start"),
    ]
    assert tracker.state == "running"


def test_all_are_released_when_every_worker_has_finished() -> None:
    tracker = started()
    assert tracker.receive("h1", FINISHED, 1.0) == []
    out = tracker.receive("h2", FINISHED, 1.0)
    assert kinds(out) == [("h1", "all_done"), ("h2", "all_done"), ("ps", "all_done")]
    assert tracker.state == "finished"
    assert not tracker.over
    tracker.receive("ps", FINISHED, 1.0)
    assert tracker.over
    assert tracker.reports() == {"h1": REPORT, "h2": REPORT, "ps": REPORT}


def test_a_dead_agent_is_named_to_all_others() -> None:
    tracker = started(3)
    out = tracker.gone("h2")
    assert kinds(out) == [("h1", "lost"), ("h3", "lost"), ("ps", "lost")]
    assert out[0][1].lost == pb.Lost(host="h2", reason="its connection ended")
    assert tracker.state == "failed"
    tracker.receive("h1", FINISHED, 1.0)
    out = tracker.receive("h3", say(failed=pb.Failed(reason="no result")), 1.0)
    assert kinds(out)[:2] == [("h1", "lost"), ("ps", "lost")]
    released = [message.all_done for _, message in out if message.HasField("all_done")]
    assert {lost.host: lost.reason for lost in released[0].lost} == {
        "h2": "its connection ended",
        "h3": "no result",
    }
    assert tracker.failures() == {"h2": "its connection ended", "h3": "no result"}


def test_silence_is_death_only_after_a_while() -> None:
    tracker = started()
    tracker.receive("h1", say(heartbeat=pb.Heartbeat()), 25.0)
    tracker.receive("ps", say(heartbeat=pb.Heartbeat()), 25.0)
    assert tracker.check(29.0) == []
    assert kinds(tracker.check(31.0)) == [("h1", "lost"), ("ps", "lost")]
    assert tracker.failures() == {"h2": "silent for 31 s"}
    assert tracker.check(32.0) == []


@pytest.mark.parametrize(
    ("host", "reason"),
    [("h9", "host h9 has no part in job 1"), ("h1", "has an agent in job 1 already")],
)
def test_strangers_are_refused(host: str, reason: str) -> None:
    tracker = Tracker(*star())
    tracker.register("h1", 0.0)
    ((_, message),) = tracker.register(host, 0.0)
    assert reason in message.refused.reason


def test_a_worker_cannot_start_afresh_in_a_started_job() -> None:
    tracker = started()
    tracker.gone("h1")
    ((_, message),) = tracker.register("h1", 1.0)
    assert "a worker cannot join it again" in message.refused.reason


def test_a_restarted_controller_takes_agents_back_where_they_were() -> None:
    tracker = Tracker(*star())
    tracker.register("h1", 0.0, pb.RUNNING, 7)
    tracker.register("ps", 0.0, pb.RUNNING)
    assert tracker.state == "running"
    assert tracker.agents["h1"].round == 7
    assert kinds(tracker.register("h2", 0.0, pb.FINISHED)) == [("h2", "welcome")]
    assert tracker.receive("h2", FINISHED, 0.0) == []
    out = tracker.receive("h1", FINISHED, 0.0)
    assert ("ps", "all_done") in kinds(out)


def test_whoever_comes_back_after_the_release_is_released() -> None:
    tracker = Tracker(*star(1))
    tracker.register("h1", 0.0, pb.RUNNING)
    tracker.receive("h1", FINISHED, 0.0)
    assert kinds(tracker.register("ps", 0.0, pb.RUNNING)) == [("ps", "welcome"), ("ps", "all_done")]


def test_a_restarted_server_needs_a_new_epoch() -> None:
    tracker = started()
    assert not tracker.needs_new_epoch("ps")
    tracker.gone("ps")
    assert tracker.needs_new_epoch("ps")
    assert not tracker.needs_new_epoch("h1")
    network, request = star_request()
    plan = make_plan(network, replace(request, epoch=2))
    assert kinds(tracker.adopt(plan)) == [("h1", "plan"), ("h2", "plan")]
    ((_, message),) = tracker.register("ps", 2.0)
    assert message.welcome.plan.epoch == 2
    assert kinds(tracker.receive("ps", READY, 2.0)) == [("ps", "start")]
    assert tracker.state == "running"


def test_a_server_that_moved_is_expected_on_its_new_host() -> None:
    network = load_network("star:2", servers=2)
    request = PlanRequest(1, 1, ("h1", "h2"), ("ps1",))
    tracker = Tracker(network, make_plan(network, request))
    tracker.adopt(make_plan(network, replace(request, epoch=2, servers=("ps2",))))
    assert set(tracker.agents) == {"h1", "h2", "ps2"}


@given(st.lists(st.tuples(st.sampled_from(["h1", "h2", "h3", "ps"]), st.integers(0, 5))))
def test_nobody_hears_twice_and_nobody_waits_for_the_dead(steps: list[tuple[str, int]]) -> None:
    tracker = Tracker(*star(3))
    heard: dict[tuple[str, str | None], int] = {}

    def note(messages: Outgoing) -> None:
        for host, kind in kinds(messages):
            heard[host, kind] = heard.get((host, kind), 0) + 1

    for host, what in steps:
        connected = tracker.agents[host].connected
        if what == 0 and not connected and tracker.agents[host].state == pb.EXPECTED:
            note(tracker.register(host, 0.0))
        elif what == 1 and connected:
            note(tracker.receive(host, READY, 0.0))
        elif what == 2 and connected and tracker.agents[host].state == pb.RUNNING:
            note(tracker.receive(host, FINISHED, 0.0))
        elif what == 3 and connected:
            note(tracker.gone(host))
    assert all(count == 1 for (_, kind), count in heard.items() if kind in ("start", "all_done"))
    if any(kind == "start" for _, kind in heard):
        assert tracker.started
    workers = [tracker.agents[host] for host in ("h1", "h2", "h3")]
    assert tracker.released == all(worker.over for worker in workers)


# -- Service and client


class Running:
    """A manager with its service on a unix socket, in a thread."""

    def __init__(self, path: Path, network: Network) -> None:
        self.address = f"unix:{path}"
        self.installed: list[Mapping[str, SwitchRules]] = []
        self._up = threading.Event()
        self._stop: asyncio.Event | None = None
        self._network = network
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        async def install(rules: Mapping[str, SwitchRules]) -> None:
            self.installed.append(rules)

        self.manager = Manager(self._network, install)
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        service = ControllerService(self.manager.agents, self.manager.server_restarted)
        async with service.serve(at(self.address)) as self.address:
            self._up.set()
            await self._stop.wait()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._up.wait(WAIT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.loop is not None
        assert self._stop is not None
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT)

    def do(self, coroutine: Any) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT)


def wait_for(client: AgentStream, wanted: Callable[[list[Any]], bool]) -> list[Any]:
    events: list[Any] = []
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    while not wanted(events):
        assert poll.poll(WAIT * 1000), f"nothing came after {events}"
        events += client.events()
    return events


def test_a_job_from_start_to_end(tmp_path: Path) -> None:
    network, request = star_request()
    task = pb.Task(workload=pb.Workload(rounds=3))
    with Running(tmp_path / "c.sock", network) as running:
        plan = running.do(running.manager.submit(job_of(request, task)))
        assert set(running.installed[-1]) == {"s1"}
        clients = {h: AgentStream(running.address, 1, h) for h in ("h1", "h2", "ps")}
        for client in clients.values():
            assignment = client.register(WAIT)
            assert assignment.plan == plan
            assert assignment.network == network
            assert assignment.task == task
            client.ready()
        for client in clients.values():
            client.wait_for_start(WAIT)
        clients["h1"].progress(2)
        for host in ("h1", "h2"):
            clients[host].finished(REPORT)
        for client in clients.values():
            assert client.wait_until_all_done(WAIT) == AllDone({})
        served = pb.Report(retransmissions=9)
        clients["ps"].finished(served)
        tracker = running.manager.agents.tracker(1)
        until(lambda: tracker.over, "the job's end")
        assert tracker.agents["h1"].round == 2
        assert tracker.reports()["ps"] == served
        (job,) = ControllerClient(running.address).status()
        assert (job.job, job.epoch, job.state) == (1, 1, "finished")
        assert [agent.host for agent in job.agents] == ["h1", "h2", "ps"]
        for client in clients.values():
            client.close()
        running.do(running.manager.remove(1))
        assert ControllerClient(running.address).status() == []


def test_a_killed_process_is_named_to_the_others(tmp_path: Path) -> None:
    network, request = star_request()
    with Running(tmp_path / "c.sock", network) as running:
        running.do(running.manager.submit(job_of(request)))
        code = (
            "import sys, signal\n"
            "from host_agent.io.controller_client import AgentStream\n"
            f"client = AgentStream({running.address!r}, 1, 'h2')\n"
            "client.register()\n"
            "client.ready()\n"
            "print('ready', flush=True)\n"
            "signal.pause()\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with AgentStream(running.address, 1, "h1") as client:
            client.register(WAIT)
            client.ready()
            process.kill()
            process.wait()
            process.stdout.close()
            with pytest.raises(AgentLostError, match="agent on h2: its connection ended"):
                client.wait_for_start(WAIT)
            assert AgentLost("h2", "its connection ended") in client.events()


def test_a_restarted_server_and_a_new_plan(tmp_path: Path) -> None:
    network, request = star_request()
    with Running(tmp_path / "c.sock", network) as running:
        running.do(running.manager.submit(job_of(request)))
        clients = {h: AgentStream(running.address, 1, h) for h in ("h1", "h2", "ps")}
        for client in clients.values():
            client.register(WAIT)
            client.ready()
        for client in clients.values():
            client.wait_for_start(WAIT)
        clients["ps"].close()
        wait_for(clients["h1"], lambda events: AgentLost("ps", "its connection ended") in events)
        again = AgentStream(running.address, 1, "ps")
        assert again.register(WAIT).plan.epoch == 2
        events = wait_for(clients["h1"], bool)
        assert [event.plan.epoch for event in events if isinstance(event, PlanChanged)] == [2]
        again.ready()
        again.wait_for_start(WAIT)
        assert running.manager.plans()[0].epoch == 2
        for client in (*clients.values(), again):
            client.close()


def test_a_client_outlives_its_controller(tmp_path: Path) -> None:
    network, request = star_request(2)
    path = tmp_path / "c.sock"
    clients = {h: AgentStream(f"unix:{path}", 1, h) for h in ("h1", "h2", "ps")}
    with Running(path, network) as running:
        running.do(running.manager.submit(job_of(request)))
        for client in clients.values():
            client.register(WAIT)
            client.ready()
        for client in clients.values():
            client.wait_for_start(WAIT)
        clients["h1"].finished(REPORT)
        until(lambda: bool(running.manager.agents.tracker(1).agents["h1"].report), "a report")
    with Running(path, network) as running:
        running.do(running.manager.submit(job_of(request)))
        clients["h2"].progress(9)
        until(lambda: running.manager.agents.tracker(1).agents["h2"].round == 9, "a round")
        clients["h2"].finished(pb.Report())
        for client in clients.values():
            assert client.wait_until_all_done(WAIT) == AllDone({})
        tracker = running.manager.agents.tracker(1)
        assert tracker.reports() == {"h1": REPORT, "h2": pb.Report()}
        for client in clients.values():
            client.close()


def test_refusals_reach_the_agent(tmp_path: Path) -> None:
    network, request = star_request()
    with Running(tmp_path / "c.sock", network) as running:
        running.do(running.manager.submit(job_of(request)))
        for job, host, reason in ((2, "h1", "there is no job 2; jobs: 1"), (1, "h7", "no part")):
            with (
                AgentStream(running.address, job, host) as client,
                pytest.raises(ControllerError, match=f"refused: .*{reason}"),
            ):
                client.register(WAIT)


def test_no_controller(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'nobody.sock'}"
    with (
        AgentStream(address, 1, "h1", reconnect=0.0) as client,
        pytest.raises(ControllerError, match=r"controller at unix:.*nobody\.sock: UNAVAILABLE"),
    ):
        client.register(WAIT)
    with pytest.raises(ControllerError, match="UNAVAILABLE"):
        ControllerClient(address).status()


def test_a_tcp_address() -> None:
    async def main() -> str:
        async with ControllerService(AgentRegistry()).serve(at("127.0.0.1:0")) as address:
            return address

    host, _, port = asyncio.run(main()).rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_an_address_that_cannot_be(tmp_path: Path) -> None:
    async def main() -> None:
        async with ControllerService(AgentRegistry()).serve(at("256.0.0.1:1")):
            pass

    with pytest.raises(ServiceError, match=r"cannot listen on 256\.0\.0\.1:1"):
        asyncio.run(main())


# -- Manager


def run_manager(
    network: Network,
    test: Callable[[Manager, list[Mapping[str, SwitchRules]]], Any],
    losses: Iterable[Loss] = (),
) -> None:
    installed: list[Mapping[str, SwitchRules]] = []

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        installed.append(rules)

    asyncio.run(test(Manager(network, install, losses), installed))


def admissions(rules: SwitchRules) -> set[int]:
    return {dict(e.match)["job"] for e in rules.entries if e.table == "admission"}  # type: ignore[misc]


def test_jobs_come_and_go() -> None:
    network, request = star_request()

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        await manager.submit(job_of(replace(request, job=2)))
        assert admissions(installed[-1]["s1"]) == {1, 2}
        with pytest.raises(PlanError, match="job 2 is there already"):
            await manager.submit(job_of(replace(request, job=2)))
        await manager.remove(1)
        assert admissions(installed[-1]["s1"]) == {2}
        with pytest.raises(PlanError, match="there is no job 1; jobs: 2"):
            await manager.replan(1)

    run_manager(network, test)


def test_a_job_whose_rules_are_refused_leaves_nothing_behind() -> None:
    network, request = star_request()

    async def main() -> None:
        async def install(rules: Mapping[str, SwitchRules]) -> None:
            raise OSError("no")

        manager = Manager(network, install)
        with pytest.raises(OSError, match="no"):
            await manager.submit(job_of(request))
        assert manager.plans() == []
        with pytest.raises(UnknownJobError, match="there is no job 1"):
            manager.agents.tracker(1)

    asyncio.run(main())


def test_failures_are_planned_around() -> None:
    network = load_network("leaf-spine:2x2")
    placement = place(network)
    request = PlanRequest(1, 1, placement.workers, placement.servers)

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        plan = await manager.submit(job_of(request))
        spine = next(name for name in plan.trees[0].parts if name.startswith("s"))
        (again,) = await manager.fail([spine])
        assert again.epoch == 2
        assert spine not in again.trees[0].parts
        assert spine not in installed[-1]
        other = next(name for name in again.trees[0].parts if name.startswith("s"))
        assert await manager.fail(links=[(other, "l2")]) == []
        assert manager.lost_to(1) == {("l2", other)}
        assert manager.plan_of(1) == again
        assert await manager.recover([("l2", other)]) == []
        assert not manager.lost_to(1)
        assert await manager.recover([spine]) == [1]
        assert manager.avoided(1)
        manager.keep_plan(1)
        assert not manager.avoided(1)

    run_manager(network, test)


def test_a_failure_that_hits_nobody_changes_no_plan() -> None:
    network = load_network("leaf-spine:2x2")
    request = PlanRequest(1, 1, ("h1",), ("h2",))

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        assert await manager.fail(["s1"]) == []
        assert manager.plans()[0].epoch == 1

    run_manager(network, test)


def test_epochs_wrap_around_as_serial_numbers() -> None:
    """All that adds or compares epochs goes on from 65535 with 1, a restarted controller too."""
    network, request = star_request()
    request = replace(request, epoch=0xFFFE)

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        plan = await manager.submit(job_of(request))
        server, worker = Server(plan, 0, network), Worker(plan, 0, network)
        for epoch in (0xFFFF, 1, 2):
            plan = await manager.replan(1)
            assert plan.epoch == epoch
            server.adopt(plan)
            worker.adopt(plan, 0.0)
            assert server.plan.epoch == worker.plan.epoch == epoch
            groups = [number for number in installed[-1]["s1"].groups if number > 1]
            assert len(groups) == 1
        # The groups of all epochs before are free again: the numbers do not climb.
        assert groups[0] <= 4
        again = Manager(network, manager._install)
        before = replace(plan, epoch=0xFFFF)
        again.readopt(job_of(request), next_request(request, before))
        assert again.plan_of(1).epoch == 1

    run_manager(network, test)


@pytest.mark.parametrize("lossy", [False, True])
def test_losses_are_installed(lossy: bool) -> None:
    network, request = star_request()

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        assert any(e.table == "ingress_loss" for e in installed[-1]["s1"].entries) is lossy

    run_manager(network, test, losses_on(network, 0.1 if lossy else 0.0))


def test_a_job_is_over_when_the_last_report_is_in_and_not_before() -> None:
    """After a restart of the controller agents say where they were, and then their last word."""
    network, request = star_request(2)
    tracker = Tracker(network, make_plan(network, request))
    tracker.register("ps", 0.0, pb.RUNNING)
    for worker in ("h1", "h2"):
        tracker.register(worker, 0.0, pb.FINISHED)
    assert not tracker.released
    for worker in ("h1", "h2"):
        tracker.receive(worker, pb.AgentMessage(finished=pb.Finished()), 0.0)
    assert tracker.released
    assert tracker.reports() == {"h1": pb.Report(), "h2": pb.Report()}
