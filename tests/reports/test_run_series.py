"""Goodput and slots of a run over time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hopsum.controller.web.recording import Recording
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import Report, RunMeasurement, RunPrediction
from hopsum.experiment.runner import run_experiment
from hopsum.host_agent.workload import Interval, Verdict
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.outcomes import Outcome, packets, sums
from hopsum.reports.run_page import Run, switch_table
from hopsum.reports.run_series import SwitchSlots, goodput, slots
from hopsum.reports.summary import PREDICTED, ROWS
from hopsum.timing.work import SwitchLoad

SMALL = Experiment("leaf-spine:2x2", 4, elements=30_000, rounds=3, lanes=64, link_rate=25e6)


def report(intervals: list[list[Interval]], steps: int) -> Report:
    measured = RunMeasurement(1.0, {}, {}, 0, Verdict(), intervals=intervals)
    return Report(Experiment(), 2000, RunPrediction({}, 1.0), measured, steps=steps)


def test_a_step_begins_when_the_last_worker_has_submitted() -> None:
    found = goodput(report([[(10.0, 14.0), (20.0, 22.0)], [(12.0, 13.0), (20.0, 24.0)]], 2))
    assert [(step.start, step.finish) for step in found] == [(0.0, 2.0), (8.0, 12.0)]
    assert [step.workers for step in found] == [(16_000, 32_000), (16_000, 8_000)]


def test_the_tensors_of_a_step_count_together() -> None:
    [step] = goodput(report([[(1.0, 2.0), (1.5, 3.0)], [(1.0, 4.0), (2.0, 5.0)]], 1))
    assert (step.start, step.finish, step.workers) == (0.0, 4.0, (32_000, 16_000))


@pytest.mark.parametrize("intervals", [[], [[], []], [[(1.0, 2.0)], []]])
def test_without_times_of_every_worker_there_is_no_goodput(
    intervals: list[list[Interval]],
) -> None:
    assert goodput(report(intervals, 1)) == []


@pytest.mark.slow
def test_the_slowest_worker_of_a_step_has_the_goodput_of_its_call() -> None:
    finished = run_experiment(SMALL)
    assert finished.measured is not None
    bits = 32 * SMALL.elements
    slowest = [min(step.workers) for step in goodput(finished)]
    assert slowest == pytest.approx([bits / call for call in finished.measured.calls])


def recorded(date: float, held: int, **outcomes: int) -> pb.ClusterState:
    state = pb.ClusterState(date=date)
    state.jobs.add(job=7, name="run", submitted=100.0)
    state.slots.add(switch="s1", held={7: held, 8: 5})
    state.slots.add(switch="s2", held={8: 5})
    state.switches.add(name="s1", outcomes=outcomes)
    return state


def test_slots_are_those_of_the_job() -> None:
    states = [
        pb.ClusterState(date=99.0),
        recorded(101.0, 16),
        recorded(102.0, 16, completed=9, cleared=4),
        recorded(103.0, 0, completed=1, cleared=2),
    ]
    times, found = slots("run", states)
    assert times == [1.0, 2.0, 3.0]
    assert found == {"s1": SwitchSlots([16, 16, 0], [None, 5, 0])}


def test_what_a_lost_switch_has_counted_is_unknown() -> None:
    counted = {"s1": {"aggregated": 3, "completed": 3, "cleared": 3}}
    load = SwitchLoad(slots=16, packets=9, sums=3)
    predicted = RunPrediction({}, 1.0, switches={"s1": load, "s2": load})
    run = Run(
        Report(Experiment(), 9, predicted, RunMeasurement(1.0, {}, counted, 0, Verdict())), []
    )
    rows = [
        re.findall("<td[^>]*>(.*?)</td>", row)
        for row in switch_table(run, load_network("star:1")).split("<tr")[2:]
    ]
    good = '<span class="good">{}</span>'.format
    assert rows == [
        ["s1", "-", "16", "9", good(9), "3", good(3)],
        ["s2", "-", "16", "-", "9", "-", "3"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["in-network", "server"])
@pytest.mark.parametrize("servers", [1, 2])
def test_loads_of_switches_are_predicted_exactly(algorithm: str, servers: int) -> None:
    planner = "multi-hop" if algorithm == "server" else "multi-tree"
    experiment = replace(
        SMALL, algorithm=type(SMALL.algorithm)(algorithm), planner=planner, servers=servers
    )
    predicted = prepare(experiment).predicted.switches
    assert predicted
    recording = Recording(live=True)
    finished = run_experiment(experiment, recording=recording)
    assert finished.measured is not None
    _, held = slots("run", recording.frames())
    found = {}
    for name, counted in finished.measured.switches.items():
        counts = {outcome: counted[outcome.name.lower()] for outcome in Outcome}
        most = max(held[name].held) if name in held else 0
        if packets(counts):
            found[name] = (packets(counts), sums(counts), most)
    assert found == {name: (x.packets, x.sums, x.slots) for name, x in predicted.items()}
    # Half a window is in flight.
    in_flight = finished.experiment.window // 2 if finished.experiment.window else 0
    waiting = [count for each in held.values() for count in each.waiting if count is not None]
    assert all(count <= servers * in_flight for count in waiting)
    assert (algorithm == "server") == (not any(waiting))


def test_every_figure_of_the_page_has_a_prediction() -> None:
    compared = {"seconds predicted", "bytes as predicted", "largest error bound"}
    assert {label for label, _ in ROWS} - compared == PREDICTED.keys()
