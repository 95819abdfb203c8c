"""Ports over gNMI: what plain clients and finsy read, and hear when links go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import finsy
import grpc
import pytest
from finsy.gnmiclient import GNMIClient, GNMIPath, gnmi_update
from finsy.proto import gnmi, gnmi_grpc, p4r

from p4switch.p4runtime.interfaces import MAX_SUBSCRIPTIONS, InterfaceService
from tests.support.machine import PATIENCE, until
from tests.support.p4runtime_world import DEVICE, World

STATUS = GNMIPath("interfaces/interface[name=*]/state/oper-status")


@pytest.fixture
def world() -> Iterator[World]:
    made = World({1: "s1-eth1", 7: "s1-eth7"})
    yield made
    made.close()


@pytest.fixture
def stub(world: World) -> Iterator[gnmi_grpc.gNMIStub]:
    with grpc.insecure_channel(world.address) as channel:
        yield gnmi_grpc.gNMIStub(channel)


def values(answer: gnmi.GetResponse) -> list[object]:
    updates = [update for note in answer.notification for update in note.update]
    return [getattr(update.val, str(update.val.WhichOneof("value"))) for update in updates]


def get(stub: gnmi_grpc.gNMIStub, path: str) -> list[object]:
    request = gnmi.GetRequest(path=[GNMIPath(path).path], encoding=gnmi.Encoding.PROTO)
    return values(stub.Get(request, timeout=PATIENCE))


def test_leaves_are_read_by_name_by_wildcard_and_all_below_a_path(
    world: World, stub: gnmi_grpc.gNMIStub
) -> None:
    world.interfaces.port_changed(7, False)
    assert get(stub, "interfaces/interface[name=s1-eth7]/state/ifindex") == [7]
    assert get(stub, "interfaces/interface[name=*]/state/oper-status") == ["UP", "DOWN"]
    assert get(stub, "interfaces/interface/state/id") == [1, 7]
    assert get(stub, "interfaces/interface[name=s1-eth7]") == ["s1-eth7", 7, 7, "DOWN"]
    assert len(get(stub, "interfaces")) == 8
    assert len(values(stub.Get(gnmi.GetRequest()))) == 8
    answer = stub.Capabilities(gnmi.CapabilityRequest())
    assert [model.name for model in answer.supported_models] == ["openconfig-interfaces"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (gnmi.GetRequest(path=[GNMIPath("interfaces/interface[name=eth9]").path]), "NOT_FOUND"),
        (gnmi.GetRequest(path=[GNMIPath("system/state").path]), "NOT_FOUND"),
        (gnmi.GetRequest(type=gnmi.GetRequest.CONFIG), "NOT_FOUND"),
        (gnmi.GetRequest(encoding=gnmi.Encoding.JSON_IETF), "UNIMPLEMENTED"),
    ],
)
def test_unknown_paths_are_not_found(
    stub: gnmi_grpc.gNMIStub, request_: gnmi.GetRequest, code: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Get(request_, timeout=PATIENCE)
    assert caught.value.code().name == code


def test_a_switch_may_have_no_ports() -> None:
    world = World()
    with grpc.insecure_channel(world.address) as channel:
        assert get(gnmi_grpc.gNMIStub(channel), "interfaces/interface[name=*]/state/id") == []
    world.close()


def test_nothing_can_be_set(stub: gnmi_grpc.gNMIStub) -> None:
    update = gnmi_update(GNMIPath("interfaces/interface[name=s1-eth1]/config/enabled"), False)
    with pytest.raises(grpc.RpcError, match="read-only"):
        stub.Set(gnmi.SetRequest(update=[update]), timeout=PATIENCE)


def subscribe(
    mode: gnmi.SubscriptionList.Mode,
    each: gnmi.SubscriptionMode = gnmi.SubscriptionMode.ON_CHANGE,
    **more: object,
) -> gnmi.SubscribeRequest:
    subscription = gnmi.Subscription(path=STATUS.path, mode=each)
    request = gnmi.SubscribeRequest()
    request.subscribe.CopyFrom(
        gnmi.SubscriptionList(mode=mode, subscription=[subscription], **more)  # type: ignore[arg-type]
    )
    return request


LIST = gnmi.SubscriptionList


def test_a_subscription_begins_with_the_state_and_goes_on_with_changes(world: World) -> None:
    async def main() -> None:
        client = GNMIClient(world.address)
        await client.open()
        subscription = client.subscribe()
        subscription.on_change(STATUS)
        async with asyncio.timeout(PATIENCE):
            state = [update.value async for update in subscription.synchronize()]
            assert state == ["UP", "UP"]
            changes = aiter(subscription.updates())
            for up in (False, True):
                world.interfaces.port_changed(7, up)
                update = await anext(changes)
                assert update.path["name"] == "s1-eth7"
                assert update.value == ("UP" if up else "DOWN")
        subscription.cancel()
        await client.close()

    asyncio.run(main())


def test_once_is_the_state_and_the_end(stub: gnmi_grpc.gNMIStub) -> None:
    answers = list(stub.Subscribe(iter([subscribe(LIST.ONCE)]), timeout=PATIENCE))
    assert [len(answer.update.update) for answer in answers] == [2, 0]
    assert answers[-1].sync_response


@pytest.mark.parametrize(
    "request_",
    [
        gnmi.SubscribeRequest(),
        subscribe(LIST.POLL),
        subscribe(LIST.STREAM, gnmi.SubscriptionMode.SAMPLE),
        subscribe(LIST.STREAM, encoding=gnmi.Encoding.BYTES),
    ],
)
def test_other_subscriptions_are_refused(
    stub: gnmi_grpc.gNMIStub, request_: gnmi.SubscribeRequest
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Subscribe(iter([request_]), timeout=PATIENCE))
    assert caught.value.code().name in ("INVALID_ARGUMENT", "UNIMPLEMENTED")


def test_unfetched_changes_are_reported_once() -> None:
    service = InterfaceService({1: "a", 2: "b"}, lambda: 5)
    woken: list[int] = []
    stream = service.join(subscribe(LIST.STREAM), lambda: woken.append(1))
    for up in (False, True, False):
        service.port_changed(2, up)
    service.port_changed(1, True)
    [news] = service.news(stream)
    assert news.update.timestamp == 5
    assert [update.val.string_val for update in news.update.update] == ["DOWN"]
    assert service.news(stream) == []
    assert len(woken) == 3
    service.leave(stream)
    service.port_changed(2, True)
    assert len(woken) == 3


@pytest.mark.slow
def test_clients_that_have_gone_leave_room(world: World, stub: gnmi_grpc.gNMIStub) -> None:
    for _ in range(2 * MAX_SUBSCRIPTIONS):
        stream = stub.Subscribe(iter([subscribe(LIST.STREAM)]), timeout=PATIENCE)
        assert not next(stream).sync_response
        stream.cancel()
    open_: list[Any] = []

    def opened() -> bool:
        """Whether there is room for all; that of one that has gone is free a little later."""
        stream = stub.Subscribe(iter([subscribe(LIST.STREAM)]))
        with contextlib.suppress(grpc.RpcError):
            next(stream)
            open_.append(stream)
        return len(open_) == MAX_SUBSCRIPTIONS

    until(opened, "room for as many subscriptions as may be")
    with pytest.raises(grpc.RpcError, match="16 subscriptions already"):
        next(stub.Subscribe(iter([subscribe(LIST.STREAM)]), timeout=PATIENCE))
    # Nor do they keep others out.
    assert world.client().stub.Capabilities(p4r.CapabilitiesRequest(), timeout=PATIENCE)
    for stream in open_:
        stream.cancel()


def test_finsy_s_ports(world: World) -> None:
    world.start()

    async def main() -> None:
        options = finsy.SwitchOptions(p4info=world.p4info, device_id=DEVICE)  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE):
            async with finsy.Switch("s1", world.address, options) as switch:
                assert {port.id: port.up for port in switch.ports} == {1: True, 7: True}
                world.interfaces.port_changed(7, False)
                # It connects to no switch: finsy 0.28 listens without one.
                while switch.ports["s1-eth7"].up:
                    await asyncio.sleep(0.01)
                assert switch.ports["s1-eth1"].up

    asyncio.run(main())
