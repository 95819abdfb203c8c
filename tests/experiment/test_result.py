from __future__ import annotations

from hopsum.collectives.choices import Coordination
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.result import Report, RunMeasurement, RunPrediction
from hopsum.host_agent.workload import Verdict
from hopsum.reports.summary import figures, reservation, setting
from hopsum.simulation.faults import outage_from

LINK = ("h1", "s1")


def report(
    measured_bytes: int,
    *,
    world: WorldKind,
    coordinate: bool,
    again: int = 0,
    coordination: Coordination = Coordination.AUTO,
    **switch: int,
) -> Report:
    return Report(
        Experiment(train="digits", world=world, coordinate=coordinate, coordination=coordination),
        100,
        RunPrediction({LINK: 1000}, 1.0),
        RunMeasurement(1.0, {LINK: measured_bytes}, {"s1": switch}, again, Verdict()),
    )


def test_bytes_are_as_predicted_or_the_run_has_failed() -> None:
    for world in WorldKind:
        assert not report(1000, world=world, coordinate=False).problems
        for differing in (999, 1001):
            (problem,) = report(differing, world=world, coordinate=False).problems
            assert "bytes differ from the prediction on 1 links; first h1 -> s1" in problem
            assert not report(differing, world=world, coordinate=False, again=1).problems


def test_loss_may_add_bytes_on_real_links_only() -> None:
    for seen in ({"requested": 1}, {"repeated": 1}):
        assert not report(1001, world=WorldKind.MININET, coordinate=False, **seen).problems
    assert report(1001, world=WorldKind.SIMULATION, coordinate=False, requested=1).problems


def test_agreeing_on_an_order_adds_bytes_in_mininet_only() -> None:
    assert not report(1001, world=WorldKind.MININET, coordinate=True).problems
    (problem,) = report(999, world=WorldKind.MININET, coordinate=True).problems
    assert "fewer bytes than predicted on 1 links; first h1 -> s1: predicted 1000" in problem
    assert not report(999, world=WorldKind.MININET, coordinate=True, again=1).problems
    assert report(1001, world=WorldKind.SIMULATION, coordinate=True).problems


def test_vectors_in_the_switches_add_bytes_in_either_world() -> None:
    for world in WorldKind:
        for measured in (1000, 1001):
            assert not report(
                measured, world=world, coordinate=True, coordination=Coordination.SWITCHES
            ).problems
        assert report(
            999, world=world, coordinate=True, coordination=Coordination.SWITCHES
        ).problems
        assert report(
            1001, world=world, coordinate=False, coordination=Coordination.SWITCHES
        ).problems


def bytes_row(found: Report) -> str:
    [cell] = next(cells for label, *cells in figures([found]) if label == "bytes as predicted")
    return cell


def test_the_table_says_how_near_bytes_are_where_they_may_differ() -> None:
    world = WorldKind.SIMULATION
    assert bytes_row(report(1000, world=world, coordinate=False)) == "on every link"
    assert bytes_row(report(1001, world=world, coordinate=False)) == "1 of 1 differ"
    for measured, said in ((1017, "within 1.7 %"), (900, "within 10 %"), (3500, "up to 3.5 times")):
        assert bytes_row(report(measured, world=world, coordinate=False, again=1)) == said


def test_an_outage_after_the_end_of_the_job_is_reported() -> None:
    outages = tuple(map(outage_from, ("link-cut:l1-s1@1", "switch-down:s2@0.3-0.5")))
    events = [(0.0, "job run submitted"), (0.609, "job run finished")]
    measured = RunMeasurement(0.4, {}, {}, 0, Verdict(), events=events)
    found = Report(Experiment(outages=outages), 100, RunPrediction({}, 1.0), measured)
    (missed,) = found.missed_outages
    assert missed.startswith(
        "outage link-cut:l1-s1@1 did not happen: the job ended after 0.609 s; choose an earlier"
    )
    assert not Report(Experiment(outages=outages), 100, RunPrediction({}, 1.0), None).missed_outages


def test_what_ran_where_is_said_in_one_line() -> None:
    assert (
        setting(Experiment(workers=8))
        == "8 workers on fat-tree:4, 25 Mbit/s a link, in virtual time"
    )
    hostile = Experiment(
        topology="leaf-spine:2x2",
        workers=1,
        link_rate=None,
        uplink_rate=5e6,
        loss=0.01,
        outages=(outage_from("link-cut:l1-s1@1"),),
    )
    assert setting(hostile) == (
        "1 worker on leaf-spine:2x2, 5 Mbit/s between switches, 1 % loss on every link, "
        "an outage, in virtual time"
    )
    assert "in Mininet" in setting(Experiment(world=WorldKind.MININET))
    assert not reservation([Experiment()])
    assert "without loss and outages" in reservation([Experiment(), hostile])
