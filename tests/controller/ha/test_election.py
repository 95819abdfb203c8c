"""One of several controllers leads; another takes over when it exits, hangs, or is cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from hopsum.controller.ha import election
from hopsum.controller.ha.election import Election, Leadership, name_of_process
from hopsum.controller.ha.etcd import Etcd, EtcdAddress
from tests.support.etcd import EtcdServer, needs_etcd
from tests.support.machine import PATIENCE

pytestmark = needs_etcd


@contextlib.asynccontextmanager
async def candidate(
    address: EtcdAddress, name: str, seconds: int = 60
) -> AsyncIterator[tuple[list[str], asyncio.Future[Leadership], asyncio.Event]]:
    """Stand for election; gives what it says, its leadership, and what lets it resign."""
    said: list[str] = []
    leads: asyncio.Future[Leadership] = asyncio.get_running_loop().create_future()
    resign = asyncio.Event()

    async def stand() -> None:
        async with Election(address, name, said.append, seconds).lead() as leadership:
            leads.set_result(leadership)
            await resign.wait()

    task = asyncio.create_task(stand())
    try:
        yield said, leads, resign
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def soon(waited: asyncio.Future[Leadership]) -> Leadership:
    return await asyncio.wait_for(asyncio.shield(waited), PATIENCE)


async def received(said: list[str]) -> str:
    async with asyncio.timeout(PATIENCE):
        while not said:
            await asyncio.sleep(0.01)
    return said[-1]


def test_one_leads_and_the_next_when_it_resigns(address: EtcdAddress) -> None:
    async def check() -> None:
        async with candidate(address, "one") as (_, first, resign):
            leadership = await soon(first)
            async with candidate(address, "two") as (said, second, _):
                assert await received(said) == "standing by: one leads"
                assert not second.done()
                resign.set()
                after = await soon(second)
                assert after.term > leadership.term
                assert after.election_id > leadership.election_id
                entry = Etcd(address).get(address.key("leader"))
                assert entry is not None
                assert (entry.value, entry.created) == (b"two", after.term)
                assert not after.lost.is_set()

    asyncio.run(check())


def test_of_many_that_begin_at_once_one_leads(address: EtcdAddress) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            standing = [
                await stack.enter_async_context(candidate(address, str(number)))
                for number in range(5)
            ]
            done, _ = await asyncio.wait(
                [leads for _, leads, _ in standing],
                timeout=PATIENCE,
                return_when=asyncio.FIRST_COMPLETED,
            )
            [leader] = done
            for said, leads, _ in standing:
                if leads is not leader:
                    assert (await received(said)).endswith(" leads")
            assert sum(leads.done() for _, leads, _ in standing) == 1

    asyncio.run(check())


@pytest.mark.slow
def test_a_leader_without_its_lease_steps_down(address: EtcdAddress) -> None:
    async def check() -> None:
        async with candidate(address, "one", seconds=3) as (_, first, _):
            leadership = await soon(first)
            entry = Etcd(address).get(address.key("leader"))
            assert entry is not None
            Etcd(address).revoke(entry.lease)
            await asyncio.wait_for(leadership.lost.wait(), PATIENCE)
            assert leadership.why == "its lease in etcd is gone"

    asyncio.run(check())


@pytest.mark.slow
def test_a_leader_that_cannot_reach_etcd_steps_down(
    server: EtcdServer, address: EtcdAddress
) -> None:
    async def check() -> None:
        async with candidate(address, "one", seconds=2) as (_, first, resign):
            leadership = await soon(first)
            server.pause()
            try:
                await asyncio.wait_for(leadership.lost.wait(), PATIENCE)
                assert leadership.why == "etcd has not answered for 2 s"
                async with candidate(address, "two") as (said, second, _):
                    assert "no answer within 1 s" in await received(said)
                    server.go_on()
                    resign.set()
                    assert (await soon(second)).term > leadership.term
            finally:
                server.go_on()

    asyncio.run(check())


def test_a_leader_refreshes_its_lease(
    address: EtcdAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "REFRESHES", 600)
    refreshed: list[bool] = []
    refresh = Etcd.refresh

    def counted(etcd: Etcd, lease: int) -> bool:
        refreshed.append(refresh(etcd, lease))
        return refreshed[-1]

    monkeypatch.setattr(Etcd, "refresh", counted)

    async def check() -> None:
        async with candidate(address, "one") as (_, first, _):
            leadership = await soon(first)
            async with asyncio.timeout(PATIENCE):
                while len(refreshed) < 5:
                    await asyncio.sleep(0.01)
            assert all(refreshed)
            assert not leadership.lost.is_set()

    asyncio.run(check())


def test_the_name_says_where_a_controller_is() -> None:
    assert name_of_process("h1:9600").startswith("the controller at h1:9600 (process ")
