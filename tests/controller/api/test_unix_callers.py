"""Users of the machine at the controller's Unix socket: who gets in, and as whom."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum.controller.api import unix_callers
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.listening import at
from hopsum.controller.api.unix_callers import NoGroupError
from hopsum.protocol.channel import ControllerError
from tests.support.cluster_world import World, ring
from tests.support.other_user import NOBODY, as_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes on another user (root)")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may enter and write to, as /tmp."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def socket_of(world: World) -> Path:
    return Path(world.address.removeprefix("unix:"))


def group_of(number: int) -> str:
    return grp.getgrgid(number).gr_name


def test_the_socket_is_of_its_user_alone(world: World) -> None:
    assert stat.S_IMODE(socket_of(world).stat().st_mode) == 0o600


@needs_root
def test_another_user_does_not_get_in(open_folder: Path) -> None:
    with (
        contextlib.closing(World(open_folder)) as world,
        as_user(socket_of(world), open_folder, NOBODY, NOBODY) as (address, _),
        pytest.raises(ControllerError, match="UNAVAILABLE"),
    ):
        ControllerClient(address).jobs()


@needs_root
def test_users_of_a_group_own_the_jobs_that_they_submit(open_folder: Path) -> None:
    group = group_of(NOBODY)
    with (
        contextlib.closing(World(open_folder, group=group)) as world,
        as_user(socket_of(world), open_folder, NOBODY, NOBODY) as (one, _),
        as_user(socket_of(world), open_folder, NOBODY - 1, NOBODY) as (two, _),
        as_user(socket_of(world), open_folder, NOBODY, NOBODY - 1) as (outside, _),
    ):
        assert stat.S_IMODE(socket_of(world).stat().st_mode) == 0o660
        world.agents("h3")
        member, other = ControllerClient(one), ControllerClient(two)
        owner = member.submit(ring("mine", "h1,h2")).owner
        assert owner.endswith(f"(uid {NOBODY})")
        assert [job.owner for job in other.jobs()] == [owner]
        words = (
            rf"job 1 \(mine\) belongs to .*uid {NOBODY}.*, and you are .*uid {NOBODY - 1}.*, user"
        )
        with pytest.raises(ControllerError, match=words):
            other.cancel("mine")
        with pytest.raises(ControllerError, match=r"Inspect: you are .* it requires role operator"):
            member.slots("s1", 0, 1)
        assert member.cancel("mine").outcome == "cancelled"
        member.submit(ring("second", "h1,h2"))
        assert world.queries.cancel("second").outcome == "cancelled"
        with pytest.raises(ControllerError, match="UNAVAILABLE"):
            ControllerClient(outside).jobs()


@needs_root
def test_users_and_their_connections_are_bounded(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(NOBODY)
    with contextlib.closing(World(open_folder, group=group)) as world:
        path = socket_of(world)
        # The controller's own user is the first.
        monkeypatch.setattr(unix_callers, "MOST_USERS", 2)
        with as_user(path, open_folder, NOBODY, NOBODY) as (one, _):
            assert ControllerClient(one).jobs() == []
            with (
                as_user(path, open_folder, NOBODY - 1, NOBODY) as (two, _),
                pytest.raises(ControllerError, match="UNAVAILABLE"),
            ):
                ControllerClient(two).jobs()
            monkeypatch.setattr(unix_callers, "MOST_CONNECTIONS", 0)
            with pytest.raises(ControllerError, match="UNAVAILABLE"):
                ControllerClient(one).jobs()
        assert world.queries.jobs() == []


def test_no_group_of_that_name(tmp_path: Path) -> None:
    async def listen() -> None:
        async with at(f"unix:{tmp_path}/c", group="none-such")([]):
            pass

    with pytest.raises(NoGroupError, match="group 'none-such': no such group on this machine"):
        asyncio.run(listen())
