"""Jobs that are submitted while others end are started once; an end does not wait for switches."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from finsy import P4Schema
from finsy.p4entity import decode_entity

from hopsum.collectives import plan_checker
from hopsum.collectives.plan import PlanError
from hopsum.controller.dataplane.driver import Driver, DriverError, State, SwitchTarget
from hopsum.controller.dataplane.entries import rules_read
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs import job_table, sharing
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobError, JobState
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.protocol import hopsum_pb2 as pb
from tests.support.fake_p4runtime import FakeSwitch
from tests.support.jobs import reached, training_with_vectors
from tests.support.machine import PATIENCE, loopback
from tests.support.manager import join, manage
from tests.support.paths import HOPSUM_P4INFO


class Switches:
    """Switches that take their time: `go` lets them. They have the latest rules at once."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.rules: Mapping[str, SwitchRules] = {}
        self.refuse = False
        """Whether the next installation fails."""

    async def install(self, rules: Mapping[str, SwitchRules]) -> None:
        self.rules = rules
        await self.go.wait()
        if self.refuse:
            self.refuse = False
            raise DriverError("s1", "it will not")

    async def have_rules_of(self, *jobs: int) -> None:
        """Return when s1 admits packets of these jobs only."""
        async with asyncio.timeout(PATIENCE):
            while not self.rules or self._admitted() != {*jobs}:
                await asyncio.sleep(0.01)

    def _admitted(self) -> set[object]:
        entries = self.rules["s1"].entries
        return {dict(entry.match)["job"] for entry in entries if entry.table == "admission"}


async def steps(count: int = 50) -> None:
    """Let all other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_job_being_started_is_not_started_again_when_another_ends() -> None:
    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        ending = await cluster.submit(JobSpec("ending", ("h1", "h2"), ("h3",)))
        switches.go.clear()
        cancelling = asyncio.create_task(cluster.cancel(ending))
        await steps()
        starting = asyncio.create_task(cluster.submit(JobSpec("starting", ("h4", "h5"), ("h6",))))
        await steps()
        switches.go.set()
        job = await starting
        await cancelling
        await reached(job, JobState.WAITING)
        assert job.reason == ""
        assert job.number in cluster.priorities.levels()
        await cluster.close()

    asyncio.run(main())


def test_an_immediate_job_starts_or_is_refused_and_preempts_none() -> None:
    """Where one that may wait would be queued, and take slots of a job of a lower priority."""

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        old = await cluster.submit(JobSpec("old", ("h1", "h2"), ("h3",), window=2048))
        second = JobSpec("second", ("h1", "h2"), ("h3",), window=2048, immediate=True)
        assert (await cluster.submit(second)).state is JobState.WAITING
        for host in ("h1", "h2"):
            features = pb.JobFeatures(job=old.number, round=10, sent_bytes=1)
            cluster.take_report(host, pb.NodeReport(jobs=[features]), 1.0)
        third = replace(second, name="third")
        with pytest.raises(JobError, match=r"job third cannot start now: .*4096 of 4096"):
            await cluster.submit(third)
        assert [job.spec.name for job in cluster.jobs] == ["old", "second"]
        assert cluster.priorities.levels().keys() == {1, 2}
        assert not old.bypassed
        waiting = await cluster.submit(replace(third, immediate=False))
        assert waiting.state is JobState.WAITING
        assert old.bypassed == {"s1"}
        await cluster.close()

    asyncio.run(main())


def test_a_job_waits_for_entries_of_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that refused its rules would refuse those of every job that follows."""
    monkeypatch.setattr(plan_checker, "ADMISSION_SIZE", 7)

    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        job = JobSpec("first", ("h1", "h2"), ("h3",), window=64)
        first = await cluster.submit(job)
        await cluster.submit(replace(job, name="second"))
        entries = [each for each in switches.rules["s1"].entries if each.table == "admission"]
        assert len(entries) == 6
        third = await cluster.submit(replace(job, name="third"))
        assert third.state is JobState.QUEUED
        assert "switch s1: 9 admission entries; it has room for 7" in third.reason
        await cluster.cancel(first)
        await reached(third, JobState.WAITING)
        await cluster.close()

    asyncio.run(main())


