"""The controller as its agents and people see it, over sockets."""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from hopsum.controller.api import service as module
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.listening import ServiceError, at
from hopsum.controller.api.service import ControllerService
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.dataplane.slots import SlotState
from hopsum.controller.jobs.cluster import Cluster
from hopsum.host_agent.session import AgentLost, AllDone, PlanChanged
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.channel import MESSAGE_BYTES, ControllerError
from tests.support.agent_client import AgentClient, AgentLostError
from tests.support.controller_service import RunningController
from tests.support.jobs import job_of, star_request
from tests.support.machine import PATIENCE as WAIT
from tests.support.machine import until

REPORT = pb.Report(retransmissions=1)


def wait_for(client: AgentClient, wanted: Callable[[list[Any]], bool]) -> list[Any]:
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
    with RunningController(tmp_path / "c.sock", network) as running:
        plan = running.do(running.manager.submit(job_of(request, task)))
        assert set(running.installed[-1]) == {"s1"}
        clients = {h: AgentClient(running.address, 1, h) for h in ("h1", "h2", "ps")}
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
        tracker = running.manager.tracker(1)
        until(lambda: tracker.over, "the job's end")
        assert tracker.agents["h1"].round == 2
        assert tracker.reports()["ps"] == served
        (job,) = ControllerClient(running.address).status()
        assert (job.job, job.epoch) == (1, 1)
        assert [agent.host for agent in job.agents] == ["h1", "h2", "ps"]
        for client in clients.values():
            client.close()
        running.do(running.manager.remove(1))
        assert ControllerClient(running.address).status() == []


def test_the_key_of_a_job_is_for_its_agents_only(tmp_path: Path) -> None:
    network, request = star_request()
    task = pb.Task(workload=pb.Workload(rounds=3), key=bytes(range(32)))
    with (
        RunningController(tmp_path / "c.sock", network) as running,
        grpc.insecure_channel(running.address) as channel,
        closing(AgentClient(running.address, 1, "h1")) as client,
    ):
        running.do(running.manager.submit(job_of(request, task)))
        described = pb_grpc.ControllerStub(channel).Describe(pb.DescribeRequest(job=1))
        assert described.task == pb.Task(workload=pb.Workload(rounds=3))
        assert client.register(WAIT).task == task
        assert running.manager.tracker(1).task == task


