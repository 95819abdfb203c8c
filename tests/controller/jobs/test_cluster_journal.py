"""A cluster whose journal cannot be written for a while: nothing ends but what has to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from hopsum.collectives.choices import DataType
from hopsum.collectives.plan import PlanError
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import WorkloadSpec
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs import job_table
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.journal import FileJournal, UnrecordedError
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.coordination.tree import TreeLimits
from hopsum.network.loaders import load_network
from hopsum.planning.model.request import EmbeddingOptions, WeightSteps
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.disk import VirtualDisk
from tests.support.jobs import reached, training_with_vectors
from tests.support.manager import Install, join, manage, next_check

FILE = Path("jobs")


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


async def install(rules: Mapping[str, SwitchRules]) -> None:
    """Switches that take everything."""


def new_cluster(disk: VirtualDisk, install: Install = install) -> Cluster:
    settings = ClusterSettings(journal=FileJournal(FILE, disk=disk))
    return Cluster(load_network("star:6"), install, settings)


def spec(name: str, *workers: str) -> JobSpec:
    return JobSpec(name, workers or ("h1", "h2"), ("ps",), window=64)


def recorded(disk: VirtualDisk, number: int = 1) -> Job:
    """A job as a controller that starts now would know it."""
    records = FileJournal(FILE, disk=disk).read()
    latest = [record for record in records if record["number"] == number][-1]
    return job_table.job_from_record(latest, str(FILE))


def forget(disk: VirtualDisk, number: int) -> None:
    """Leave a job out of the journal, as if the controller had died before its first record."""
    journal = FileJournal(FILE, disk=disk)
    journal.rewrite([record for record in journal.read() if record["number"] != number])


def test_a_job_that_cannot_be_recorded_is_not_taken(disk: VirtualDisk) -> None:
    async def main() -> None:
        cluster = new_cluster(disk)
        disk.fill(20)
        with pytest.raises(UnrecordedError, match="jobs cannot be written: No space left"):
            await cluster.submit(spec("a"))
        assert list(cluster.jobs) == []
        assert cluster.plans.plans() == []
        disk.free()
        job = await cluster.submit(spec("a"))
        assert job.state is JobState.WAITING
        assert recorded(disk, job.number).state is JobState.WAITING
        await cluster.close()

    asyncio.run(main())


def test_an_epoch_begins_only_when_it_is_recorded(disk: VirtualDisk) -> None:
    async def main() -> None:
        cluster = new_cluster(disk)
        job = await cluster.submit(spec("a"))
        before = cluster.plans.plan_of(1)
        disk.fill(20)
        with pytest.raises(PlanError, match=r"epoch 2 cannot begin without a record: .*No space"):
            await manage(cluster).replan(1)
        assert cluster.plans.plan_of(1) is before
        assert cluster.engine.tracker(1).plan is before
        assert (job.epoch, job.plan) == (1, before)
        disk.free()
        await manage(cluster).replan(1)
        assert (job.epoch, recorded(disk).epoch) == (2, 2)
        await cluster.close()

    asyncio.run(main())


def test_an_embedding_is_planned_again_as_it_was_asked_for(disk: VirtualDisk) -> None:
    """Its hosts, whether they may relay, its boundaries, and the step of its weights."""

    async def main() -> None:
        network = load_network("star:6", link_rate="1G")
        kept = FileJournal(FILE, disk=disk)
        cluster = Cluster(network, install, ClusterSettings(journal=kept))
        workload = workload_message(
            WorkloadSpec("digits", 2, 0, 1, DataType.FLOAT32, 1, coordinate=True)
        )
        options = {"weight-steps": "32", "penalty": "4"}
        asked = JobSpec("a", ("h1", "h2"), ("h4", "ps"), planner="embedding", options=options)
        job = await cluster.submit(replace(asked, task=pb.Task(workload=workload)))
        assert job.request.embedding == EmbeddingOptions(
            auxiliary=("h4", "ps"), relays=False, period=50, weights=WeightSteps(32, 4)
        )
        assert recorded(disk).request.embedding == job.request.embedding
        # Earlier versions recorded neither.
        record = kept.read()[-1]
        del record["request"]["embedding"], record["spec"]["plannerOptions"]
        del record["spec"]["coordinationLimits"]
        old = job_table.job_from_record(record, "old")
        assert old.request.embedding == EmbeddingOptions()
        assert old.spec.coordination_limits == TreeLimits()
        await cluster.close()

    asyncio.run(main())


def test_jobs_that_give_way_do_so_only_when_it_is_recorded(disk: VirtualDisk) -> None:
    async def main() -> None:
        cluster = new_cluster(disk)
        half = cluster.network.switches["s1"].slots // 2
        for name in ("a", "b"):
            await cluster.submit(JobSpec(name, ("h1", "h2"), ("ps",), window=half))
        # Both have sent for long: a new job goes before them.
        for number, host in product((1, 2), ("h1", "h2")):
            cluster.priorities.report(number, host, 1000, 1 << 50, 1.0)
        cluster.priorities.update(1.0)
        book_keep = cluster.jobs.keep

        def keep(job: Job) -> None:
            disk.fill(20) if job.spec.name in ("a", "b") else disk.free()
            book_keep(job)

        cluster.jobs.keep = keep  # type: ignore[method-assign]
        job = await cluster.submit(JobSpec("c", ("h3", "h4"), ("ps",), window=half))
        assert job.state is JobState.QUEUED
        assert "cannot begin without a record" in job.reason
        assert [plan.epoch for plan in cluster.plans.plans()] == [1, 1]
        assert cluster.plans.bypassed(1) == cluster.plans.bypassed(2) == frozenset()
        cluster.jobs.keep = book_keep  # type: ignore[method-assign]
        disk.free()
        await reached(job, JobState.WAITING)
        await cluster.close()

    asyncio.run(main())


def test_a_queued_job_starts_when_there_is_room_again(disk: VirtualDisk) -> None:
    async def main() -> None:
        cluster = new_cluster(disk)
        half = cluster.network.switches["s1"].slots // 2
        others = [await cluster.submit(replace(spec(name), window=half)) for name in ("a", "b")]
        job = await cluster.submit(spec("c"))
        assert (job.state, job.plan) == (JobState.QUEUED, None)
        disk.fill(20)
        await cluster.cancel(others[0])
        assert (job.state, job.plan) == (JobState.QUEUED, None)
        assert "cannot begin without a record" in job.reason
        assert [plan.job for plan in cluster.plans.plans()] == [others[1].number]
        await next_check(cluster)
        # It is tried once more meanwhile.
        await reached(job, JobState.QUEUED)
        disk.free()
        await reached(job, JobState.WAITING)
        assert job.epoch == 1
        assert recorded(disk, job.number).state is JobState.WAITING
        assert recorded(disk, others[0].number).state is JobState.CANCELLED
        await cluster.close()

    asyncio.run(main())


def test_events_on_a_full_disk_are_recorded_later(disk: VirtualDisk) -> None:
    """The start and the end of a job: neither ends an agent's stream, nor is an agent left."""

    async def main() -> None:
        cluster = new_cluster(disk)
        sent: list[str] = []
        cluster.send = lambda host, command: sent.append(f"{host} {command.WhichOneof('message')}")
        job = await cluster.submit(spec("a"))
        disk.fill(20)
        for host in ("h1", "h2", "ps"):
            join(cluster, host, 1)
        assert job.state is JobState.RUNNING
        assert recorded(disk).state is JobState.WAITING
        await next_check(cluster)
        assert recorded(disk).state is JobState.WAITING
        disk.free()
        await next_check(cluster)
        assert recorded(disk).state is JobState.RUNNING
        disk.fill(20)
        await cluster.cancel(job)
        assert job.state is JobState.CANCELLED
        assert {"h1 leave", "h2 leave", "ps leave"} <= set(sent)
        assert cluster.plans.plans() == []
        disk.free()
        await next_check(cluster)
        assert recorded(disk).state is JobState.CANCELLED
        await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize("immediate", [False, True])
