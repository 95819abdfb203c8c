"""The tables of PyTorch's collectives, from what ranks have measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.report import table
from benchmarks.torch_figures import (
    STAGES,
    StepCase,
    latency_rows,
    link_rows,
    operation_rows,
    ordered_rows,
    step_rows,
    type_rows,
)


def test_stages_have_their_times_next_to_gloos() -> None:
    found: dict[str, Any] = {stage.name: [100.0, 300.0, 200.0] for stage in STAGES}
    found["gloo"] = [400.0] * 10
    used = {"rank": 5.0, "worker": 12.0, "other": 50.0, "s1": 1.0}
    found["CPU"] = {"float32": used}
    rows = {row["stage"]: row for row in latency_rows(found)}
    assert list(rows) == [stage.name for stage in STAGES]
    assert (rows["echo"]["best"], rows["echo"]["median"], rows["echo"]["calls"]) == (100, 200, 3)
    assert (rows["echo"]["of_gloo"], rows["gloo"]["of_gloo"]) == (0.5, 1.0)
    columns = ("cpu_rank", "cpu_agent", "cpu_switch")
    assert [rows["float32"][column] for column in columns] == [5, 7, 1]
    # Rows without CPU time come first.
    assert len(table("latency", [*rows.values()]).columns) == len(rows["float32"])


def test_steps_are_compared_with_gloos() -> None:
    case = StepCase("cnn", "star:8", 8, 50e6, 3)
    found = {"gloo": [30.0, 60.0, 20.0], "switches": [20.0, 10.0, 25.0], "alone": [4.0]}
    gloo, switches = step_rows(case, found)
    assert (gloo["milliseconds"], gloo["best"], gloo["times_gloo"]) == (30.0, 20.0, 1.0)
    assert (switches["milliseconds"], switches["times_gloo"]) == (20.0, 1.5)
    assert switches["without_communication"] == 4.0
    assert (gloo["trees"], switches["trees"]) == ("", "at a server")
    assert step_rows(replace(case, rooted=True), found)[1]["trees"] == "at the ranks"


def test_ordered_gradients_are_compared_with_buckets_of_the_same_backend() -> None:
    case = StepCase("ordered:same", "star:4", 4, 50e6, 3)
    found = {
        "gloo, DDP's buckets": [30.0, 90.0, 60.0],
        "gloo, ordered": [40.0],
        "switches, DDP's buckets": [20.0],
        "switches, ordered": [25.0],
        "alone": [4.0],
    }
    rows = ordered_rows(case, found)
    assert [(row["backend"], row["gradients"], row["times_buckets"]) for row in rows] == [
        ("gloo", "DDP's buckets", 1.0),
        ("gloo", "ordered", 1.5),
        ("switches", "DDP's buckets", 1.0),
        ("switches", "ordered", 0.8),
    ]
    assert {(row["training"], row["without_communication"]) for row in rows} == {("same", 4.0)}


def test_times_of_sharded_calls_are_next_to_what_the_link_takes() -> None:
    call = {"bytes": 1_000_000, "milliseconds": [240.0], "sent": [1.5], "received": [1.0]}
    [row] = link_rows(4, 50e6, {"gloo": {"both at once": call}})
    # 1.5 MB at 50 Mbit/s: 240 ms.
    assert (row["call"], row["sent"], row["received"], row["of_links"]) == (
        "both at once",
        1.5,
        1.0,
        1.0,
    )


def test_types_are_compared_with_gloo_in_the_same_type() -> None:
    def way(milliseconds: float, *errors: float) -> dict[str, list[float]]:
        timed = {"milliseconds": [milliseconds], "sent": [1.066], "received": [1.0]}
        return timed | ({"errors": list(errors)} if errors else {})

    found = {
        "float32": {
            "gloo": way(400.0, 1e-8),
            "switches": way(200.0, 2e-8),
            "switches, 16 bits": way(100.0, 5e-4),
        },
        "int8": {"gloo": way(300.0), "switches": way(150.0)},
    }
    rows = type_rows(8, 50e6, found)
    assert [(row["backend"], row["wire_bits"], row["times_gloo"]) for row in rows] == [
        ("gloo", None, 1.0),
        ("switches", 32, 2.0),
        ("switches", 16, 4.0),
        ("gloo", None, 1.0),
        ("switches", 8, 2.0),
    ]
    assert [row.get("of_gloos_error") for row in rows] == [1.0, 2.0, 50_000.0, None, None]
    assert (rows[2]["error"], rows[2]["sent"], "error" in rows[4]) == (5e-4, 1.07, False)


def test_operations_say_who_makes_them_and_where_they_differ() -> None:
    same = {"ddp": {"equal": 1, "switches": 8, "gloo": 3}, "barrier": {"equal": 1, "switches": 2}}
    other = {**same, "ddp": {"equal": 0, "switches": 8}}
    compared = {
        ("loopback", 2): same,
        ("loopback", 3): same,
        ("cluster", 2): same,
        ("cluster", 3): other,
    }
    ddp, barrier = operation_rows(compared)
    assert (ddp["2_ranks"], ddp["3_ranks"]) == ("8 switches, 3 gloo", "8 switches")
    assert (ddp["equal_loopback"], ddp["equal_cluster"]) == ([True, True], [True, False])
    assert barrier["3_ranks"] == "2 switches"
