"""The adaptive timeout in C against RFC 6298's formulas."""

from __future__ import annotations

import ctypes

import pytest

from hopsum.host_agent.datapath import library as datapath
from hopsum.host_agent.datapath.library import library


class RoundTrip:
    """`struct round_trip`, of a stream that has measured nothing."""

    def __init__(self, initial: float, least: float, most: float) -> None:
        self.state = datapath.RoundTrip(initial=initial, least=least, most=most)
        self._at = ctypes.addressof(self.state)
        library().round_trip_start(self._at)

    def sample(self, seconds: float) -> None:
        library().round_trip_sample(self._at, seconds)

    def back_off(self, now: float, last_sent: float) -> None:
        library().round_trip_back_off(self._at, now, last_sent)


def test_the_first_sample_sets_the_timeout() -> None:
    trip = RoundTrip(1.0, 0.001, 60.0)
    assert trip.state.timeout == 1.0
    trip.sample(0.2)
    assert trip.state.timeout == pytest.approx(0.2 + 4 * 0.1)


def test_later_samples_are_smoothed() -> None:
    trip = RoundTrip(1.0, 0.001, 60.0)
    trip.sample(0.2)
    trip.sample(0.6)
    variation = 0.75 * 0.1 + 0.25 * 0.4
    smoothed = 0.875 * 0.2 + 0.125 * 0.6
    assert trip.state.smoothed == pytest.approx(smoothed)
    assert trip.state.timeout == pytest.approx(smoothed + 4 * variation)


def test_the_timeout_stays_within_its_limits() -> None:
    trip = RoundTrip(1.0, 0.1, 2.0)
    for _ in range(50):
        trip.sample(0.001)
    assert trip.state.timeout == 0.1
    trip.sample(30.0)
    assert trip.state.timeout == 2.0


def test_back_off_doubles_once_a_round_until_the_next_sample() -> None:
    trip = RoundTrip(1.0, 0.1, 5.0)
    trip.back_off(1.0, last_sent=0.0)
    trip.back_off(1.1, last_sent=0.1)
    assert trip.state.timeout == 2.0
    trip.back_off(3.0, last_sent=1.0)
    assert trip.state.timeout == 4.0
    trip.back_off(7.0, last_sent=3.0)
    assert trip.state.timeout == 5.0
    trip.sample(0.2)
    assert trip.state.timeout == pytest.approx(0.6)


def test_with_patience_it_backs_off_faster_and_further() -> None:
    trip = RoundTrip(1.0, 0.1, 2.0)
    trip.state.patient = True
    timeouts = []
    for round_ in range(4):
        trip.back_off(float(round_), last_sent=float(round_))
        timeouts.append(trip.state.timeout)
    assert timeouts == [4.0, 16.0, 16.0, 16.0]