def test_a_job_that_was_being_started_has_another_epoch_after_a_restart(
    immediate: bool, disk: VirtualDisk
) -> None:
    """Its first epoch may be on switches: no pair of job and epoch is used twice. An immediate one
    has failed: whoever submitted it has been told nothing, and goes without it."""

    async def main() -> None:
        installing = asyncio.Event()

        async def hang(rules: Mapping[str, SwitchRules]) -> None:
            installing.set()
            await asyncio.Event().wait()

        cluster = new_cluster(disk, hang)
        submission = cluster.submit(replace(spec("a"), immediate=immediate))
        submitting = asyncio.create_task(submission)
        await installing.wait()
        # It ends without a further record, as by SIGKILL.
        cluster.jobs.note = lambda job: None  # type: ignore[method-assign]
        await cluster.close()
        submitting.cancel()
        known = recorded(disk)
        assert (known.state, known.epoch) == (JobState.INSTALLING, 1)
        assert known.plan is not None
        again = new_cluster(disk)
        await again.restore()
        job = again.jobs.find(1)
        if immediate:
            assert (job.state, job.reason) == (
                JobState.FAILED,
                "the controller restarted before it began",
            )
            assert again.plans.plans() == []
        else:
            assert (job.state, job.epoch) == (JobState.WAITING, 2)
        await again.close()

    asyncio.run(main())


