"""The way of one fragment, as text and as a picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.experiment.captured_trace import (
    CaptureError,
    capture_holes,
    captured_trace,
    prepare_captures,
)
from hopsum.experiment.description import Experiment, ExperimentError
from hopsum.experiment.runner import run_experiment
from hopsum.mininet_topos.addresses import trace_file
from hopsum.network.loaders import load_network
from hopsum.protocol.errors import InputError
from hopsum.protocol.outcomes import Outcome
from hopsum.reports.fragment_trace import trace_lines, trace_svg
from hopsum.simulation.fragment_trace import FragmentTrace, Hop
from p4switch.packet_io.pcap import CaptureState, PcapWriter, read_pcap, state_file

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


def test_a_lost_frame_is_listed_and_drawn() -> None:
    trace = traced(replace(SMALL, loss=0.3))
    lost = [hop for hop in trace.hops if hop.arrived is None]
    assert lost
    lines = list(trace_lines(trace))
    assert sum("     lost  " in line for line in lines) == len(lost)
    assert len(lines) == 2 + len(trace.hops)
    root = ElementTree.fromstring(trace_svg(trace))
    space = "{http://www.w3.org/2000/svg}"
    arrows = [line for line in root.iter(f"{space}line") if "marker-end" in line.attrib]
    assert len(arrows) == len(trace.hops)
    assert sum("stroke-dasharray" in arrow.attrib for arrow in arrows) == len(lost)
    titles = [text.text for text in root.iter(f"{space}text") if text.get("font-weight") == "bold"]
    assert sorted(filter(None, titles)) == ["h1", "h2", "ps", "s1"]


def test_sums_go_from_left_to_right() -> None:
    ways = [("h1", "l1"), ("h3", "l2"), ("h2", "l1"), ("l2", "s1"), ("s1", "l1"), ("l1", "ps")]
    hops = [
        Hop(*way, number, number, "contribution", 0, 1, 0, 1, ()) for number, way in enumerate(ways)
    ]
    hops.append(Hop("ps", "l1", 9, 9, "replicated", 0, 1, 0, 3, ()))
    root = ElementTree.fromstring(trace_svg(FragmentTrace(3, hops=hops)))
    titles = [each.text for each in root.iter() if each.get("font-weight") == "bold"]
    assert titles == ["h1", "h3", "h2", "l2", "s1", "l1", "ps"]


def test_watching_changes_nothing() -> None:
    experiment = replace(SMALL, loss=0.1)
    seen = run_experiment(experiment, trace=FragmentTrace(3))
    assert seen.to_dict() == run_experiment(experiment).to_dict()


def test_times_are_in_order() -> None:
    trace = FragmentTrace(3)
    run_experiment(replace(SMALL, topology="leaf-spine:2x2", workers=4), trace=trace)
    times = [float(line.split()[0]) for line in list(trace_lines(trace))[2:]]
    assert times[0] == 0.0
    assert times == sorted(times)


def test_words_for_a_frame() -> None:
    hop = Hop("h1", "s1", 0.0, None, "contribution", 0, 1, 7, 1, ("bypass",))
    assert hop.label() == "contribution of worker 7, weight 1 [bypass]"
    sequenced = replace(hop, sequence=5)
    assert sequenced.label() == "contribution of worker 7, weight 1, sequence 5 [bypass]"


def test_nothing_was_sent() -> None:
    assert list(trace_lines(FragmentTrace(9))) == ["no frame of fragment 9 of job 1 was sent"]


def test_the_command_prints_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "way.svg"
    base = ["run", "--topology", "star:2", "--workers", "2", "--elements", "2000", "--rounds", "1"]
    options = ["--trace-fragment", "3", "--trace-svg", str(picture)]
    done = CliRunner().invoke(app, [*base, *options])
    assert done.exit_code == 0, done.output
    assert "h1 -> s1  contribution of worker 0, weight 1, sequence 3; s1: aggregated" in done.output
    ElementTree.fromstring(picture.read_text())
    refused = CliRunner().invoke(app, [*base, "--trace-svg", str(picture)])
    assert isinstance(refused.exception, InputError)
    assert "--trace-fragment" in str(refused.exception)
    bmv2 = ["--world", "mininet", "--engine", "bmv2"]
    refused = CliRunner().invoke(app, [*base, "--trace-fragment", "3", *bmv2])
    assert isinstance(refused.exception, ExperimentError)
    assert "BMv2 does not report its counts per packet" in str(refused.exception)
    for options in ([], ["--engine", "bmv2", "--pcap", str(tmp_path / "pcap")]):
        refused = CliRunner().invoke(app, ["cluster", "star:2", "--trace-fragment", "3", *options])
        assert isinstance(refused.exception, InputError)
        assert "trace-fragment" in str(refused.exception)


def test_captures_tell_the_same(tmp_path: Path) -> None:
    """Frames to and from a host are seen by its switch only."""
    experiment = replace(SMALL, topology="leaf-spine:2x2", workers=4, loss=0.2)
    trace = FragmentTrace(3)
    run_experiment(experiment, pcap=tmp_path, trace=trace)
    found = captured_trace(tmp_path, 3, 1)
    between = [replace(hop, outcomes=()) for hop in trace.hops if is_between_switches(hop)]
    assert any(hop.arrived is None for hop in between)

    def rounded(hops: list[Hop]) -> list[tuple[object, ...]]:
        return sorted(
            (hop.source, hop.target, round(hop.sent, 6), hop.label(), hop.arrived is None)
            for hop in hops
        )

    assert rounded([hop for hop in found.hops if is_between_switches(hop)]) == rounded(between)
    to_switch = [h for h in trace.hops if h.source.startswith("h") and h.arrived is not None]
    from_host = [hop for hop in found.hops if hop.source.startswith("h")]
    assert [round(h.sent, 6) for h in from_host] == sorted(
        round(h.arrived or 0, 6) for h in to_switch
    )
    done = CliRunner().invoke(
        app, ["trace", "1", "3", "--pcap", str(tmp_path), "--svg", str(tmp_path / "w.svg")]
    )
    assert done.exit_code == 0, done.output
    assert list(trace_lines(found)) == done.stdout.splitlines()
    ElementTree.fromstring((tmp_path / "w.svg").read_text())


def test_traces_of_switches_show_what_they_counted(tmp_path: Path) -> None:
    """Frames that are alike have theirs in turn."""
    experiment = replace(SMALL, topology="leaf-spine:2x2", workers=4, loss=0.2)
    run_experiment(experiment, pcap=tmp_path)
    network = load_network(str(tmp_path / "network.json"))
    for host in network.hosts:
        [switch] = network.ports(host).values()
        capture = tmp_path / f"{switch}-eth{network.port(switch, host)}_in.pcap"
        once = list(read_pcap(capture))
        with PcapWriter(capture) as twice:
            for seconds, frame in once:
                twice.write(seconds, frame)
                twice.write(seconds + 1e-6, frame)
    without = captured_trace(tmp_path, 3, 1)
    received = list(Outcome)[:-1]
    expected: dict[str, list[tuple[Outcome, ...]]] = {}
    for number, switch in enumerate(network.switches):
        lines = []
        for port in network.ports(switch):
            for _, frame in read_pcap(tmp_path / f"{switch}-eth{port}_in.pcap"):
                if without.hop_of(frame) is None:
                    continue
                outcome = received[(number + len(lines)) % len(received)]
                expected.setdefault(switch, []).append((outcome, list(Outcome)[-1]))
                lines.append(trace_line(port, frame, [list(Outcome)[-1], outcome, outcome]))
        trace_file(tmp_path, switch).write_text("".join(lines))
    found = captured_trace(tmp_path, 3, 1)
    assert [replace(hop, outcomes=()) for hop in found.hops] == without.hops
    for switch, outcomes in expected.items():
        arrived = [hop for hop in found.hops if hop.target == switch and hop.arrived is not None]
        assert sorted(hop.outcomes for hop in arrived) == sorted(outcomes)
        for port in network.ports(switch):
            of_port = [h for h in arrived if network.port(switch, h.source) == port]
            in_order = sorted(of_port, key=lambda hop: hop.arrived or 0.0)
            assert [hop.outcomes for hop in in_order] == outcomes[: len(in_order)]
            del outcomes[: len(in_order)]
    prepare_captures(network, tmp_path)
    assert captured_trace(tmp_path, 3, 1).hops == without.hops


def test_holes_of_captures_are_reported(tmp_path: Path) -> None:
    run_experiment(replace(SMALL, topology="star:2", workers=2), pcap=tmp_path)
    assert capture_holes(tmp_path) == []
    for interface, lost, ended in (
        ("s1-eth1", 7, False),
        ("s1-eth2", 0, True),
        ("s1-eth3", 0, False),
    ):
        state = CaptureState(tmp_path, interface)
        state.write(lost=lost, ended=ended)
        state.close()
    assert [line.partition(":")[0] for line in capture_holes(tmp_path)] == [
        "the capture of s1-eth1 has holes",
        "the capture of s1-eth2 ended early",
    ]
    done = CliRunner().invoke(app, ["trace", "1", "3", "--pcap", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("hops may be missing") == 2
    assert "7 frames lost" in done.stderr
    prepare_captures(load_network("star:2"), tmp_path)
    assert capture_holes(tmp_path) == []
    state_file(tmp_path, "s1-eth1").write_text("nonsense")
    with pytest.raises(CaptureError, match=r"s1-eth1.capture: not the state of a capture"):
        capture_holes(tmp_path)


def trace_line(port: int, frame: bytes, counted: list[Outcome]) -> str:
    """An excerpt of the output of `p4switch run --trace json`."""
    events: list[dict[str, object]] = [{"kind": "state", "name": "HopsumParser.start"}]
    for outcome in counted:
        given = {"index": int(outcome)}
        name = "HopsumIngress.outcomes.count"
        events.append({"kind": "extern", "name": name, "arguments": given})
    return json.dumps({"port": port, "frame": frame.hex(), "events": events}) + "\n"


def is_between_switches(hop: Hop) -> bool:
    return hop.source[0] in "ls" and hop.target[0] in "ls"


def test_folders_without_captures(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="expected a folder written by `hopsum run --pcap`"):
        captured_trace(tmp_path, 3, 1)
    prepare_captures(load_network("star:2"), tmp_path)
    with pytest.raises(CaptureError, match=r"s1-eth1_in.pcap: cannot be read"):
        captured_trace(tmp_path, 3, 1)
    for port in (1, 2, 3):
        for way in ("in", "out"):
            (tmp_path / f"s1-eth{port}_{way}.pcap").write_bytes(b"nonsense")
    with pytest.raises(CaptureError, match="not a pcap file"):
        captured_trace(tmp_path, 3, 1)
    for text in ("nonsense", "[]", '{"port": 1, "events": []}', '{"port": 1, "events": [1]}'):
        trace_file(tmp_path, "s1").write_text(text)
        with pytest.raises(CaptureError, match=r"s1-trace.jsonl: expected a line of `p4switch run"):
            captured_trace(tmp_path, 3, 1)
