from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hopsum.collectives.plan import JobPlan
from hopsum.controller.dataplane.slots import SlotState
from hopsum.controller.telemetry.slot_diagnosis import find_missing, job_slots
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import Width


def planned(plain: tuple[str, ...] = ()) -> tuple[Network, JobPlan]:
    network = load_network("leaf-spine:3x2x1", plain=plain)
    workers = ("h1", "h2", "h3", "h4", "h5", "h6")
    return network, plan_job(network, PlanRequest(1, 1, workers, ("ps",), window=4))


def state(fragment: int, bitmap: int, fan_in: int, **change: int | bool) -> SlotState:
    fields: dict[str, int | bool] = {
        "slot": fragment % 4,
        "valid": True,
        "cleared": False,
        "job": 1,
        "tree": 0,
        "epoch": 1,
        "fragment": fragment,
        "bitmap": bitmap,
        "count": bitmap.bit_count(),
        "fan_in": fan_in,
        "weight": 1,
        "flags": 0,
        "exponent": 0,
    }
    return SlotState(
        width=Width.WIDTH_32,
        lanes=np.zeros(32, dtype=np.int32),
        **{**fields, **change},  # type: ignore[arg-type]
    )


def missing(
    slots: Mapping[str, list[SlotState]], plain: tuple[str, ...] = ()
) -> list[tuple[int, str, int, str, tuple[str, ...]]]:
    network, plan = planned(plain)
    return [
        (m.fragment, m.switch, m.child, m.neighbour, m.workers)
        for m in find_missing(network, plan, slots)
    ]


def test_nothing_is_missing() -> None:
    assert missing({}) == []
    assert missing({"l2": [state(0, 0b11, 2)], "s1": [state(0, 0b01, 2, cleared=True)]}) == []


def test_the_slots_of_a_job() -> None:
    _, plan = planned()
    assert job_slots(plan) == {name: [range(0, 4)] for name in ("l1", "l2", "l3", "s1")}


def test_a_worker_that_has_not_sent() -> None:
    assert missing({"l2": [state(5, 0b01, 2)]}) == [(5, "l2", 1, "h4", ("h4",))]


def test_only_the_lowest_switch_that_waits_is_named() -> None:
    slots = {
        "l2": [state(5, 0b10, 2)],
        "s1": [state(5, 0b10, 2)],
        "l1": [state(5, 0b011, 3)],
    }
    assert missing(slots) == [(5, "l2", 0, "h3", ("h3",))]


def test_a_sum_that_was_lost_between_switches() -> None:
    network, plan = planned()
    slots = {"l2": [state(5, 0b11, 2)], "s1": [state(5, 0b10, 2)]}
    (found,) = find_missing(network, plan, slots)
    assert (found.switch, found.neighbour, found.workers) == ("s1", "l2", ("h3", "h4"))
    assert "l2 has the sum" in found.why


def test_nothing_has_reached_the_switch_below() -> None:
    network, plan = planned()
    slots = {"l2": [state(1, 0b11, 2)], "s1": [state(5, 0b10, 2)]}
    (found,) = find_missing(network, plan, slots)
    assert found.why == "no packet of this fragment has reached l2"


def test_a_child_behind_a_plain_switch() -> None:
    assert missing({"s1": [state(2, 0b0101, 4)]}, plain=("l2", "l3")) == [
        (2, "s1", 1, "l2", ("h4",)),
        (2, "s1", 3, "l3", ("h6",)),
    ]


def test_other_jobs_and_epochs_do_not_count() -> None:
    slots = {"l2": [state(5, 1, 2, job=2), state(6, 1, 2, epoch=3), state(7, 1, 2, valid=False)]}
    assert missing(slots) == []