def test_jobs_outlive_a_restart_that_cannot_be_recorded(disk: VirtualDisk) -> None:
    """The next controller restores them: nothing is wrong with the jobs."""

    async def main() -> None:
        cluster = new_cluster(disk)
        job = await cluster.submit(replace(spec("a"), servers=(), algorithm="ring"))
        await cluster.submit(spec("b"))
        assert job.state is JobState.WAITING
        await cluster.close()
        again = new_cluster(disk)
        disk.fill(20)
        with pytest.raises(UnrecordedError, match="jobs cannot be written: No space left"):
            await again.restore()
        assert [job.state for job in again.jobs] == [JobState.WAITING] * 2
        await again.close()
        disk.free()
        third = new_cluster(disk)
        await third.restore()
        assert [job.state for job in third.jobs] == [JobState.WAITING] * 2
        assert set(third.plans.active) == {1, 2}
        await third.close()

    asyncio.run(main())


def test_a_job_whose_plan_was_changing_fails_where_it_cannot_be_recovered(
    disk: VirtualDisk,
) -> None:
    """It is recorded so if its agents became ready meanwhile."""

    async def main() -> None:
        cluster = new_cluster(disk)
        job = await cluster.submit(spec("a"))
        cluster.jobs.keep(replace(job, state=JobState.CHANGING, started=1.0))
        await cluster.close()
        smaller = ClusterSettings(journal=FileJournal(FILE, disk=disk))
        again = Cluster(load_network("star:1"), install, smaller)
        await again.restore()
        job = again.jobs.find(1)
        assert job.state is JobState.FAILED
        assert "cannot be recovered after a restart of the controller: worker 'h2'" in job.reason
        assert recorded(disk).state is JobState.FAILED
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING, JobState.RUNNING])
def test_a_job_of_vectors_whose_training_was_never_recorded_ends(
    state: JobState, disk: VirtualDisk
) -> None:
    """The controller died between the records of the two: nobody would ever end it."""

    async def main() -> None:
        cluster = new_cluster(disk)
        half = cluster.network.switches["s1"].slots // 2
        if state is JobState.QUEUED:
            for name in ("a", "b"):
                await cluster.submit(replace(spec(name), window=half))
        job = await cluster.submit(training_with_vectors(spec("lost")))
        number = job.spec.task.vectors
        if state is JobState.RUNNING:
            for host in ("h1", "h2", "ps"):
                join(cluster, host, number)
        assert cluster.jobs.find(number).state is state
        await cluster.close()
        forget(disk, job.number)
        again = new_cluster(disk)
        await again.restore()
        companion = again.jobs.find(number)
        await reached(companion, JobState.CANCELLED)
        assert companion.reason == "the controller restarted, and no job needs its vectors"
        assert number not in again.plans.active
        assert recorded(disk, number).state is JobState.CANCELLED
        assert (await again.submit(training_with_vectors(spec("lost")))).outcome is None
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("end", [None, JobState.FINISHED, JobState.FAILED])
def test_a_job_of_vectors_goes_on_after_a_restart_unless_its_training_has_failed(
    end: JobState | None, disk: VirtualDisk
) -> None:
    """Where the training has finished its agents are about to finish too."""

    async def main() -> None:
        cluster = new_cluster(disk)
        job = await cluster.submit(training_with_vectors(spec("a")))
        companion = cluster.jobs.find(job.spec.task.vectors)
        for number, host in product((companion.number, job.number), ("h1", "h2", "ps")):
            join(cluster, host, number)
        if end is not None:
            # Its record is the last.
            cluster.jobs.drain(job, end)
        await cluster.close()
        again = new_cluster(disk)
        await again.restore()
        known = again.jobs.find(companion.number)
        if end is JobState.FAILED:
            await reached(known, JobState.CANCELLED)
        else:
            assert (known.state, known.outcome) == (JobState.RUNNING, None)
            assert again.jobs.find(job.number).outcome is end
        await again.close()

    asyncio.run(main())


def test_a_journal_that_cannot_be_shortened_goes_on(
    disk: VirtualDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopsum.controller.jobs.job_table.MANY_LINES", 10)

    async def main() -> None:
        kept = FileJournal(FILE, disk=disk)
        cluster = Cluster(load_network("star:6"), install, ClusterSettings(journal=kept))
        job = await cluster.submit(spec("a"))

        def refuse(records: object) -> None:
            raise UnrecordedError("no room for two")

        with monkeypatch.context() as patched:
            patched.setattr(kept, "rewrite", refuse)
            for _ in range(30):
                cluster.jobs.keep(job)
        assert kept.lines > 30
        for _ in range(80):
            cluster.jobs.keep(job)
        assert kept.lines < 30
        await cluster.close()

    asyncio.run(main())
