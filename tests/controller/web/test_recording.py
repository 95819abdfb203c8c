"""Recorded runs: in virtual time, in a file, and on the page with its slider."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.controller.web.recording import MOST_FRAMES, Recording, RecordingError, read_recording
from hopsum.controller.web.server import web_thread
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.web_address import WebAddress
from tests.support.browser import in_browser, opened
from tests.support.machine import until


def state(number: int) -> pb.ClusterState:
    """A state with an event of its own, and those before it."""
    made = pb.ClusterState(date=number)
    made.network.hosts.add(name="h1", ip="10.0.0.1", mac="02:00:00:00:00:01")
    for event in range(max(1, number - 199), number + 1):
        made.events.add(number=event, text=f"event {event}")
    return made


NETWORK = (
    '"network": {"name": "n", '
    '"hosts": [{"name": "h1", "ip": "10.0.0.1", "mac": "02:00:00:00:00:01"}], '
    '"switches": [{"name": "s1"}], "links": [{"a": "h1", "b": "s1", "b_port": 1}]}'
)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ('"jobs": [{"job": 1, "state": "asleep"}]', "job 1: state 'asleep'"),
        ('"links": [{"sender": "h1", "receiver": "h9"}]', "'h9': not in the network"),
        ('"links": [{"sender": "h1", "receiver": "s1", "used": "NaN"}]', "carries nan"),
        ('"nodes": [{"host": "h9"}]', "host 'h9': not in the network"),
        ('"jobs": [{"state": "running", "trees": [{"sums": ["s9"]}]}]', "'s9' is no node"),
        ('"date": "NaN"', "date nan"),
        ('"date": 1e300', "date 1e.300"),
        ('"date": -1', "date -1"),
        ('"events": [{"date": "Infinity", "kind": "failed"}]', "date inf of 'failed'"),
    ],
)
def test_invalid_states_are_refused(part: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(f"{{{NETWORK}}}\n{{{part}}}\n")
    with pytest.raises(RecordingError, match=f"line 2: .*{words}"):
        read_recording(file)
    file.write_text(f"{{{NETWORK}}}\n")
    assert len(read_recording(file).frames()) == 1


def test_a_long_recording_is_thinned() -> None:
    recording = Recording()
    for number in range(3 * MOST_FRAMES):
        recording.add(pb.ClusterState(date=number))
    dates = [frame.date for frame in recording.frames()]
    assert len(dates) <= MOST_FRAMES
    assert dates == sorted(set(dates))
    assert (dates[0], dates[-1]) == (0, 3 * MOST_FRAMES - 1)
    assert recording.interval > Recording().interval


def test_a_file_gives_the_same_states(tmp_path: Path) -> None:
    recording = Recording([state(number) for number in range(1, 250)])
    file = tmp_path / "run.jsonl"
    file.write_text(recording.to_lines())
    assert list(read_recording(file).frames()) == list(recording.frames())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [index for index, line in enumerate(lines) if "network" in line] == [0]
    assert {len(line["events"]) for line in lines} == {1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"{}\n", "line 1: it has no network"),
        (b"# A page\n", "line 1: .*[^.]; expected a state"),
        (f'{{{NETWORK}}}\n{{"date": "x"}}\n'.encode(), "line 2: .*date"),
        (
            f"{{{NETWORK}}}\n".replace('"b": "s1"', '"b": "s9"').encode(),
            "line 1: .*s9",
        ),
        (b"[" * 100_000, "line 1"),
        (bytes(range(256)), "cannot be read"),
    ],
    ids=["empty", "no network", "no JSON", "bad field", "no such end", "deep", "binary"],
)
def test_files_other_than_recordings_are_refused(
    content: bytes, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(content)
    with pytest.raises(RecordingError, match=words):
        read_recording(file)
    with pytest.raises(RecordingError, match="cannot be read"):
        read_recording(tmp_path / "nonesuch")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a run in virtual time."""
    file = tmp_path_factory.mktemp("recording") / "run.jsonl"
    done = CliRunner().invoke(
        app,
        ["run", "--topology", "leaf-spine:2x2", "--workers", "4", "--elements", "40000",
         "--link-rate", "2Mbit", "--record", str(file)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return file


@pytest.mark.slow
def test_a_run_in_virtual_time_is_recorded(recorded: Path) -> None:
    frames = read_recording(recorded).frames()
    assert len(frames) > 20
    first, last = frames[0], frames[-1]
    [job] = last.jobs
    assert (job.state, job.round, job.tensors) == ("finished", 3, 3)
    # 2026-01-01, when every virtual history begins.
    assert 0 < first.date - 1_767_225_600 < 60
    assert sum(switch.outcomes["completed"] for switch in last.switches) > 100
    assert max(link.used for frame in frames for link in frame.links) > 1e5
    assert any(tree.sums for frame in frames for job in frame.jobs for tree in job.trees)


@pytest.mark.slow
@in_browser
def test_a_recording_is_replayed_with_a_slider(recorded: Path) -> None:
    recording = read_recording(recorded)
    last = len(recording.frames()) - 1
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        page.locator("tr[data-job=run]").get_by_text("finished").wait_for()
        slider = page.locator("#frame")
        assert slider.get_attribute("max") == str(last)
        slider.fill(str(last // 2))
        page.locator("tr[data-job=run]").get_by_text("running").wait_for()
        assert page.locator("#connection").inner_text() == "replay"
        assert page.locator("#unit").inner_text() == "(since the start)"
        assert re.fullmatch(r"\d\.\d\d s", page.locator("#events time").last.inner_text())
        assert f"{last // 2 + 1} of {last + 1}" in page.locator("#frame-time").inner_text()
        assert page.locator("line[data-tree]").count() >= 5
        page.locator("#latest").click()
        page.locator("tr[data-job=run]").get_by_text("finished").wait_for()


@pytest.mark.slow
@in_browser
def test_a_page_fills_once_there_is_a_state() -> None:
    recording = Recording(live=True)
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        connection = page.locator("#connection")
        connection.get_by_text("the run is being prepared").wait_for()
        first = pb.ClusterState(date=1.0)
        first.network.name = "one"
        first.network.hosts.add(name="h1", ip="10.0.0.1", mac="02:00:00:00:00:01")
        first.nodes.add(host="h1")
        recording.add(first)
        page.locator("rect[data-host=h1]").wait_for()
        assert connection.inner_text() == "live"
        # Another network follows, as after a controller's restart.
        second = pb.ClusterState(date=2.0)
        second.network.name = "two"
        second.network.hosts.add(name="h2", ip="10.0.0.2", mac="02:00:00:00:00:02")
        second.nodes.add(host="h2")
        recording.add(second)
        page.locator("rect[data-host=h2]").wait_for()
        assert page.locator("rect[data-host=h1]").count() == 0
        recording.end()
        connection.get_by_text("replay").wait_for()


def shown_job(date: float) -> pb.ClusterState:
    """A job on one switch that has had two epochs, ended at 8 s."""
    made = pb.ClusterState(date=date)
    made.network.name = "star:1"
    made.network.hosts.add(name="h1", ip="10.0.0.1", mac="02:00:00:00:00:01")
    made.network.switches.add(name="s1", aggregates=True, slots=64)
    made.network.links.add(a="h1", b="s1", bandwidth=1e6)
    made.nodes.add(host="h1")
    made.switches.add(name="s1", state="ready", sums=int(date))
    made.slots.add(switch="s1", slots=64, held={1: 8}, taken=8).ranges.add(job=1, count=8)
    made.jobs.add(job=1, name="mine", state="finished", over=True, ended=8.0)
    for number, (when, kind, job, epoch) in enumerate(
        [(0.0, "planned", 1, 1), (4.0, "outage", 0, 0), (5.0, "failover", 1, 2),
         (8.0, "finished", 1, 2)], 1,
    ):  # fmt: skip
        made.events.add(number=number, date=when, kind=kind, job=job, epoch=epoch, text=kind)
    return made


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("part", ["style.css", "main.js", "drawing.js", "layout.json", "events"])
def test_a_page_recovers_from_requests_that_fail(part: str) -> None:
    recording = Recording([shown_job(10.0)])
    lost = {part}
    with (
        web_thread(recording, WebAddress("127.0.0.1", 0)) as url,
        opened(url, lost) as page,
    ):
        # The page itself, too: if it were loaded again, the browser could show its own instead.
        lost.add("")
        connection = page.locator("#connection")
        connection.get_by_text(re.compile("a part of this page did not|no connection")).wait_for()
        lost.discard(part)
        connection.get_by_text("replay").wait_for()
        page.locator("circle[data-switch=s1]").wait_for()
        display = "each => getComputedStyle(each).display"
        until(lambda: page.locator("header").evaluate(display) == "flex", "the style")


@pytest.mark.slow
@in_browser
def test_a_part_may_fail_before_the_page_is_read() -> None:
    """The browser asks for the style sheet while it has not read the element that says so."""
    recording = Recording([shown_job(10.0)])
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        page.locator("circle[data-switch=s1]").wait_for()
        page.evaluate(
            "document.getElementById('connection').id = 'unread';"
            "document.querySelector('link[data-part]').dispatchEvent(new Event('error'));"
            "document.getElementById('unread').id = 'connection';"
        )
        page.locator("link[href^='again/']").wait_for(state="attached")


@pytest.mark.slow
@in_browser
def test_the_goodput_of_jobs_is_shown_before_anything_is_clicked() -> None:
    """A megabyte at once every two seconds: 4 Mbit/s on average."""
    name = "a-training-with-a-long-name"

    def running(date: float) -> pb.ClusterState:
        made = shown_job(date)
        [job] = made.jobs
        job.name, job.state, job.over, job.started = name, "running", False, 1.0
        job.summed_bytes = 1_000_000 * int(date / 2)
        return made

    recording = Recording([running(10.0)], live=True)
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        for date in range(11, 15):
            page.locator("#summary").get_by_text(f"{date - 11}.00 s since the start").wait_for()
            recording.add(running(float(date)))
        detail = page.locator("#detail")
        detail.get_by_text("4.0 Mbit/s").wait_for()
        assert detail.locator("polyline").count() == 1
        page.locator("#jobs").get_by_text("4.0 Mbit/s").wait_for()
        named = page.locator("#jobs").get_by_text("a-training-with-a-l…")
        assert named.get_attribute("title") == name
        detail.get_by_text("a-training-with-a-l…").click()
        detail.get_by_text(name).wait_for()
        detail.get_by_text("all jobs").click()
        detail.get_by_text("Click a link").wait_for()


@pytest.mark.slow
@in_browser
def test_the_slider_recovers_from_requests_that_fail() -> None:
    recording = Recording([shown_job(date) for date in (10.0, 11.0, 12.0)])
    lost: set[str] = set()
    with (
        web_thread(recording, WebAddress("127.0.0.1", 0)) as url,
        opened(url, lost) as page,
    ):
        connection = page.locator("#connection")
        page.locator("circle[data-switch=s1]").wait_for()
        lost.add("state.json")
        page.locator("#frame").fill("1")
        connection.get_by_text("no connection").wait_for()
        lost.clear()
        page.locator("#latest").click()
        connection.get_by_text("replay").wait_for()
        page.locator("#frame").fill("1")
        page.locator("#summary").get_by_text("1.00 s since the start").wait_for()


@pytest.mark.slow
@in_browser
def test_a_silent_server_is_no_connection() -> None:
    speaks = threading.Event()
    speaks.set()

    class Source(Recording):
        async def state(self) -> pb.ClusterState:
            while not speaks.is_set():
                await asyncio.sleep(0.01)
            return await super().state()

    recording = Source([shown_job(10.0)], live=True)
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        connection = page.locator("#connection")
        connection.get_by_text("live").wait_for()
        page.clock.install()
        speaks.clear()
        page.clock.fast_forward(60_000)
        connection.get_by_text("no connection").wait_for()
        speaks.set()
        recording.add(shown_job(11.0))
        page.locator("#summary").get_by_text("1.00 s since the start").wait_for()
        assert connection.inner_text() == "live"


@pytest.mark.slow
@in_browser
def test_input_in_the_details_survives_updates() -> None:
    recording = Recording([shown_job(10.0)], live=True)
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        page.locator("circle[data-switch=s1]").click()
        field = page.locator("#slot")
        field.fill("17")
        for date in (11, 12):
            recording.add(shown_job(date))
            line = page.locator("#detail tr", has_text="sums")
            line.get_by_text(str(date), exact=True).wait_for()
        assert field.input_value() == "17"
        assert page.evaluate("document.activeElement.id") == "slot"


@pytest.mark.slow
@in_browser
def test_a_click_may_last_from_one_state_to_the_next() -> None:
    recording = Recording([shown_job(10.0)], live=True)
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        heading = page.locator("#detail h2")
        for date, target, shown in (
            (11, "circle[data-switch=s1]", "switch s1"),
            (12, "tr[data-job=mine]", "job 1"),
            (13, "rect[data-host=h1]", "host h1"),
        ):
            page.locator(target).wait_for()
            box = page.locator(target).bounding_box()
            assert box
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.mouse.down()
            recording.add(shown_job(date))
            page.locator("#summary").get_by_text(f"{date - 10}.00 s since the start").wait_for()
            page.mouse.up()
            heading.get_by_text(shown).wait_for()


@pytest.mark.slow
@in_browser
def test_long_details_move_nothing_else() -> None:
    state = shown_job(10.0)
    state.switches[0].state = "writing rules"
    for number in range(40):
        state.switches[0].outcomes[f"outcome_{number}"] = 1
    recording = Recording([state])
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        switch = page.locator("circle[data-switch=s1]")
        switch.wait_for()
        heads = page.locator("h2", has_text=re.compile("Jobs|Timeline|Switches"))
        places = [head.bounding_box() for head in heads.all()]
        switch.click()
        page.locator("#detail").get_by_text("outcome 39").wait_for()
        assert [head.bounding_box() for head in heads.all()] == places
        assert len(places) == 3
        # A change of plan is no outage.
        assert page.locator("circle.down").count() == 0
        page.locator("#summary").get_by_text("0 of 1 switches ready (1 writing rules)").wait_for()


@pytest.mark.slow
@in_browser
def test_a_lane_of_the_timeline_has_an_epoch_after_the_other() -> None:
    recording = Recording([shown_job(10.0)])
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        page.locator("tr[data-job=mine]").wait_for()
        timeline = page.locator("#timeline")
        timeline.locator("circle[data-event=failover]").wait_for()
        height = {
            kind: timeline.locator(f"circle[data-event={kind}]").get_attribute("cy")
            for kind in ("planned", "failover", "finished", "outage")
        }
        assert height["planned"] == height["failover"] == height["finished"] != height["outage"]
        # 0 to 5 s and 5 to 8 s, of 10.
        bars = timeline.locator("rect").all()
        widths = [float(bar.get_attribute("width") or 0) for bar in bars]
        assert [bar.text_content() for bar in bars] == ["epoch 1", "epoch 2"]
        assert widths[0] / widths[1] == pytest.approx(5 / 3)
