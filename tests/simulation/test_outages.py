"""Outages as people write them, and `hopsum run --outage`."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.controller.telemetry.health import DampingPolicy
from hopsum.network.loaders import load_network
from hopsum.simulation.faults import FaultError, Outage, OutageKind, check_outage, outage_from


@pytest.mark.parametrize(
    ("text", "outage"),
    [
        ("link-cut:l1-s1@0.5-3", Outage(OutageKind.LINK_CUT, "l1-s1", 0.5, 3.0)),
        ("switch-down:s1@2", Outage(OutageKind.SWITCH_DOWN, "s1", 2.0, math.inf)),
        ("switch-hangs:s1@0-.5", Outage(OutageKind.SWITCH_HANGS, "s1", 0.0, 0.5)),
        ("agent-down:h1@1", Outage(OutageKind.AGENT_DOWN, "h1", 1.0, math.inf)),
    ],
)
def test_an_outage_is_read(text: str, outage: Outage) -> None:
    assert outage_from(text) == outage


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s1", "expected TROUBLE:WHAT@START"),
        ("fire:s1@1", "with TROUBLE one of switch-down, switch-hangs, link-cut, agent-down"),
        ("switch-down:s1@1..2", "expected seconds after the @"),
        ("switch-down:s1@2-1", "expected an end after its start"),
        ("switch-down:s1@inf", "expected TROUBLE:WHAT@START"),
    ],
)
def test_malformed_outages_are_refused(text: str, words: str) -> None:
    with pytest.raises(FaultError, match=words):
        outage_from(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("switch-down:s2@1", "has no switch 's2'; expected one of s1"),
        ("link-cut:h1-h2@1", "has no link 'h1-h2'; expected one of h1-s1, h2-s1, ps-s1"),
        ("agent-down:s1@1", "has no host 's1'; expected one of h1, h2, ps"),
    ],
)
def test_outages_of_unknown_elements_are_refused(text: str, words: str) -> None:
    with pytest.raises(FaultError, match=words):
        check_outage(load_network("star:2"), outage_from(text))


def test_both_ends_of_a_link_may_come_first() -> None:
    for link in ("h1-s1", "s1-h1"):
        check_outage(load_network("star:2"), outage_from(f"link-cut:{link}@1"))


RUN = (
    *("run", "--workers", "2", "--elements", "2000", "--rounds", "4"),
    *("--dtype", "int32", "--lanes", "32", "--link-rate", "100kbit"),
)


@pytest.mark.slow
def test_a_run_avoids_a_cut_link_and_reports_it() -> None:
    line = [*RUN, "--topology", "leaf-spine:2x1x2", "--outage", "link-cut:l1-s1@0.5", "--json"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["outages"] == [
        {"trouble": "link cut", "what": "l1-s1", "start": 0.5, "stop": None}
    ]
    assert (report["checked_elements"], report["wrong_elements"]) == (16_000, 0)
    texts = [event["text"] for event in report["events"]]
    assert any("failed over, epoch 2: around" in text for text in texts), texts
    seconds = [event["seconds"] for event in report["events"]]
    # Half a second after the job was submitted, and not after the network came up; and the time for
    # which nobody believes it.
    [noticed] = [e["seconds"] for e in report["events"] if e["text"].endswith("unreachable")]
    assert 0.5 + DampingPolicy().away <= noticed < 1.0 + DampingPolicy().away
    assert seconds[0] == 0
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_a_run_whose_worker_ends_fails_and_names_it() -> None:
    line = [*RUN, "--topology", "star:2", "--outage", "agent-down:h1@0.5"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 1
    assert "h1" in str(done.exception)


def test_outages_are_made_in_virtual_time() -> None:
    line = [*RUN, "--topology", "star:2", "--world", "mininet", "--outage", "switch-down:s1@1"]
    done = CliRunner().invoke(app, line)
    assert "virtual time only" in str(done.exception)
