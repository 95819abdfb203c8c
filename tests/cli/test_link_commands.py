"""Output of the commands about links."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.protocol import hopsum_pb2 as pb


class Answers:
    """A controller with two links, of which one is cut."""

    def __init__(self, address: str | None) -> None:
        self.address = address

    def use(self) -> pb.UseReply:
        why = "unreachable for 3 s, planned around"
        return pb.UseReply(
            links=[
                pb.LinkUse(sender="h1", receiver="s1", used=2.5e6, age=0.1),
                pb.LinkUse(sender="s1", receiver="h1", used=0.0, age=0.1),
                pb.LinkUse(sender="s1", receiver="s2", health=why),
                pb.LinkUse(sender="s2", receiver="s1", health=why),
            ]
        )

    def set_link(self, link: str, *, up: bool) -> pb.Link:
        a, b = link.split("-")
        return pb.Link(a=b, b=a)


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["link", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hopsum.controller.api.client.ControllerClient", Answers)


def test_links_are_listed_with_both_directions() -> None:
    rows = [line.strip("│").split("│") for line in said("list").splitlines() if line[0] == "│"]
    why = "unreachable for 3 s, planned around"
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["h1-s1", "2.5 Mbit/s", "0 bit/s", "ok"],
        ["s1-s2", "not measured", "not measured", why],
    ]
    listed = json.loads(said("list", "--json"))
    assert listed[0] == {"link": "h1-s1", "bit/s": 2.5e6, "health": ""}
    assert listed[3]["bit/s"] is None


def test_a_change_is_confirmed_as_the_network_names_the_link() -> None:
    assert said("down", "s2-s1") == "link s1-s2 is cut; `hopsum link up s1-s2` restores it\n"
    assert said("up", "s2-s1") == "link s1-s2 is restored\n"
