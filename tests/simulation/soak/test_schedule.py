"""Fault schedules as JSON."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.simulation.soak.generator import make_schedule
from hopsum.simulation.soak.inputs import check, network_of
from hopsum.simulation.soak.schedule import ScheduleFileError, from_json, kind_of, to_json
from tests.support.search import examples


@pytest.mark.slow
@settings(max_examples=examples(60, of=1000), deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_schedule_is_the_same_after_a_round_trip(seed: int) -> None:
    schedule = make_schedule(seed)
    check(schedule)
    assert from_json(to_json(schedule)) == schedule
    assert make_schedule(seed) == schedule


@pytest.mark.slow
def test_seeds_give_all_that_is_tried() -> None:
    schedules = [make_schedule(seed) for seed in range(1000)]
    kinds = {kind_of(fault) for schedule in schedules for fault in schedule.faults}
    assert {
        "switch down", "switch hangs", "link cut", "agent down", "controller down", "parted",
        "disk full", "disk torn", "clock set",
    } <= kinds  # fmt: skip
    assert sum(kind.startswith("forged") for kind in kinds) == 8
    jobs = [job for schedule in schedules for job in schedule.jobs]
    assert len({job.algorithm for job in jobs}) >= 6
    assert {job.kind for job in jobs} == {"random", "digits", "process"}
    assert {bool(network_of(s.network).switches) for s in schedules[:200]} == {True, False}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not JSON"),
        ("[]", "expected a JSON object"),
        ('{"seed": 1, "network": {}, "colour": 1}', "there is no such field"),
        ('{"seed": true, "network": {}}', "seed: True: expected int"),
        ('{"seed": 1}', "missing 1 required"),
        ('{"seed": 1, "network": {"rate": 1e400}}', "network: rate: inf: expected a number"),
        ('{"seed": 1, "network": {}, "faults": [{"kind": "flood"}]}', "expected one of noise"),
        ('{"seed": 1, "network": {}, "faults": {}}', "faults: expected a list"),
        (
            '{"seed": 1, "network": {}, "jobs": [{"name": "a", "start": 0, "workers": [],'
            ' "servers": [], "algorithm": "guess"}]}',
            "jobs[0]: algorithm: 'guess': expected one of in-network",
        ),
    ],
)
def test_invalid_schedules_are_refused(text: str, words: str) -> None:
    with pytest.raises(ScheduleFileError) as error:
        from_json(text)
    assert words in str(error.value)
