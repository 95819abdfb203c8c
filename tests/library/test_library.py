"""`import hopsum`: its names, its speed, algorithms at flow level, schedules."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hopsum

NETWORK = hopsum.star(4, link_rate="100Mbit")


def test_every_public_name_is_there_and_documented() -> None:
    for name in set(hopsum.__all__) - {"Planner"}:  # a type alias
        assert getattr(hopsum, name).__doc__, name
    assert set(hopsum.__all__) <= set(dir(hopsum))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hopsum.nothing


def test_importing_it_loads_nothing_else() -> None:
    heavy = {"numpy", "networkx", "grpc", "rich"}
    code = f"import sys, hopsum; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_algorithms_are_compared() -> None:
    rows = hopsum.compare(NETWORK, ["1MB", 10_000_000], algorithms=["ring", "in-network"])
    assert [(row["algorithm"], row["size_bytes"]) for row in rows] == [
        ("ring", 1_000_000), ("in-network", 1_000_000),
        ("ring", 10_000_000), ("in-network", 10_000_000),
    ]  # fmt: skip
    ring, switches = rows[2:]
    assert switches["seconds"] < ring["seconds"]
    assert set(hopsum.algorithms()) >= {"ring", "in-network"}
    with pytest.raises(hopsum.InputError, match="algorithm 'rings'"):
        hopsum.compare(NETWORK, [1], algorithms=["rings"])


def test_comparisons_are_plotted() -> None:
    pytest.importorskip("matplotlib")
    rows = hopsum.compare(NETWORK, ["1MB", "2MB"], algorithms=["ring", "tree"])
    axes = rows.plot(y="hottest_link_bytes")
    assert [line.get_label() for line in axes.lines] == ["ring", "tree"]


def test_a_schedule() -> None:
    made = hopsum.schedule("ring", hopsum.complete(4), elements=12)
    assert made.nodes == 4
    with pytest.raises(hopsum.InputError, match="algorithm 'rings'"):
        hopsum.schedule("rings", NETWORK, elements=12)


def test_records_become_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = hopsum.plan(NETWORK).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["from", "to", "bytes"]


def test_long_tables_are_cut_in_notebooks() -> None:
    rows = hopsum.Records({"a": number, "b": 0.123456789} for number in range(30))
    shown = rows._repr_html_()
    assert "and 10 more rows" in shown
    assert "0.123457" in shown
    assert hopsum.Records()._repr_html_() == "<p>no rows</p>"
