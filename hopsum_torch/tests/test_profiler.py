"""PyTorch's profiler shows calls as it does gloo's."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, run

pytestmark = pytest.mark.slow


def found(agents: list[str], backend: str) -> list[dict[str, Any]]:
    """What each rank has found."""
    printed = run(agents, SUPPORT / "profiling.py", backend)
    lines = [line for text in printed for line in text.splitlines() if line.startswith("found ")]
    return [json.loads(line.removeprefix("found ")) for line in lines]


@pytest.fixture(scope="module")
def gloo() -> list[dict[str, Any]]:
    return found(["none"] * 3, "gloo")


@pytest.fixture(scope="module", params=["agents", "none"])
def hopsum(request: pytest.FixtureRequest) -> Any:
    if request.param == "none":
        return found(["none"] * 3, "hopsum")
    agents = Agents(3, rooted=True)
    results = found(agents.of_ranks, "hopsum")
    agents.close()
    return results


def test_shows_what_gloo_shows(hopsum: list[dict[str, Any]], gloo: list[dict[str, Any]]) -> None:
    """Events' names, input shapes, and that they are asynchronous."""
    for ours, theirs in zip(hopsum, gloo, strict=True):
        expected = {
            name: [[title.replace("gloo:", "hopsum:"), *rest] for title, *rest in events]
            for name, events in theirs["calls"].items()
        }
        assert ours["calls"] == expected


def test_events_last_until_calls_end(hopsum: list[dict[str, Any]]) -> None:
    assert [each["within"] for each in hopsum] == [[True, True]] * 3


def test_reduce_scatters_have_events_of_their_own(hopsum: list[dict[str, Any]]) -> None:
    title = "hopsum:reduce_scatter"
    assert [each["reduce-scatters"] for each in hopsum] == [
        {
            "list": [[title, [[2], [2], [2]], True]],
            "single": [[title, [[12]], True]],
            "over gloo": [[title, [[6]], True]],
        }
    ] * 3


def test_events_of_failed_calls_end(hopsum: list[dict[str, Any]]) -> None:
    """A call that fails at once may count as synchronous."""
    names = [[event[0] for events in each["failed"] for event in events] for each in hopsum]
    assert names == [["hopsum:all_reduce"] * 2] * 3


def test_takes_the_names_of_record_comm(
    hopsum: list[dict[str, Any]], gloo: list[dict[str, Any]]
) -> None:
    assert [each.get("named") for each in hopsum] == [each.get("named") for each in gloo]
