"""Meters over long times: what passes green is what the committed rate allows, no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p4switch.targets.v1model.engine import MeterConfig
from p4switch.targets.v1model.meters import GREEN, RED, YELLOW, Meter

gaps = st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60)


def run(config: MeterConfig, gaps_us: list[int], length: int, unit_bytes: bool) -> list[int]:
    meter = Meter(unit_bytes)
    meter.configure(config)
    now = 0
    colors = []
    for gap in gaps_us:
        now += gap
        colors.append(meter.execute(length, now))
    return colors


@given(gaps, st.integers(1, 20), st.integers(0, 5), st.integers(1, 10), st.integers(0, 10))
def test_no_more_passes_than_rate_and_burst_allow(
    gaps_us: list[int], cir: int, more: int, cburst: int, extra: int
) -> None:
    config = MeterConfig(cir, cburst, cir + more, cburst + extra)
    colors = run(config, gaps_us, 100, unit_bytes=False)
    seconds = sum(gaps_us) / 1_000_000
    assert colors.count(GREEN) <= cburst + cir * seconds
    assert len(colors) - colors.count(RED) <= config.pburst + config.pir * seconds


def test_a_steady_stream_at_the_committed_rate_stays_green() -> None:
    assert set(run(MeterConfig(4, 1, 4, 1), [250_000] * 1000, 1, unit_bytes=False)) == {GREEN}


def test_twice_the_committed_rate_is_half_yellow() -> None:
    colors = run(MeterConfig(4, 1, 8, 1), [125_000] * 1000, 1, unit_bytes=False)
    assert RED not in colors
    assert abs(colors.count(YELLOW) - 500) <= 1


def test_bytes_are_what_a_byte_meter_counts() -> None:
    assert run(MeterConfig(1, 150, 1, 250), [0] * 3, 100, unit_bytes=True) == [GREEN, YELLOW, RED]


def test_without_configuration_all_is_green() -> None:
    meter = Meter()
    meter.configure(MeterConfig(0, 0, 0, 0))
    assert meter.execute(1, 0) == RED
    meter.configure(None)
    assert meter.execute(1, 0) == GREEN