@pytest.mark.slow
def test_a_killed_process_is_named_to_the_others(tmp_path: Path) -> None:
    network, request = star_request()
    with RunningController(tmp_path / "c.sock", network) as running:
        running.do(running.manager.submit(job_of(request)))
        code = (
            "import sys, signal\n"
            "from tests.support.agent_client import AgentClient\n"
            f"client = AgentClient({running.address!r}, 1, 'h2')\n"
            "client.register()\n"
            "client.ready()\n"
            "print('ready', flush=True)\n"
            "signal.pause()\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with closing(AgentClient(running.address, 1, "h1")) as client:
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
    with RunningController(tmp_path / "c.sock", network) as running:
        running.do(running.manager.submit(job_of(request)))
        clients = {h: AgentClient(running.address, 1, h) for h in ("h1", "h2", "ps")}
        for client in clients.values():
            client.register(WAIT)
            client.ready()
        for client in clients.values():
            client.wait_for_start(WAIT)
        clients["ps"].close()
        wait_for(clients["h1"], lambda events: AgentLost("ps", "its connection ended") in events)
        again = AgentClient(running.address, 1, "ps")
        assert again.register(WAIT).plan.epoch == 2
        events = wait_for(clients["h1"], bool)
        assert [event.plan.epoch for event in events if isinstance(event, PlanChanged)] == [2]
        again.ready()
        again.wait_for_start(WAIT)
        assert running.manager.store.plans()[0].epoch == 2
        for client in (*clients.values(), again):
            client.close()


def test_a_client_outlives_its_controller(tmp_path: Path) -> None:
    network, request = star_request(2)
    path = tmp_path / "c.sock"
    clients = {h: AgentClient(f"unix:{path}", 1, h) for h in ("h1", "h2", "ps")}
    with RunningController(path, network) as running:
        running.do(running.manager.submit(job_of(request)))
        for client in clients.values():
            client.register(WAIT)
            client.ready()
        for client in clients.values():
            client.wait_for_start(WAIT)
        clients["h1"].finished(REPORT)
        until(lambda: bool(running.manager.tracker(1).agents["h1"].report), "a report")
    with RunningController(path, network) as running:
        running.do(running.manager.submit(job_of(request)))
        clients["h2"].progress(9)
        until(lambda: running.manager.tracker(1).agents["h2"].round == 9, "a round")
        clients["h2"].finished(pb.Report())
        for client in clients.values():
            assert client.wait_until_all_done(WAIT) == AllDone({})
        tracker = running.manager.tracker(1)
        assert tracker.reports() == {"h1": REPORT, "h2": pb.Report()}
        for client in clients.values():
            client.close()


def test_refusals_reach_the_agent(tmp_path: Path) -> None:
    network, request = star_request()
    with RunningController(tmp_path / "c.sock", network) as running:
        running.do(running.manager.submit(job_of(request)))
        for job, host, reason in ((2, "h1", "there is no job 2; jobs: 1"), (1, "h7", "no part")):
            with (
                closing(AgentClient(running.address, job, host)) as client,
                pytest.raises(ControllerError, match=f"rejected by the controller: .*{reason}"),
            ):
                client.register(WAIT)


def test_no_controller(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'nobody.sock'}"
    with (
        closing(AgentClient(address, 1, "h1")) as client,
        pytest.raises(ControllerError, match=r"for an assignment .*at unix:.*nobody\.sock"),
    ):
        client.register(0.1)
    with pytest.raises(ControllerError, match="UNAVAILABLE"):
        ControllerClient(address).status()


def new_cluster() -> Cluster:
    async def install(rules: Mapping[str, SwitchRules]) -> None:
        """Switches that take everything."""

    return Cluster(load_network("star:2"), install)


def new_service() -> ControllerService:
    return ControllerService(new_cluster())


def test_a_tcp_address() -> None:
    async def main() -> str:
        async with new_service().serve(at("127.0.0.1:0")) as address:
            return address

    host, _, port = asyncio.run(main()).rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_an_impossible_address_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with new_service().serve(at("256.0.0.1:1")):
            pass

    with pytest.raises(ServiceError, match=r"cannot listen on 256\.0\.0\.1:1"):
        asyncio.run(main())


class Nobody:
    """The context of a call without a certificate, which is never cancelled."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise ServiceError(f"{code.name}: {details}")


@pytest.mark.parametrize("by_reports", [False, True])
def test_an_agent_that_does_not_read_is_disconnected(
    by_reports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is its own reports, which make no sense, that the answers are to."""
    monkeypatch.setattr(module, "MOST_COMMANDS", 20)
    command = pb.NodeCommand(leave=pb.LeaveJob(job=1))
    lie = pb.NodeMessage(report=pb.NodeReport(jobs=[pb.JobFeatures(job=1, elements=1)] * 5000))

    async def says() -> AsyncIterator[pb.NodeMessage]:
        yield pb.NodeMessage(hello=pb.Hello(host="h1"))
        for _ in range(100 if by_reports else 0):
            yield lie
        await asyncio.Event().wait()

    async def main() -> int:
        cluster = new_cluster()
        service = ControllerService(cluster)
        stream = service.Serve(says(), cast("Any", Nobody()))
        assert (await anext(stream)).WhichOneof("message") == "welcome"
        for _ in range(0 if by_reports else 100):
            cluster.send("h1", command)
        for _ in range(2000):
            await asyncio.sleep(0)
        return len([received async for received in stream])

    assert asyncio.run(asyncio.wait_for(main(), WAIT)) == 20


@pytest.mark.slow
def test_a_message_above_the_limit_is_refused_and_harms_no_other(tmp_path: Path) -> None:
    unlimited = [("grpc.max_send_message_length", -1)]
    with (
        RunningController(tmp_path / "controller", load_network("star:2")) as running,
        grpc.insecure_channel(running.address, unlimited) as channel,
    ):
        submit = pb_grpc.ControllerStub(channel).Submit
        with pytest.raises(grpc.RpcError) as refused:
            submit(pb.Submission(name="x" * MESSAGE_BYTES), timeout=WAIT)
        assert "larger than max" in refused.value.details()
        assert ControllerClient(running.address).jobs() == []


def test_so_many_slots_are_read_in_one_call_and_no_more() -> None:
    """Each takes a packet to the switch and back."""
    asked: list[int] = []

    class Switches:
        async def inspect(self, switch: str, slot: int) -> SlotState:
            asked.append(slot)
            raise DriverError(switch, "it is away")

    async def main(count: int) -> None:
        service = ControllerService(new_cluster(), cast("Any", Switches()))
        await service.Inspect(pb.InspectRequest(switch="s1", count=count), cast("Any", Nobody()))

    with pytest.raises(ServiceError, match="65537 slots: expected at most 65536 in one call"):
        asyncio.run(main(module.MOST_SLOTS + 1))
    assert not asked
    with pytest.raises(ServiceError, match="it is away"):
        asyncio.run(main(module.MOST_SLOTS))
    assert asked == [0]


def test_links_that_the_controller_does_not_own_stay_as_they_are() -> None:
    async def main() -> None:
        service = ControllerService(new_cluster())
        await service.SetLink(pb.LinkChange(link="h1-s1"), cast("Any", Nobody()))

    with pytest.raises(ServiceError, match="only those of `hopsum cluster` can be cut"):
        asyncio.run(main())