def test_jobs_of_a_user_leave_slots_to_others() -> None:
    """A user's third half of a switch waits for the first, though there is room."""

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        job = JobSpec("first", ("h1", "h2"), ("h3",), window=2048, owner="eve", limited=True)
        first = await cluster.submit(job)
        second = await cluster.submit(replace(job, name="second"))
        assert second.state is JobState.QUEUED
        assert second.reason.startswith(
            "switch s1: jobs of eve hold 2048 slots and this one needs 2048; the quota of a user "
            "is 3072"
        )
        with pytest.raises(JobError, match="job third cannot start now: switch s1: jobs of eve"):
            await cluster.submit(replace(job, name="third", immediate=True))
        for owner, limited in (("bob", True), ("root", False)):
            other = await cluster.submit(
                replace(job, name=owner, owner=owner, limited=limited, window=1024)
            )
            assert other.state is JobState.WAITING
        await cluster.cancel(first)
        await reached(second, JobState.WAITING)
        await cluster.close()

    asyncio.run(main())


def test_an_operator_has_the_quota_of_each_job_only() -> None:
    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        job = JobSpec("first", ("h1", "h2"), ("h3",), window=2048, owner="root")
        for name in ("first", "second"):
            assert (await cluster.submit(replace(job, name=name))).state is JobState.WAITING
        await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize("recorded", [False, True])
def test_a_job_that_names_another_as_its_vectors_does_not_end_it(recorded: bool) -> None:
    """Neither by its task, nor by a record of an earlier version, which kept what it named."""

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        theirs = await cluster.submit(JobSpec("theirs", ("h1", "h2"), ("h3",), owner="bob"))
        named = pb.Task(vectors=theirs.number)
        spec = JobSpec("mine", ("h4", "h5"), ("h6",), task=named, owner="eve")
        mine = await cluster.submit(spec)
        if recorded:
            mine.spec = spec
        await cluster.cancel(mine)
        await reached(mine, JobState.CANCELLED)
        await steps()
        assert (theirs.state, theirs.outcome) == (JobState.WAITING, None)
        await cluster.close()

    asyncio.run(main())


def training(name: str, **options: Any) -> JobSpec:
    """A training of two workers whose bit vectors the switches combine."""
    return training_with_vectors(JobSpec(name, ("h1", "h2"), ("h3",), **options))


def test_a_training_that_is_cancelled_takes_the_job_of_its_vectors_along() -> None:
    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        job = await cluster.submit(training("mine"))
        companion = cluster.jobs.find(name="mine.vectors")
        assert job.spec.task.vectors == companion.number
        await cluster.cancel(job)
        await reached(companion, JobState.CANCELLED)
        assert companion.reason == "job mine has ended"
        await cluster.close()

    asyncio.run(main())


