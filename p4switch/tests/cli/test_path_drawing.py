"""The picture of a packet's way."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from typer.testing import CliRunner

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.backends.reference.trace import Event, PacketTrace, Tracer
from p4switch.cli.main import app
from p4switch.cli.path_drawing import COLUMNS, boxes_of, path_svg
from p4switch.frontend.program import compile_file
from p4switch.stf import prepare
from tests.support.paths import PROGRAMS

ROUTER = PROGRAMS / "router.p4"
FRAME = "0200000000aa0200000000bb08004500001800014000401124d00a0000010a010203cafef00d"
ENTRIES = "add routes hdr.ipv4.dst:0x0a010000/16 forward(next_hop:1, port:7)\n"


def traced(tmp_path: Path, entries: str) -> PacketTrace:
    script = tmp_path / "entries.stf"
    script.write_text(entries)
    found: list[PacketTrace] = []
    engine = Interpreter(compile_file(ROUTER), None, Tracer(found.append))
    prepare(engine, script)
    engine.process([(5, bytes.fromhex(FRAME))])
    [trace] = found
    return trace


def texts(svg: str) -> list[str]:
    """All text of a picture; raises ParseError if it is not XML."""
    name = "{http://www.w3.org/2000/svg}text"
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(name)]


def test_boxes_follow_the_packet(tmp_path: Path) -> None:
    trace = traced(tmp_path, ENTRIES)
    boxes = boxes_of(trace)
    kinds = [box.kind for box in boxes]
    assert kinds[:2] == ["port", "stage"]
    assert kinds[-1] == "port"
    assert kinds.index("state") < kinds.index("hit") < len(kinds) - 1
    assert "drop" not in kinds
    [table] = [box for box in boxes if box.kind == "hit"]
    assert table.title.startswith("table RouterIngress.routes: hdr.ipv4.dst=0xa010203")
    assert table.lines == [
        "hit hdr.ipv4.dst=0xa010000/16 -> RouterIngress.forward(next_hop=1, port=7)"
    ]
    assert boxes[-1].title == "out at port 7"
    states = [box for box in boxes if box.kind == "state"]
    assert [box.title for box in states] == [
        f"state {event.name}" for event in trace.events if event.kind == "state"
    ]
    assert states[-1].lines[0].startswith("extract hdr.ipv4: version=4")


def test_a_miss_and_a_drop_look_so(tmp_path: Path) -> None:
    boxes = boxes_of(traced(tmp_path, ""))
    assert "miss" in [box.kind for box in boxes]
    assert [box.kind for box in boxes[-2:]] == ["drop", "drop"]
    assert boxes[-1].title == "nothing sent"


def test_the_picture_says_all_that_the_boxes_say(tmp_path: Path) -> None:
    trace = traced(tmp_path, ENTRIES)
    found = texts(path_svg(trace))
    for box in boxes_of(trace):
        assert box.title in found
        assert set(box.shown) <= set(found)
    assert max(map(len, found)) <= COLUMNS


def test_names_cannot_break_the_picture() -> None:
    event = Event("extern", "<b>&\x00" + "x" * 300, {"arguments": {}})
    trace = PacketTrace(1, 0, b"", 0, [event])
    found = "".join(texts(path_svg(trace)))
    assert "<b>&\N{REPLACEMENT CHARACTER}" + "x" * 50 in found
    assert found.count("x") >= 300


def test_explain_draws(tmp_path: Path) -> None:
    picture = tmp_path / "out" / "way.svg"
    arguments = ["explain", str(ROUTER), "--packet", FRAME.replace(" ", "")]
    result = CliRunner().invoke(app, [*arguments, "--picture", str(picture)])
    assert result.exit_code == 0
    assert "table RouterIngress.routes" in result.output
    assert "nothing sent" in texts(picture.read_text())
    result = CliRunner().invoke(app, [*arguments, "--picture", str(tmp_path)])
    assert (result.exit_code, "cannot be written" in result.output) == (1, True)
