"""`hopsum simulate`: what it compares, prints, draws and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.collectives.algorithms.level_wise_form import FormOptions, Shape
from hopsum.collectives.choices import Algorithm, DataType
from hopsum.collectives.plan import PlanError
from hopsum.collectives.workload import WorkloadError
from hopsum.experiment.comparison import ALGORITHMS, USUAL, Comparison, compare, parse_background
from hopsum.experiment.description import Experiment, ExperimentError
from hopsum.experiment.prepare import prepare
from hopsum.network.model import NetworkError
from hopsum.network.units import parse_size
from hopsum.reports.comparison_plot import comparison_plot
from hopsum.timing.work import Background


def test_every_algorithm_on_a_network_of_switches() -> None:
    compared = list(compare(Comparison("leaf-spine:2x4", (1_000_000,), (8,), link_rate=1e8)))
    assert [case.algorithm for case in compared] == list(USUAL)
    seconds = {case.algorithm: case.seconds for case in compared}
    assert min(seconds, key=lambda name: seconds[name]) == "in-network"
    assert max(seconds, key=lambda name: seconds[name]) == "server"
    # In the switches every link carries the tensor once each way, and a little more.
    in_network = compared[0]
    assert 1_000_000 < in_network.hottest_bytes < 1_100_000
    among_hosts = [case for case in compared if case.algorithm not in ("in-network", "multi-tree")]
    assert in_network.total_bytes < min(case.total_bytes for case in among_hosts)


@pytest.mark.slow
def test_hosts_that_forward_need_no_switch() -> None:
    compared = list(compare(Comparison("torus:3x3", (100_000,), link_rate=1e8)))
    names = [case.algorithm for case in compared]
    among = ["ring", "halving-doubling", "tree", "double-tree", "level-wise"]
    assert names == [*among, "multi-tree"]
    assert {case.workers for case in compared} == {9}
    assert min(compared, key=lambda case: case.seconds).algorithm == "multi-tree"
    # Some hosts may not be joined by links of their own: only who asks gets their trees.
    some = compare(Comparison("torus:3x3", (100_000,), (8,), link_rate=1e8))
    assert [case.algorithm for case in some] == names[:-1]
    (trees,) = compare(Comparison("torus:3x3", (100_000,), (8,), ("multi-tree",), link_rate=1e8))
    assert trees.seconds < min(case.seconds for case in compared[:-1])


def test_an_embedding_is_compared_by_its_options() -> None:
    """Both trees over the two spines at once, or the first of them ([002][])."""
    asked = Comparison(
        *("leaf-spine:2x2", (1_000_000,), (), ("embedding", "in-network")),
        link_rate=4e7,
        uplink_rate=1e7,
        planner="embedding",
    )
    embedded, in_network = compare(asked)
    assert embedded.seconds == in_network.seconds
    one, _ = compare(replace(asked, planner_options={"penalty": "64"}))
    assert one.seconds > 1.5 * embedded.seconds
    other, _ = compare(replace(asked, planner="multi-hop"))
    assert other.seconds == embedded.seconds


def test_trees_of_hosts_by_document_000() -> None:
    asked = Comparison("complete:5", (400_000,), (), ("multi-tree",), link_rate=1e8)
    (ours,) = compare(asked)
    (mtree,) = compare(replace(asked, planner="mtree"))
    (whole,) = compare(replace(asked, planner="mtree", planner_options={"tree-bandwidth": "100M"}))
    # With whole links there is one tree, of the strength 5/2.
    assert mtree.seconds < 0.6 * whole.seconds
    assert mtree.seconds == pytest.approx(ours.seconds, rel=0.2)
    with pytest.raises(PlanError, match="no such option, but mtree has"):
        replace(asked, planner_options={"keep": "1"})
    with pytest.raises(PlanError, match="this network has switches"):
        list(compare(Comparison("star:3", (1000,), (), ("multi-tree",), planner="mtree")))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "server"])
@pytest.mark.parametrize("topology", ["leaf-spine:2x4", "torus:2x4"])
def test_a_run_predicts_what_a_comparison_says(algorithm: str, topology: str) -> None:
    if topology == "torus:2x4" and algorithm in ("in-network", "level-wise"):
        return
    (compared,) = compare(Comparison(topology, (400_000,), (8,), (algorithm,), link_rate=1e8))
    experiment = Experiment(
        topology, 8, 100_000, 1, Algorithm(algorithm), link_rate=1e8, latency=None
    )
    predicted = prepare(experiment).predicted
    # Plans are predicted packet by packet, schedules at flow level in both.
    near = 0.02 if prepare(experiment).plan is not None else 1e-9
    assert compared.seconds == pytest.approx(predicted.seconds, rel=near)
    assert compared.hottest_bytes == pytest.approx(max(predicted.links.values()), rel=1e-3)


def test_sizes_are_bytes_of_any_type_and_wire_bits_are_those_of_switches() -> None:
    """A ring moves the bytes that there are; the switches' packets have room for fewer or more."""

    def total(algorithm: str, dtype: DataType, wire_bits: int = 0) -> int:
        sizes, algorithms = (1_000_000,), (algorithm,)
        (case,) = compare(
            Comparison("star:5", sizes, algorithms=algorithms, dtype=dtype, wire_bits=wire_bits)
        )
        return case.total_bytes

    usual = total("in-network", DataType.FLOAT32)
    for dtype in (DataType.BFLOAT16, DataType.INT8):
        assert total("in-network", dtype) == pytest.approx(usual, rel=0.01)
        wide = total("in-network", dtype, 32)
        assert wide == pytest.approx(32 / dtype.bits * usual, rel=0.01)
        assert total("ring", dtype) == total("ring", DataType.FLOAT32)
    assert total("in-network", DataType.FLOAT32, 16) == pytest.approx(usual / 2, rel=0.01)