def test_jobs_that_a_user_submits_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are checked before the first one is known."""
    monkeypatch.setattr(job_table, "MOST_OWNED", 1)

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        job = JobSpec("a", ("h1", "h2"), ("h3",), owner="eve", limited=True)
        submissions = [cluster.submit(replace(job, name=name)) for name in "abc"]
        taken = await asyncio.gather(*submissions, return_exceptions=True)
        refused = [error for error in taken if isinstance(error, JobError)]
        assert len(refused) == 2
        words = "eve has 1 jobs queued or running; expected fewer than 1: cancel some, or wait"
        assert all(words in str(error) for error in refused)
        assert [known.spec.name for known in cluster.jobs] == ["a"]
        await cluster.submit(replace(job, name="operators", owner="root", limited=False))
        await cluster.close()

    asyncio.run(main())


def test_the_job_of_vectors_is_a_job_of_the_user_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MOST_OWNED", 2)

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        first = await cluster.submit(training("first", owner="eve", limited=True))
        companion = cluster.jobs.find(first.spec.task.vectors)
        assert (companion.spec.owner, companion.spec.limited) == ("eve", True)
        await cluster.cancel(companion)
        assert cluster.jobs.owned("eve") == 1
        words = (
            "job second: eve has 1 jobs queued or running; expected fewer than 1, as "
            "second.vectors is a job too: cancel some, or wait until they end"
        )
        with pytest.raises(JobError, match=words):
            await cluster.submit(training("second", owner="eve", limited=True))
        assert [job.spec.name for job in cluster.jobs] == ["first.vectors", "first"]
        await cluster.close()

    asyncio.run(main())


def test_a_training_does_not_wait_for_slots_of_its_own_vectors() -> None:
    """Where all jobs of a user may hold no more than one of them."""

    async def main() -> None:
        settings = ClusterSettings(sharing=SharingPolicy(user_quota=Fraction(1, 2)))
        cluster = Cluster(load_network("star:6"), Switches().install, settings)
        job = await cluster.submit(training("mine", owner="eve", limited=True, window=2048))
        assert job.state is JobState.WAITING, job.reason
        await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "step", ["plan_store.settle", "submission.complete_task", "admission.plan_job"]
)
def test_others_are_served_while_a_job_is_planned(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = f"hopsum.controller.jobs.{step}".rpartition(".")
    planner = getattr(importlib.import_module(module), name)
    calls: list[None] = []

    def away(*arguments: object) -> object:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        calls.append(None)
        return planner(*arguments)

    monkeypatch.setattr(f"{module}.{name}", away)

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        for job in ("first", "second", "third"):  # the last one finds no room
            await cluster.submit(JobSpec(job, ("h1", "h2"), ("h3",), window=2048))
        await cluster.close()

    asyncio.run(main())
    assert calls


def test_a_submission_given_up_while_it_is_checked_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked, go = threading.Event(), threading.Event()

    def check(*arguments: object) -> None:
        checked.set()
        assert go.wait(PATIENCE)

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        specs = [JobSpec(name, ("h1", "h2"), ("h3",), window=2048) for name in ("a", "b", "c")]
        for spec in specs[:2]:
            await cluster.submit(spec)
        monkeypatch.setattr("hopsum.controller.jobs.admission.plan_job", check)
        submitting = asyncio.create_task(cluster.submit(specs[2]))
        assert await asyncio.to_thread(checked.wait, PATIENCE)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        go.set()
        assert [job.spec.name for job in cluster.jobs] == ["a", "b"]
        await cluster.close()

    asyncio.run(main())


def test_a_refused_job_that_is_being_started_meanwhile_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by the soak (schedule 906618): it stayed in the queue, for ever."""
    checked, tried, refused = threading.Event(), threading.Event(), threading.Event()

    def check(*arguments: object) -> None:
        checked.set()
        assert tried.wait(PATIENCE)
        raise PlanError("never")

    def settle(*arguments: object) -> None:
        if checked.is_set():
            tried.set()
            assert refused.wait(PATIENCE)
        raise PlanError("not now")

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        other = await cluster.submit(JobSpec("other", ("h4", "h5"), ("h6",)))
        monkeypatch.setattr("hopsum.controller.jobs.admission.plan_job", check)
        monkeypatch.setattr("hopsum.controller.jobs.plan_store.settle", settle)
        submitting = asyncio.create_task(cluster.submit(JobSpec("job", ("h1", "h2"), ("h3",))))
        assert await asyncio.to_thread(checked.wait, PATIENCE)
        ending = asyncio.create_task(cluster.cancel(other))
        with pytest.raises(PlanError, match="never"):
            await submitting
        job = cluster.jobs.find(name="job")
        ended = job.state
        refused.set()
        await ending
        assert ended is JobState.DRAINING
        await reached(job, JobState.FAILED)
        assert job.reason == "never"
        assert job.number not in cluster.priorities.levels()
        await cluster.close()

    asyncio.run(main())


