"""The HTTP server: who may read, and what there is."""

from __future__ import annotations

import asyncio
import json
import math
import re
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from hopsum.controller.web import server
from hopsum.controller.web.recording import Recording
from hopsum.controller.web.server import PAGE, web_thread
from hopsum.controller.web.sources import SourceError
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.web_address import WebAddress
from tests.support.cluster_world import World, in_network, ring
from tests.support.machine import until

TOKEN = "a-token-of-a-test"


def get(url: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
    """Return status, body and headers of an answer; redirections are followed."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except HTTPError as error:
        return error.code, error.read().decode(), error.headers


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, web=WebAddress("127.0.0.1", 0))
    yield made
    made.close()


@pytest.fixture
def guarded_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("guarded"), web=WebAddress("127.0.0.1", 0, TOKEN))
    yield made
    made.close()


@pytest.fixture
def empty() -> Iterator[tuple[Recording, str]]:
    """The recording of a run that is being prepared, and its URL."""
    recording = Recording(live=True)
    with web_thread(recording, WebAddress("127.0.0.1", 0)) as url:
        yield recording, url


def state_of(world: World) -> dict[str, Any]:
    status, body, _ = get(f"{world.url}state.json")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def test_the_state_has_jobs_hosts_links_and_events(open_world: World) -> None:
    open_world.agents("h1", "h2")
    open_world.queries.submit(ring("mine", "h1,h2"))
    open_world.exact("mine")
    state = state_of(open_world)
    [job] = state["jobs"]
    assert (job["name"], job["state"], job["round"], job["tensors"]) == (
        "mine", "finished", "3", "3",
    )  # fmt: skip
    assert job["algorithm"] == "ring"
    assert {node["host"] for node in state["nodes"] if node["attached"]} == {"h1", "h2"}
    assert {link["sender"] for link in state["links"]} >= {"h1", "s1"}
    assert [event["kind"] for event in state["events"]] == [
        "submitted", "planned", "started", "finished",
    ]  # fmt: skip
    assert state["event_counts"]["finished"] == "1"
    assert [switch["name"] for switch in state["network"]["switches"]] == ["s1"]


def test_other_names_than_this_machines_are_refused(open_world: World) -> None:
    status, body, _ = get(f"{open_world.url}state.json", Host="evil.example:80")
    assert status == 403
    assert "localhost only" in body
    assert get(f"{open_world.url}state.json", Host="localhost:80")[0] == 200


def test_a_token_is_asked_for(guarded_world: World) -> None:
    base, _, query = guarded_world.url.partition("?")
    assert query == f"token={TOKEN}"
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Cookie": "hopsum-token=x"}):
        for path in ("", "state.json", "metrics"):
            status, body, _ = get(f"{base}{path}", **wrong)
            assert (status, "token" in body) == (401, True)
    assert get(f"{base}state.json?token=wrong")[0] == 401
    assert get(f"{base}state.json", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert get(f"{base}state.json", Cookie=f"hopsum-token={TOKEN}")[0] == 200


def test_nothing_can_be_changed(open_world: World) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        request = urllib.request.Request(f"{open_world.url}state.json", method=method)
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 405


def test_failovers_and_replans_are_logged_with_their_causes(tmp_path: Path) -> None:
    world = World(tmp_path, "leaf-spine:2x2", web=WebAddress("127.0.0.1", 0))
    try:
        world.agents("h1", "h2", "h3", "ps")
        in_network(world, "mine", "h1,h2,h3", "ps")
        [job] = world.queries.state().jobs
        spine = job.trees[0].parents["l2"]
        world.call(lambda manager: manager.fail([spine]))
        world.call(lambda manager: manager.recover([spine]))
        world.call(lambda manager: manager.replan(1, why="a test wants it"))
        state = world.queries.state()
        received = [(event.kind, event.text) for event in state.events]
        assert received[-4:] == [
            ("outage", f"switch {spine} unreachable"),
            ("failover", f"job mine failed over, epoch 2: around switch {spine}"),
            ("recovery", f"switch {spine} back in use"),
            ("replan", "job mine replanned, epoch 3: a test wants it"),
        ]
        assert state.event_counts["failover"] == 1
        assert state.jobs[0].epoch == 3
        assert sum(use.ranges[0].count for use in state.slots if use.ranges) > 0
        world.queries.cancel("mine")
    finally:
        world.close()


def test_impossible_requests_are_answered_with_an_error(open_world: World) -> None:
    for path, status, words in (
        ("state.json?frame=0", 400, "frame: not a recording"),
        ("slot.json?switch=s1&slot=x", 400, "slot 'x': expected a whole number"),
        ("slot.json?switch=s1&slot=1", 503, "drives no switches"),
        ("missing.json?job=99999999999", 400, "job '99999999999'"),
        ("nonesuch", 404, ""),
        ("..%2fserver.py", 404, ""),
    ):
        found, body, _ = get(f"{open_world.url}{path}")
        assert (found, words in body) == (status, True), (path, found, body)


def test_pages_are_sent_and_may_load_nothing_from_elsewhere(open_world: World) -> None:
    status, body, headers = get(open_world.url)
    assert (status, "main.js" in body) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    for file in sorted(PAGE.iterdir()):
        assert get(f"{open_world.url}{file.name}")[0] == 200
        assert not re.search(r"https?://(?!www\.w3\.org/)", file.read_text()), file


def test_no_tree_has_a_colour_of_the_scale_of_loads() -> None:
    [trees] = re.findall(r"TREE_COLOURS = \[(.*?)\]", (PAGE / "state.js").read_text())
    scale = re.search(r"linear-gradient\((.*?)\)", (PAGE / "style.css").read_text())
    assert scale

    def parts(colour: str) -> tuple[int, ...]:
        return tuple(bytes.fromhex(colour))

    for tree in re.findall("#([0-9a-f]{6})", trees):
        for load in re.findall("#([0-9a-f]{6})", scale[1]):
            assert math.dist(parts(tree), parts(load)) > 75, (tree, load)


@pytest.mark.slow
def test_the_state_is_streamed(open_world: World) -> None:
    with urllib.request.urlopen(f"{open_world.url}events") as stream:
        seen = [stream.readline().decode() for _ in range(5)]
    assert seen[0] == "event: state\n"
    assert json.loads(seen[1].removeprefix("data: "))["network"]["name"] == "star:4"
    assert seen[3] == "event: state\n"


@pytest.mark.slow
def test_the_stream_says_why_there_is_no_state(empty: tuple[Recording, str]) -> None:
    recording, url = empty
    assert json.loads(get(f"{url}frames.json")[1]) == {"dates": [], "live": True}
    with urllib.request.urlopen(f"{url}events") as stream:
        assert stream.readline() == b"event: unavailable\n"
        assert b"data: nothing is recorded yet" in stream.readline()
        recording.add(pb.ClusterState(date=1.0))
        lines = iter(stream.readline, b"event: state\n")
        assert all(line in (b"\n", b"event: same\n", b"data: .\n") for line in lines)
        assert json.loads(stream.readline().removeprefix(b"data: "))["date"] == 1.0
    recording.end()
    assert json.loads(get(f"{url}frames.json")[1]) == {"dates": [1.0], "live": False}


@pytest.mark.slow
def test_streams_are_bounded(empty: tuple[Recording, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_STREAMS", 1)
    recording, url = empty
    recording.add(pb.ClusterState(date=1.0))
    with urllib.request.urlopen(f"{url}events") as stream:
        assert stream.readline() == b"event: state\n"
        status, body, _ = get(f"{url}events")
        assert (status, "close another page" in body) == (503, True)
    # A reader that is gone makes room for the next.
    until(lambda: _streams(url), "a stream that has ended")


def test_a_reader_that_left_at_once_is_no_error(
    empty: tuple[Recording, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(*_: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr("aiohttp.web.StreamResponse.prepare", gone)
    with pytest.raises(RemoteDisconnected):
        urllib.request.urlopen(f"{empty[1]}events")
    assert not caplog.records


def _streams(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}events") as stream:
            return bool(stream.readline())
    except HTTPError:
        return False


def test_a_state_is_encoded_once(
    empty: tuple[Recording, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[float] = []

    def count(message: pb.ClusterState) -> str:
        encoded.append(message.date)
        return "{}"

    monkeypatch.setattr(server, "as_json", count)
    monkeypatch.setattr(server, "STATE_SECONDS", 60.0)
    recording, url = empty
    recording.add(pb.ClusterState(date=1.0))
    assert [get(f"{url}state.json")[1] for _ in range(3)] == ["{}"] * 3
    assert encoded == [1.0]


@pytest.mark.parametrize("host", ["localhost:99999", "[", "a b", "localhost:x"])
def test_foreign_host_headers_are_refused(
    host: str, open_world: World, guarded_world: World
) -> None:
    assert get(f"{open_world.url}state.json", Host=host)[0] == 400
    guarded = guarded_world.url.partition("?")[0]
    assert get(f"{guarded}state.json", Host=host)[0] in (400, 401)


def test_tokens_outside_ascii_are_refused(guarded_world: World) -> None:
    url = guarded_world.url.partition("?")[0]
    assert get(f"{url}state.json", Authorization="Bearer \xff")[0] == 401


def test_the_right_token_moves_from_the_address_into_a_cookie(guarded_world: World) -> None:
    parts = urlsplit(guarded_world.url)
    connection = HTTPConnection(parts.netloc)
    connection.request("GET", f"/?{parts.query}")
    answer = connection.getresponse()
    connection.close()
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    for part in (f"hopsum-token={TOKEN}", "HttpOnly", "SameSite=Strict"):
        assert part in cookie


def test_pages_of_other_sites_may_not_read(open_world: World) -> None:
    site = {"Sec-Fetch-Site": "cross-site"}
    assert get(f"{open_world.url}state.json", **site)[0] == 403
    assert get(open_world.url, **site)[0] == 200
    assert get(f"{open_world.url}state.json", **{"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_concurrent_stall_queries_share_the_answer() -> None:
    asked: list[int] = []

    class Slow(Recording):
        async def missing(self, job: int) -> list[str]:
            asked.append(job)
            await asyncio.sleep(0.01)
            raise SourceError("no such job")

    async def main() -> None:
        source = server.CachedSource(Slow())
        for turn in (1, 2):
            both = [source.missing(7), source.missing(7)]
            answers = await asyncio.gather(*both, return_exceptions=True)
            assert list(map(str, answers)) == ["no such job"] * 2
            assert asked == [7] * turn

    asyncio.run(main())
