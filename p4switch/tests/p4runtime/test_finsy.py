"""A controller in finsy drives the switch: what it writes, reads and receives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import finsy
import pytest
from finsy import P4TableAction as Action
from finsy import P4TableEntry as Entry
from finsy import P4TableMatch as Match
from finsy.p4entity import P4Replica

from p4switch.device.bundle import make_bundle
from tests.support.machine import PATIENCE
from tests.support.p4runtime_world import CPU_PORT, DEVICE, World, frame, served
from tests.support.paths import EVERYTHING_P4

world = pytest.fixture(served)

Scenario = Callable[[finsy.Switch], Awaitable[None]]


def control(world: World, tmp_path: Path, scenario: Scenario, **options: Any) -> None:
    """Push `everything.p4` with finsy and run a scenario on the switch."""
    info, bundle = tmp_path / "p4info.txtpb", tmp_path / "everything.p4bin"
    info.write_text(str(world.p4info))
    bundle.write_bytes(make_bundle(EVERYTHING_P4))

    async def main() -> None:
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def ready(switch: finsy.Switch) -> None:
            try:
                async with asyncio.timeout(PATIENCE):
                    await scenario(switch)
            except Exception as error:  # noqa: BLE001
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        switch = finsy.Switch(
            "s1",
            world.address,
            finsy.SwitchOptions(
                p4info=info,
                p4blob=bundle,
                device_id=DEVICE,
                ready_handler=ready,
                **options,
            ),
        )
        controller = finsy.Controller([switch])
        task = asyncio.create_task(controller.run())
        await asyncio.wait({task, outcome}, return_when=asyncio.FIRST_COMPLETED)
        controller.stop()
        with suppress(asyncio.CancelledError):
            await task
        await outcome

    asyncio.run(main())


def test_entries_groups_counters_and_registers(world: World, tmp_path: Path) -> None:
    forward = Entry("exact_table", match=Match(destination=1), action=Action("forward", port=2))
    prefix = Entry(
        "lpm_table",
        match=Match(destination="ab:00:00:00:00:00/8"),
        action=Action("counted_forward", port=3),
    )
    ternary = Entry(
        "ternary_table",
        match=Match(source="0x20/&0xf0", ether_type="5...9", port=3),
        action=Action("drop"),
        priority=10,
    )
    group = finsy.P4MulticastGroupEntry(1, replicas=[1, (2, 7)])
    ran = False

    async def scenario(switch: finsy.Switch) -> None:
        nonlocal ran
        await switch.insert([forward, prefix, ternary, group])
        entries = [entry async for entry in switch.read([Entry()])]
        actions = [entry.action for entry in entries if not entry.is_const]
        assert actions == [forward.action, prefix.action, ternary.action]
        [read_group] = [entry async for entry in switch.read([finsy.P4MulticastGroupEntry()])]
        assert read_group.replicas == (1, P4Replica(2, instance=7))
        await switch.modify([finsy.P4RegisterEntry("totals", index=0, data=41)])
        world.plane.process([(4, frame(1, 2, 3))])
        assert world.plane.sent == [(2, frame(1, 2, 3))]
        [register] = [e async for e in switch.read([finsy.P4RegisterEntry("totals", index=0)])]
        assert register.data == 42
        [counter] = [e async for e in switch.read([finsy.P4CounterEntry("seen", index=4)])]
        assert counter.packet_count == 1
        ran = True

    control(world, tmp_path, scenario)
    assert ran


def test_packets_and_digests(world: World, tmp_path: Path) -> None:
    packet = frame(1, 2, 3, b"payload")
    ran = False

    async def scenario(switch: finsy.Switch) -> None:
        nonlocal ran
        await switch.insert(
            [
                Entry(
                    "exact_table",
                    match=Match(destination=1),
                    action=Action("to_controller", reason=9),
                ),
                Entry("exact_table", match=Match(destination=2), action=Action("learn")),
                finsy.P4DigestEntry("learn_t", max_list_size=1, max_timeout_ns=0),
            ]
        )
        packets, digests = switch.read_packets(), switch.read_digests("learn_t")
        world.plane.process([(5, packet), (6, frame(2, 0xAB, 3))])
        received = await anext(packets)
        assert received.payload == packet
        assert (received["ingress_port"], received["reason"]) == (5, 9)
        learned = await anext(digests)
        assert list(learned) == [{"source": 0xAB, "port": 6}]
        await switch.write([learned.ack()])
        # The second one comes back, so the first one has left before.
        await switch.write(
            [
                finsy.P4PacketOut(packet, egress_port=7, pad=0),
                finsy.P4PacketOut(b"\2\x82" + packet, egress_port=CPU_PORT, pad=0),
            ]
        )
        received = await anext(packets)
        assert (received["ingress_port"], received["reason"]) == (5, 2)
        assert (7, packet) in world.plane.sent
        ran = True

    control(world, tmp_path, scenario)
    assert ran


def test_errors_name_the_update(world: World, tmp_path: Path) -> None:
    entry = Entry("exact_table", match=Match(destination=1), action=Action("drop"))
    ran = False

    async def scenario(switch: finsy.Switch) -> None:
        nonlocal ran
        await switch.insert([entry])
        with pytest.raises(finsy.P4ClientError) as caught:
            await switch.insert([finsy.P4MulticastGroupEntry(1, replicas=[1]), entry])
        [(position, error)] = caught.value.details.items()
        assert position == 1
        assert error.canonical_code == finsy.GRPCStatusCode.ALREADY_EXISTS
        assert "has this entry already" in error.message
        with pytest.raises(finsy.P4ClientError) as caught:
            await switch.delete([finsy.P4MulticastGroupEntry(5)])
        assert caught.value.is_not_found_only
        await switch.delete([finsy.P4MulticastGroupEntry(5)], strict=False)
        ran = True

    control(world, tmp_path, scenario)
    assert ran


def test_a_second_controller_is_a_backup_and_takes_over(world: World, tmp_path: Path) -> None:
    first = world.client(election_id=20)
    first.arbitrate()
    roles: list[bool] = []

    async def scenario(switch: finsy.Switch) -> None:
        roles.append(switch.is_primary)
        if not switch.is_primary:
            await asyncio.to_thread(first.leave)
            await asyncio.Event().wait()  # finsy cancels this when the role changes

    first.push(world.p4info, world.device_config)
    control(world, tmp_path, scenario)
    assert roles == [False, True]
