"""Reports of bandwidth: smoothed, aged, and refused where they cannot be true."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.controller.telemetry.state import (
    AGE_LIMIT_SECONDS,
    SMOOTHING_SECONDS,
    InterfaceUse,
    NetworkState,
    PortBytes,
    ReportError,
)
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb

RATE = 1e8
NETWORK = load_network("leaf-spine:2x2", link_rate=RATE, workers=4)
HOST = next(iter(NETWORK.hosts))
LEAF = NETWORK.access_switch(HOST)
TAU = SMOOTHING_SECONDS


def state(network: Network = NETWORK) -> NetworkState:
    return NetworkState(network)


def test_unreported_bandwidth_counts_as_free() -> None:
    link = state().link(HOST, LEAF, 0.0)
    assert (link.used, link.free, link.age) == (0.0, RATE, None)


def test_both_directions_of_an_interface() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 3e7, 1e7)], 0.0)
    up, down = known.link(HOST, LEAF, 1.0), known.link(LEAF, HOST, 1.0)
    assert (up.used, up.free, up.age) == (3e7, 7e7, 1.0)
    assert (down.used, down.free) == (1e7, 9e7)


def test_a_step_has_its_effect_with_the_time_constant() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 0.0, 0.0)], 0.0)
    known.report(HOST, [InterfaceUse(LEAF, 8e7, 0.0)], TAU)
    assert known.link(HOST, LEAF, TAU).used == pytest.approx(8e7 * (1 - math.exp(-1)))


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=20))
def test_smoothing_does_not_depend_on_how_often_is_reported(steps: list[float]) -> None:
    often, once = state(), state()
    for known in (often, once):
        known.report(HOST, [InterfaceUse(LEAF, 0.0, 0.0)], 0.0)
    now = 0.0
    for step in steps[: int(10 / max(steps))]:
        now += step
        often.report(HOST, [InterfaceUse(LEAF, 8e7, 0.0)], now)
    if now:
        once.report(HOST, [InterfaceUse(LEAF, 8e7, 0.0)], now)
    assert often.link(HOST, LEAF, now).used == pytest.approx(once.link(HOST, LEAF, now).used)


def test_a_report_ages_out_and_is_not_smoothed_into_the_next() -> None:
    known = state()
    limit = AGE_LIMIT_SECONDS
    known.report(HOST, [InterfaceUse(LEAF, 9e7, 0.0)], 0.0)
    assert known.link(HOST, LEAF, limit).used == 9e7
    assert known.link(HOST, LEAF, limit + 0.1).age is None
    known.report(HOST, [InterfaceUse(LEAF, 1e7, 0.0)], limit + 0.1)
    assert known.link(HOST, LEAF, limit + 0.1).used == 1e7


def test_the_lower_of_two_residuals_counts() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 1e7, 0.0)], 0.0)
    known.report(LEAF, [InterfaceUse(HOST, 0.0, 6e7)], 0.0)
    link = known.link(HOST, LEAF, 0.0)
    assert (link.used, link.free) == (6e7, 4e7)
    known.forget(LEAF)
    assert known.link(HOST, LEAF, 0.0).used == 1e7


def test_an_agent_may_leave_less_than_the_rest() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 1e7, 0.0, free_sent=2e7)], 0.0)
    assert known.link(HOST, LEAF, 0.0).free == 2e7


def test_a_message_as_agents_send_it() -> None:
    known = state()
    use = pb.InterfaceReport(peer=LEAF, sent=1e7, received=2e7, free_received=0.0)
    known.take_report(HOST, pb.NodeReport(interfaces=[use]), 0.0)
    assert known.link(HOST, LEAF, 0.0).free == 9e7
    assert known.link(LEAF, HOST, 0.0).free == 0.0


def test_counters_become_rates() -> None:
    known = state()
    known.count(LEAF, [PortBytes(HOST, 1000, 500)], 10.0)
    assert known.link(LEAF, HOST, 10.0).age is None
    known.count(LEAF, [PortBytes(HOST, 1000 + 2_500_000, 500)], 12.0)
    assert known.link(LEAF, HOST, 12.0).used == 1e7
    assert known.link(HOST, LEAF, 12.0).used == 0.0
    assert known.link(HOST, LEAF, 12.0).age == 0.0


def test_counters_that_begin_anew_give_no_rate() -> None:
    known = state()
    known.count(LEAF, [PortBytes(HOST, 10**9, 0)], 0.0)
    known.count(LEAF, [PortBytes(HOST, 100, 0)], 1.0)
    assert known.link(LEAF, HOST, 1.0).age is None
    known.count(LEAF, [PortBytes(HOST, 100 + 1_250_000, 0)], 2.0)
    assert known.link(LEAF, HOST, 2.0).used == 1e7


LIES: list[tuple[Callable[[NetworkState], object], str]] = [
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, -1.0, 0.0)], 1.0), "sends -1.0 bit/s"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, 0.0, math.inf)], 1.0), "receives inf bit/s"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, math.nan, 0.0)], 1.0), "sends nan bit/s"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, 1.06 * RATE, 0.0)], 1.0), "carries 1e[+]08"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, 0.0, 0.0, free_sent=-1.0)], 1.0), "has left"),
    (
        lambda s: s.report(HOST, [InterfaceUse(LEAF, 5e7, 0.0, free_sent=6e7)], 1.0),
        "with what it says is left",
    ),
    (lambda s: s.report(HOST, [InterfaceUse("nobody", 0.0, 0.0)], 1.0), f"links go to {LEAF}"),
    (lambda s: s.report("nobody", [], 1.0), "no such node"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, 0.0, 0.0)] * 2, 1.0), "more than once"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, 0.0, 0.0)], -1.0), "expected a later time"),
    (lambda s: s.report(HOST, [InterfaceUse(LEAF, 0.0, 0.0)], math.nan), "expected a later time"),
    (lambda s: s.count(LEAF, [PortBytes(HOST, -1, 0)], 1.0), "-1 bytes sent"),
    (lambda s: s.count(LEAF, [PortBytes(HOST, 0, 0)], 0.5), "expected a later reading"),
    (lambda s: s.count(LEAF, [PortBytes(HOST, 10**9, 0)], 1.0), "expected no more"),
]


@pytest.mark.parametrize(("lie", "message"), LIES)
def test_a_false_report_is_refused_and_changes_nothing(
    lie: Callable[[NetworkState], object], message: str
) -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 2e7, 0.0)], 0.0)
    known.count(LEAF, [PortBytes(HOST, 0, 0)], 0.5)
    before = known.links(1.0)
    with pytest.raises(ReportError, match=message):
        lie(known)
    assert known.links(1.0) == before
    known.report(HOST, [InterfaceUse(LEAF, 2e7, 0.0)], 1.0)
    known.count(LEAF, [PortBytes(HOST, 0, 0)], 1.0)


def test_one_valid_interface_does_not_excuse_an_invalid_one() -> None:
    known = state()
    peer = next(peer for peer in NETWORK.ports(LEAF).values() if peer != HOST)
    uses = [InterfaceUse(HOST, 1e7, 1e7), InterfaceUse(peer, -1.0, 0.0)]
    with pytest.raises(ReportError):
        known.report(LEAF, uses, 0.0)
    assert known.link(LEAF, HOST, 0.0).age is None


def test_a_burst_of_the_shaper_is_no_false_report() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 1.04 * RATE, 0.0)], 0.0)
    link = known.link(HOST, LEAF, 0.0)
    assert (link.used, link.free) == (RATE, 0.0)


def test_a_job_that_is_planned_anew_has_its_own_bandwidth_to_give() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 6e7, 0.0)], 0.0)
    assert known.shares(0.0)[HOST, LEAF] == pytest.approx(0.4)
    assert known.shares(0.0, {(HOST, LEAF): 5e7})[HOST, LEAF] == pytest.approx(0.9)
    # What it says it uses is in use only as far as somebody sees it.
    assert known.shares(0.0, {(HOST, LEAF): 9e7})[HOST, LEAF] == pytest.approx(1.0)


def test_expected_load_counts_until_reports_show_it() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 4e7, 0.0)], 0.0)
    known.expect(1, {(HOST, LEAF): 4e7}, {(LEAF, HOST): 3e7}, 0.0)
    shares = known.shares(0.0)
    assert shares[HOST, LEAF] == pytest.approx(1)
    assert shares[LEAF, HOST] == pytest.approx(0.7)
    assert known.shares(TAU)[LEAF, HOST] == pytest.approx(1 - 0.3 * math.exp(-1))


def test_a_job_that_moves_twice_is_expected_where_it_went_last() -> None:
    known = state()
    known.report(HOST, [InterfaceUse(LEAF, 4e7, 0.0)], 0.0)
    here, there = {(HOST, LEAF): 4e7}, {(LEAF, HOST): 3e7}
    known.expect(1, here, there, 0.0)
    known.expect(1, there, here, 0.0)
    shares = known.shares(0.0)
    assert shares[HOST, LEAF] == pytest.approx(0.6)
    assert shares[LEAF, HOST] == pytest.approx(1)


def test_a_link_without_bandwidth_has_no_free_part() -> None:
    network = load_network("star:2")
    known = state(network)
    host = next(iter(network.hosts))
    switch = network.access_switch(host)
    known.report(host, [InterfaceUse(switch, 1e12, 0.0)], 0.0)
    assert known.link(host, switch, 0.0).free is None
    assert known.shares(0.0) == {}
