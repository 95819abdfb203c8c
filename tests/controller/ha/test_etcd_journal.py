"""Jobs in etcd: what one leader writes the next one reads, and no other can write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hopsum.controller.ha import etcd_journal as module
from hopsum.controller.ha.election import Leadership
from hopsum.controller.ha.etcd import Etcd, EtcdAddress
from hopsum.controller.ha.etcd_journal import EtcdJournal
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.journal import JournalError, UnrecordedError
from hopsum.protocol import hopsum_pb2 as pb
from tests.controller.jobs.test_job_table import job as make_job
from tests.support.etcd import EtcdServer, needs_etcd

pytestmark = needs_etcd


async def begin_term(address: EtcdAddress) -> tuple[EtcdJournal, Leadership]:
    """Lead, as if elected, and end the term of the previous leader."""
    etcd, key = Etcd(address), address.key("leader")
    etcd.change({}, [key])
    etcd.change({key: b""})
    entry = etcd.get(key)
    assert entry is not None
    leadership = Leadership(key, entry.created)
    return EtcdJournal(etcd, leadership), leadership


def record(number: int, **rest: Any) -> dict[str, Any]:
    return {"number": number, **rest}


def test_the_last_record_of_each_job_is_kept(address: EtcdAddress) -> None:
    async def check() -> None:
        journal, _ = await begin_term(address)
        assert journal.read() == []
        for written in (record(12, state="queued"), record(7), record(12, state="ended")):
            journal.append(written)
        assert journal.lines == 3
        after, _ = await begin_term(address)
        assert after.read() == [record(7), record(12, state="ended")]
        assert after.lines == 2

    asyncio.run(check())


def test_rewriting_removes_what_is_forgotten_in_parts(
    address: EtcdAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CHANGES", 2)

    async def check() -> None:
        journal, _ = await begin_term(address)
        for number in range(1, 8):
            journal.append(record(number))
        wanted = [record(2), record(6, new=1), *map(record, range(8, 12))]
        journal.rewrite(wanted)
        assert journal.lines == len(wanted)
        assert (await begin_term(address))[0].read() == wanted
        # What etcd has already is not sent again.
        journal, leadership = await begin_term(address)
        journal.read()
        Etcd(address).change({}, [leadership.fence.key])
        journal.rewrite(wanted)
        with pytest.raises(UnrecordedError):
            journal.rewrite(wanted[1:])

    asyncio.run(check())


def test_a_job_ends_whatever_the_length_of_its_reports(address: EtcdAddress) -> None:
    """etcd takes 1.5 MiB at a time; the times of tensors are left out rather than the end."""
    times = [float(number) for number in range(200_000)]

    async def check() -> None:
        table = JobTable((await begin_term(address))[0])
        job = make_job(table, "long")
        report = pb.Report(intervals=pb.Intervals(starts=times, finishes=times), sent_bytes=7)
        table.drain(job, JobState.FINISHED, "", {"h1": report})
        table.drained(job)
        after = JobTable((await begin_term(address))[0]).find(name="long")
        assert after.outcome is JobState.FINISHED
        assert after.reports["h1"] == pb.Report(sent_bytes=7)

    asyncio.run(check())


def test_many_long_records_are_rewritten_in_parts(address: EtcdAddress) -> None:
    async def check() -> None:
        journal, _ = await begin_term(address)
        wanted = [record(number, text="x" * 50_000) for number in range(1, 81)]
        journal.rewrite(wanted)
        assert (await begin_term(address))[0].read() == wanted

    asyncio.run(check())


def test_a_leader_of_an_earlier_term_writes_nothing(address: EtcdAddress) -> None:
    async def check() -> None:
        old, term = await begin_term(address)
        old.append(record(1))
        new, newer = await begin_term(address)
        assert newer.election_id > term.election_id
        with pytest.raises(UnrecordedError, match="another controller, which leads now"):
            old.append(record(1, spoilt=True))
        await asyncio.wait_for(term.lost.wait(), 60)
        assert term.why == "another controller leads"
        assert new.read() == [record(1)]
        assert not newer.lost.is_set()

    asyncio.run(check())


@pytest.mark.slow
def test_an_etcd_that_is_away(server: EtcdServer, address: EtcdAddress) -> None:
    async def check() -> None:
        journal, term = await begin_term(address)
        server.pause()
        try:
            with pytest.raises(UnrecordedError, match=r"etcd://.* cannot be written: .*no answer"):
                journal.append(record(1))
        finally:
            server.go_on()
        journal.append(record(2))
        assert not term.lost.is_set()

    asyncio.run(check())


@pytest.mark.parametrize("value", [b"{", b"[1]", b"\xff", b"{}"])
def test_invalid_records_are_named(address: EtcdAddress, value: bytes) -> None:
    async def check() -> None:
        journal, _ = await begin_term(address)
        Etcd(address).change({address.key("jobs", "00000003"): value})
        with pytest.raises(JournalError, match=f"key {address.key('jobs', '00000003')}: "):
            journal.read()

    asyncio.run(check())


def test_a_table_of_jobs_goes_on_under_the_next_leader(address: EtcdAddress) -> None:
    async def check() -> None:
        journal, _ = await begin_term(address)
        table = JobTable(journal)
        job = make_job(table, "kept")
        after = JobTable((await begin_term(address))[0])
        assert after.find(name="kept").spec == job.spec
        assert after.next_number() == job.number + 1

    asyncio.run(check())
