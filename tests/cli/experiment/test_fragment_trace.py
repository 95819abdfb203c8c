"""The way of one fragment, as text and as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from cli.experiment.description import Experiment, ExperimentError
from cli.experiment.runner import run_experiment
from cli.main import app
from cli.reports.fragment_trace import trace_lines, trace_svg
from protocol.errors import InputError
from protocol.outcomes import Outcome
from simulation.fragment_trace import FragmentTrace, Hop

pytestmark = pytest.mark.slow
SMALL = Experiment(topology="star:2", workers=2, elements=2000, rounds=1, link_rate=25e6)


def traced(experiment: Experiment) -> FragmentTrace:
    trace = FragmentTrace(3)
    report = run_experiment(experiment, trace=trace)
    assert not report.problems
    return trace


def test_without_loss_each_link_carries_it_once() -> None:
    trace = traced(SMALL)
    assert not [hop for hop in trace.hops if hop.arrived is None or hop.arrived < hop.sent]
    ways = [(hop.source, hop.target, hop.outcomes) for hop in trace.hops]
    assert ways == [
        ("h1", "s1", (Outcome.AGGREGATED,)),
        ("h2", "s1", (Outcome.COMPLETED,)),
        ("s1", "ps", ()),
        ("ps", "s1", (Outcome.CLEARED,)),
        ("s1", "h1", ()),
        ("s1", "h2", ()),
    ]
    assert [hop.weight for hop in trace.hops] == [1, 1, 2, 2, 2, 2]


def test_a_lost_frame_is_told_and_drawn() -> None:
    trace = traced(replace(SMALL, loss=0.3))
    lost = [hop for hop in trace.hops if hop.arrived is None]
    assert lost
    lines = list(trace_lines(trace))
    assert sum("     lost  " in line for line in lines) == len(lost)
    assert len(lines) == 1 + len(trace.hops)
    root = ElementTree.fromstring(trace_svg(trace))
    space = "{http://www.w3.org/2000/svg}"
    arrows = [line for line in root.iter(f"{space}line") if "marker-end" in line.attrib]
    assert len(arrows) == len(trace.hops)
    assert sum("stroke-dasharray" in arrow.attrib for arrow in arrows) == len(lost)
    titles = [text.text for text in root.iter(f"{space}text") if text.get("font-weight") == "bold"]
    assert sorted(filter(None, titles)) == ["h1", "h2", "ps", "s1"]


def test_watching_changes_nothing() -> None:
    experiment = replace(SMALL, loss=0.1)
    seen = run_experiment(experiment, trace=FragmentTrace(3))
    assert seen.to_dict() == run_experiment(experiment).to_dict()


def test_words_for_a_frame() -> None:
    hop = Hop("h1", "s1", 0.0, None, "contribution", 0, 1, 7, 1, ("bypass",))
    assert hop.label() == "contribution of worker 7, weight 1 [bypass]"


def test_nothing_was_sent() -> None:
    assert list(trace_lines(FragmentTrace(9))) == ["no frame of fragment 9 of job 1 was sent"]


def test_the_command_prints_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "way.svg"
    base = ["run", "--topology", "star:2", "--workers", "2", "--elements", "2000", "--rounds", "1"]
    options = ["--trace-fragment", "3", "--trace-svg", str(picture)]
    done = CliRunner().invoke(app, [*base, *options])
    assert done.exit_code == 0, done.output
    assert "h1 -> s1  contribution of worker 0, weight 1; s1: aggregated" in done.output
    ElementTree.fromstring(picture.read_text())
    refused = CliRunner().invoke(app, [*base, "--trace-svg", str(picture)])
    assert isinstance(refused.exception, InputError)
    assert "--trace-fragment" in str(refused.exception)
    refused = CliRunner().invoke(app, [*base, "--trace-fragment", "3", "--world", "mininet"])
    assert isinstance(refused.exception, ExperimentError)
    assert "virtual time only" in str(refused.exception)