def test_the_queue_does_not_start_a_job_that_was_given_up_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would hold slots, and no command would list it or end it."""
    checked, check_go = threading.Event(), threading.Event()
    tried, try_go = threading.Event(), threading.Event()
    settle_plans = sharing.settle

    def check(*arguments: object) -> None:
        checked.set()
        assert check_go.wait(PATIENCE)

    def settle(network: Network, request: PlanRequest, *arguments: Any) -> sharing.Settlement:
        if request.job == 3:
            tried.set()
            assert try_go.wait(PATIENCE)
        return settle_plans(network, request, *arguments)

    async def main() -> None:
        cluster = Cluster(load_network("star:6"), Switches().install)
        spec = JobSpec("a", ("h1", "h2"), ("h3",), window=2048)
        ending = await cluster.submit(spec)
        other = await cluster.submit(replace(spec, name="b"))
        small = replace(spec, window=1024)
        kept = await cluster.submit(replace(small, name="kept"))
        monkeypatch.setattr("hopsum.controller.jobs.admission.plan_job", check)
        submitting = asyncio.create_task(cluster.submit(replace(small, name="given-up")))
        assert await asyncio.to_thread(checked.wait, PATIENCE)
        monkeypatch.setattr("hopsum.controller.jobs.plan_store.settle", settle)
        cancelling = asyncio.create_task(cluster.cancel(ending))
        # The queue waits for the plan of the first, and has both in its list.
        assert await asyncio.to_thread(tried.wait, PATIENCE)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        assert [job.spec.name for job in cluster.jobs] == ["a", "b", "kept"]
        check_go.set()
        try_go.set()
        await cancelling
        assert kept.state is JobState.WAITING
        assert set(cluster.plans.active) == {other.number, kept.number}
        await cluster.close()

    asyncio.run(main())


def test_a_job_whose_plan_changes_goes_on_as_it_was_or_has_become() -> None:
    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        job = await cluster.submit(JobSpec("job", ("h1", "h2"), ("h3",)))
        for state in (JobState.WAITING, JobState.RUNNING):
            switches.go.clear()
            changing = asyncio.create_task(manage(cluster).replan(1))
            await steps()
            assert job.state is JobState.CHANGING
            tracker = cluster.engine.tracker(1)
            assert tracker.plan.epoch == job.epoch - 1, "agents go on under the old plan"
            if state is JobState.RUNNING:
                for host in job.hosts:
                    join(cluster, host, 1, pb.RUNNING)
            switches.go.set()
            await changing
            assert job.state is state
            assert tracker.plan.epoch == job.epoch
        await cluster.close()

    asyncio.run(main())


def test_a_change_of_plan_that_is_abandoned_leaves_no_job_in_it() -> None:
    """Switches may have the new rules: agents get the new plan, as if it had been installed."""

    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        job = await cluster.submit(JobSpec("job", ("h1", "h2"), ("h3",)))
        switches.go.clear()
        changing = asyncio.create_task(manage(cluster).replan(1))
        await steps()
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        assert (job.state, job.epoch) == (JobState.WAITING, 2)
        assert cluster.engine.tracker(1).plan.epoch == 2
        await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize("interrupted", [True, False])
def test_switches_lose_the_rules_of_a_job_that_could_not_be_installed(interrupted: bool) -> None:
    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        await cluster.submit(JobSpec("stays", ("h1", "h2"), ("h3",)))
        switches.go.clear()
        submitting = asyncio.create_task(cluster.submit(JobSpec("goes", ("h4", "h5"), ("h6",))))
        await switches.have_rules_of(1, 2)
        if interrupted:
            submitting.cancel()
        else:
            switches.refuse = True
            switches.go.set()
        (error,) = await asyncio.gather(submitting, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError if interrupted else DriverError)
        await switches.have_rules_of(1)
        await cluster.close()

    asyncio.run(main())


def test_a_queued_job_is_started_once_when_two_end_together() -> None:
    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        window = cluster.network.switches["s1"].slots // 2
        first, second = [
            await cluster.submit(JobSpec(name, ("h1", "h2"), ("h3",), window=window))
            for name in ("first", "second")
        ]
        queued = await cluster.submit(JobSpec("queued", ("h4", "h5"), ("h6",), window=window))
        assert queued.state is JobState.QUEUED
        await asyncio.gather(cluster.cancel(first), cluster.cancel(second))
        await reached(queued, JobState.WAITING)
        assert queued.reason == ""
        await cluster.close()

    asyncio.run(main())


def test_cancelling_does_not_wait_for_switches_that_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hopsum.controller.jobs.engine.CANCEL_SECONDS", 0.05)

    async def main() -> None:
        switches = Switches()
        cluster = Cluster(load_network("star:6"), switches.install)
        received: list[str] = []

        def send(host: str, command: pb.NodeCommand) -> None:
            if command.HasField("leave"):
                received.append(host)

        cluster.send = send
        job = await cluster.submit(JobSpec("job", ("h1", "h2"), ("h3",)))
        switches.go.clear()
        async with asyncio.timeout(PATIENCE):
            cancelled, again = await asyncio.gather(cluster.cancel(job), cluster.cancel(job))
        assert cancelled is again is job
        assert (job.state, job.outcome) == (JobState.DRAINING, JobState.CANCELLED)
        assert received == ["h1", "h2", "h3"]
        assert job.number in cluster.priorities.levels()
        switches.go.set()
        await steps()
        assert job.state is JobState.CANCELLED
        assert job.number not in cluster.priorities.levels()
        await cluster.close()

    asyncio.run(main())


@pytest.mark.slow
def test_rules_of_a_cancelled_job_go_when_the_switch_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hopsum.controller.jobs.engine.CANCEL_SECONDS", 0.05)
    schema = P4Schema(HOPSUM_P4INFO)
    target = SwitchTarget("s1", f"{loopback(1)[0]}:9559")
    silent = asyncio.Event()

    def listen(name: str, state: State, detail: str) -> None:
        if "no answer" in detail:
            silent.set()

    async def main() -> None:
        fake = FakeSwitch()
        await fake.start(target.address)

        def tables() -> set[str]:
            entities = [decode_entity(entity, schema) for entity in fake.entities.values()]
            return {entry.table for entry in rules_read(entities, schema).entries}

        driver = Driver(
            [target],
            Pipeline(P4Schema(HOPSUM_P4INFO).p4info, b"{}", lanes=256, slots=4096),
            silence=0.5,
            listener=listen,
        )
        patience = PATIENCE
        async with driver, asyncio.timeout(PATIENCE):
            network = load_network("star:6")
            cluster = Cluster(network, lambda rules: driver.apply(rules, patience))
            await driver.wait()
            await cluster.submit(JobSpec("stays", ("h1", "h2"), ("h3",)))
            before = len(fake.entities)
            job = await cluster.submit(JobSpec("goes", ("h4", "h5"), ("h6",)))
            assert "admission" in tables()
            assert len(fake.entities) > before
            fake.going.clear()
            # It may be away for longer than the timeout for installing rules.
            patience = 0.1
            await cluster.cancel(job)
            assert job.outcome is JobState.CANCELLED
            await silent.wait()
            assert len(fake.entities) > before
            fake.going.set()
            await driver.wait()
            assert len(fake.entities) == before
            assert job.state is JobState.CANCELLED
            await cluster.close()
        await fake.stop()

    asyncio.run(main())