def test_cases_are_in_order_of_workers_size_and_algorithm() -> None:
    comparison = Comparison("star:6", (1000, 2000), (2, 6), ("ring", "server"), link_rate=1e8)
    cases = [(case.workers, case.size, case.algorithm) for case in compare(comparison)]
    assert cases == [
        (workers, size, name)
        for workers in (2, 6)
        for size in (1000, 2000)
        for name in ("ring", "server")
    ]


def test_background_and_oversubscription_slow_it_down() -> None:
    def seconds(**options: object) -> float:
        comparison = Comparison(
            "leaf-spine:2x4x1",
            (1_000_000,),
            (8,),
            ("ring",),
            link_rate=1e8,
            **options,  # type: ignore[arg-type]
        )
        return next(iter(compare(comparison))).seconds

    alone = seconds()
    assert seconds(background=(parse_background("h1-h2"),)) > 1.4 * alone
    assert seconds(uplink_rate=2.5e7) > 3 * alone
    assert seconds(overhead=0.01) > alone


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h1-h5", Background("h1", "h5")),
        ("h1-h5:10Mbit", Background("h1", "h5", rate=1e7)),
        ("h1-h5:20MB", Background("h1", "h5", size=2e7)),
    ],
)
def test_background_as_people_write_it(text: str, expected: Background) -> None:
    assert parse_background(text) == expected


@pytest.mark.parametrize("text", ["h1", "h1-h2:", "h1-h2:fast", "h1-h2:0B"])
def test_wrong_background(text: str) -> None:
    with pytest.raises(ExperimentError, match="background"):
        parse_background(text)


def test_wrong_comparisons() -> None:
    with pytest.raises(ExperimentError, match="'butterfly': expected some of in-network"):
        Comparison("star:4", (1,), algorithms=("butterfly",))
    with pytest.raises(ExperimentError, match="no size"):
        Comparison("star:4", ())
    with pytest.raises(ExperimentError, match="workers 0"):
        Comparison("star:4", (1,), (0,))
    with pytest.raises(WorkloadError, match="wire-bits 16 of int8: expected 8 or 32"):
        Comparison("star:4", (1,), dtype=DataType.INT8, wire_bits=16)
    with pytest.raises(ExperimentError, match="embedding: only switches and servers can sum"):
        Comparison("star:4", (1,), algorithms=("embedding",), wire_bits=16)
    with pytest.raises(NetworkError, match="'h9'"):
        list(compare(Comparison("star:4", (1,), background=(Background("h1", "h9"),))))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GB", 10**9), ("64KiB", 65536), ("1e6", 10**6), ("1.5kB", 1500), ("3 MiB", 3 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1MB", "1XB", "0", "1iB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.slow
def test_the_command_prints_json_and_draws(tmp_path: Path) -> None:
    arguments = ["simulate", "--topology", "star:4", "--size", "1kB,1MB", "--workers", "2,4"]
    arguments += ["--algorithm", "ring,in-network", "--latency", "1ms", "--json"]
    plot = tmp_path / "plot.png"
    result = CliRunner().invoke(app, [*arguments, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["latency"] == 1e-3
    assert len(report["results"]) == 8
    assert set(report["results"][0]) == {
        "algorithm",
        "workers",
        "size_bytes",
        "seconds",
        "goodput_bits_per_second",
        "total_bytes",
        "hottest_link",
        "hottest_link_bytes",
    }
    assert CliRunner().invoke(app, arguments).stdout == result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_same_comparison_gives_the_same_picture() -> None:
    compared = list(compare(Comparison("star:3", (1000,), algorithms=("ring",))))
    assert comparison_plot(compared) == comparison_plot(compared)


@pytest.mark.slow
def test_the_form_of_level_wise_is_shown() -> None:
    arguments = ["simulate", "--topology", "leaf-spine:2x3", "--workers", "5", "--size", "1MB"]
    arguments += ["--algorithm", "ring,level-wise"]
    text = CliRunner().invoke(app, arguments).stdout
    assert "level-wise, 5 workers, 1 MB: flat (no link between levels binds" in text
    levels = ["--level-wise-form", "levels", "--siblings", "hierarchical", "--json"]
    found = json.loads(CliRunner().invoke(app, [*arguments, *levels]).stdout)["results"]
    assert "form" not in found[0]
    assert found[1]["form"].startswith("2 levels: siblings exchange hierarchically")
    with pytest.raises(ExperimentError, match="options of the algorithm level-wise"):
        Comparison("star:3", (1000,), (), ("ring",), form=FormOptions(Shape.FLAT))


def test_the_command_prints_a_table() -> None:
    result = CliRunner().invoke(app, ["simulate", "--topology", "star:4", "--algorithm", "ring"])
    assert result.exit_code == 0, result.output
    assert "ring" in result.stdout
    assert "hottest" in result.stdout
