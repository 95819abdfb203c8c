from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.cli.demo import ALGORITHMS, run_demo
from hopsum.cli.main import main
from hopsum.collectives.choices import Algorithm, Collective, Engine
from hopsum.collectives.plan import DataType, Results
from hopsum.experiment.description import Experiment, ExperimentError, PacketIo, WorldKind
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import Report, RunFailed
from hopsum.experiment.runner import run_experiment
from hopsum.network.loaders import load_network, save_network
from hopsum.reports.summary import setting

SMALL = Experiment(topology="star:3", workers=3, elements=3000, rounds=2, lanes=64)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"workers": -1}, "workers -1: expected 0 to 65535"),
        ({"loss": 1.0}, r"loss 1\.0: expected a probability"),
        ({"window": 48}, "window 48: expected a power of two"),
        ({"lanes": 100}, "lanes: 100 is not possible; expected a multiple of 32 from 32 to 352"),
        ({"integrity": True, "algorithm": Algorithm.RING}, "hosts sum among themselves over TCP"),
        ({"dtype": DataType.BFLOAT16, "algorithm": Algorithm.RING}, "only switches and servers"),
        ({"dtype": DataType.INT8, "planner": "embedding"}, "only switches and servers can sum"),
        ({"wire_bits": 16, "algorithm": Algorithm.RING}, "16 bits of float32 with algorithm ring"),
        ({"train": "mnist"}, "expected `digits`"),
        ({"train": "digits", "dtype": DataType.INT32}, "gradients are float32"),
        ({"engine": Engine.BMV2}, "BMv2 runs in real time only"),
        ({"packet_io": PacketIo.SCAPY}, "the simulator has no sockets"),
    ],
)
def test_impossible_choices_are_refused(choices: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        replace(SMALL, **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "workers"),
    [({"topology": "star:5"}, 5), ({"topology": "star:5", "servers": 0}, 5), ({}, 15)],
)
def test_all_hosts_but_the_servers_work_by_default(
    choices: dict[str, object], workers: int
) -> None:
    prepared = prepare(Experiment(elements=1000, **choices))  # type: ignore[arg-type]
    assert prepared.experiment.workers == len(prepared.placement.workers) == workers
    assert prepared.workload.workers == workers


def test_unspecified_choices_are_made() -> None:
    assert SMALL.resolved.results is Results.REPLICATED
    server = replace(SMALL, topology="star:8", algorithm=Algorithm.SERVER, workers=8)
    assert server.resolved.results is Results.UNICAST
    bmv2 = replace(SMALL, engine=Engine.BMV2, world=WorldKind.MININET)
    windows = [prepare(each).experiment.window for each in (SMALL, server, bmv2)]
    assert windows == [256, 64, 32]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [33, 127])
def test_one_switch_sums_for_a_rack(workers: int) -> None:
    """Every worker is a child of the switch: nothing meets at the server's link."""
    report = run_experiment(
        Experiment(topology=f"star:{workers}", elements=5000, rounds=1, dtype=DataType.INT32)
    )
    assert report.problems == []
    assert report.exact_bytes_expected
    assert report.measured.seconds == pytest.approx(report.predicted.seconds, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "plain", "results"),
    [
        ("star:63", ("all",), Results.REPLICATED),
        ("leaf-spine:2x33x2", ("l1",), Results.REPLICATED),
        ("star:63", (), Results.UNICAST),
    ],
)
def test_windows_that_meet_fit_the_queue(
    tmp_path: Path, topology: str, plain: tuple[str, ...], results: Results
) -> None:
    """Dozens of flows on a link: contributions that no switch sums, or results for each worker."""
    file = tmp_path / "network.json"
    save_network(load_network(topology, plain=plain, link_rate=25e6), file)
    report = run_experiment(
        Experiment(str(file), elements=10_000, rounds=1, dtype=DataType.INT32, results=results)
    )
    assert report.problems == []
    assert report.exact_bytes_expected
    assert report.measured.seconds == pytest.approx(report.predicted.seconds, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Algorithm.IN_NETWORK, Algorithm.SERVER, Algorithm.EMBEDDING])
@pytest.mark.parametrize("dtype", [DataType.INT32, DataType.FLOAT32])
def test_check_lanes_cost_the_bytes_that_are_predicted(
    algorithm: Algorithm, dtype: DataType
) -> None:
    experiment = replace(SMALL, algorithm=algorithm, dtype=dtype)
    plain = run_experiment(experiment)
    checked = run_experiment(replace(experiment, integrity=True))
    assert plain.problems == checked.problems == []
    if algorithm is not Algorithm.EMBEDDING:
        assert checked.exact_bytes_expected
        assert sum(checked.predicted.links.values()) > sum(plain.predicted.links.values())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Algorithm.IN_NETWORK, Algorithm.SERVER])
@pytest.mark.parametrize("dtype", [DataType.BFLOAT16, DataType.FLOAT16, DataType.INT8])
@pytest.mark.parametrize("integrity", [False, True])
def test_narrow_values_cost_the_bytes_that_are_predicted(
    algorithm: Algorithm, dtype: DataType, integrity: bool
) -> None:
    """Fewer than 32 bits each, except with check lanes."""
    experiment = replace(SMALL, algorithm=algorithm, dtype=dtype, integrity=integrity)
    report = run_experiment(experiment)
    assert report.problems == []
    assert report.exact_bytes_expected
    words = run_experiment(replace(experiment, dtype=DataType.INT32))
    ratio = sum(report.predicted.links.values()) / sum(words.predicted.links.values())
    assert ratio == pytest.approx(1.0 if integrity else dtype.bits / 32, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "wire_bits"), [(DataType.FLOAT32, 16), (DataType.BFLOAT16, 32), (DataType.INT8, 32)]
)
def test_values_are_as_wide_in_packets_as_is_asked_for(dtype: DataType, wire_bits: int) -> None:
    report = run_experiment(replace(SMALL, dtype=dtype, wire_bits=wire_bits))
    assert report.problems == []
    assert report.exact_bytes_expected
    words = prepare(replace(SMALL, dtype=DataType.INT32)).predicted
    ratio = sum(report.predicted.links.values()) / sum(words.links.values())
    assert ratio == pytest.approx(wire_bits / 32, rel=0.1)
    assert report.tensor_bits == dtype.bits * 2 * 3000
    named = f"{dtype} in {wire_bits} bits, in virtual time"
    assert setting(report.experiment).endswith(named)


@pytest.mark.slow
@pytest.mark.parametrize(
    "collective",
    [Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.REDUCE, Collective.BROADCAST],
)
@pytest.mark.parametrize("dtype", [DataType.BFLOAT16, DataType.INT8])
def test_narrow_values_go_over_rooted_trees(collective: Collective, dtype: DataType) -> None:
    """An odd number of them."""
    experiment = Experiment(
        topology="star:3", servers=0, collective=collective, elements=3001, rounds=2, dtype=dtype
    )
    report = run_experiment(experiment)
    assert report.problems == []
    assert report.exact_bytes_expected


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("dtype", [DataType.INT32, DataType.FLOAT32])
def test_a_run_is_checked_and_repeats_to_the_byte(
    algorithm: Algorithm, dtype: DataType, tmp_path: Path
) -> None:
    experiment = replace(SMALL, algorithm=algorithm, dtype=dtype)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        assert run_experiment(experiment, path).problems == []
    assert paths[0].read_bytes() == paths[1].read_bytes()
    values = json.loads(paths[0].read_text())
    assert values["checked_elements"] == 3 * 6000
    assert values["wrong_elements"] == 0
    for name in ("seconds", "predicted_seconds", "goodput_bits_per_second"):
        assert values[name] > 0
    assert set(values["switches"]) == {"s1"}
    if not algorithm.among_hosts:
        assert all(li["predicted_bytes"] == li["measured_bytes"] for li in values["links"])
        assert values["retransmissions"] == 0


def finished() -> Report:
    return run_experiment(SMALL)


@pytest.mark.slow
def test_a_single_injected_frame_is_a_problem() -> None:
    report = finished()
    assert report.measured is not None
    links = {**report.measured.links, ("h1", "s1"): report.measured.links["h1", "s1"] + 60}
    spoiled = replace(report, measured=replace(report.measured, links=links))
    assert spoiled.problems == [
        "bytes differ from the prediction on 1 links; first h1 -> s1: predicted "
        f"{report.predicted.links['h1', 's1']}, measured {links['h1', 's1']}"
    ]


@pytest.mark.slow
def test_a_wrong_element_is_a_problem() -> None:
    report = finished()
    assert report.measured is not None
    verdict = replace(report.measured.verdict, wrong=1)
    spoiled = replace(report, measured=replace(report.measured, verdict=verdict))
    assert "1 of 18000 checked elements are wrong" in spoiled.problems


def test_a_run_without_an_end_is_a_problem() -> None:
    report = replace(finished(), measured=None)
    assert report.problems == ["the run did not finish"]
    assert report.to_dict()["links"][0]["measured_bytes"] is None


def test_a_run_that_takes_too_long_says_where_it_was() -> None:
    with pytest.raises(RunFailed, match=r"not done after 0\.5 s: 0 tensors are summed"):
        run_experiment(replace(SMALL, link_rate=1e5, limit=0.5))


def call(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["hopsum", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_the_command_prints_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    code, out, _ = call(
        ["run", "--topology", "star:2", "--workers", "2", "--elements", "1000", "--dtype", "int32",
         "--link-rate", "1Gbit", "--report", str(path), "--json"],
        monkeypatch,
        capsys,
    )  # fmt: skip
    assert code == 0
    assert json.loads(out) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "moebius:3"], "neither a file nor the name of a topology"),
        (["--topology", "star:4", "--workers", "9"], "9 workers: expected 1 to 4"),
        (["--lanes", "33"], "expected a multiple of 32"),
        (["--link-rate", "fast"], "rate 'fast'"),
        (["--planner", "magic"], "there is no planner 'magic'"),
        (["--topology", "torus:2x2", "--workers", "3"], "it has no switches; use"),
        (
            ["--topology", "torus:2x2", "--workers", "5", "--algorithm", "ring"],
            "5 workers: expected 1 to 4",
        ),
    ],
)
def test_bad_input_is_one_clear_message(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = call(["run", *arguments], monkeypatch, capsys)
    assert code == 2
    assert "error: " in err
    assert message in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.slow
def test_the_report_of_a_run_may_be_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.html"
    code, _, _ = call(
        ["run", "--topology", "star:2", "--workers", "2", "--elements", "100000", "--dtype",
         "int32", "--report", str(path)],
        monkeypatch,
        capsys,
    )  # fmt: skip
    assert code == 0
    page = path.read_text()
    assert [f"<h2>{heading} over time</h2>" in page for heading in ("Goodput", "Slots")] == [
        True
    ] * 2
    # Measured and predicted: 3 rounds of 1 + 390 fragments from 2 hosts, and their results.
    for cell in ("128", "3,519", "1,173"):
        assert re.search(
            rf'<td[^>]*>{cell}</td><td[^>]*><span class="good">{cell}</span></td>', page
        )
    assert page.count('src="data:image/png') == 3
    assert "without loss and outages" not in page


@pytest.mark.slow
def test_a_page_says_that_predictions_are_without_loss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.html"
    code, shown, logged = call(
        ["run", "--topology", "star:2", "--workers", "2", "--elements", "1000", "--loss", "0.01",
         "--report", str(path)],
        monkeypatch,
        capsys,
    )  # fmt: skip
    assert code == 0
    assert shown.startswith("2 workers on star:2, ")
    assert shown.endswith("all predictions are for a run without loss and outages\n")
    assert not logged
    page = path.read_text()
    assert "All predictions are for a run without loss and outages." in page
    assert "2 workers on star:2, 25 Mbit/s a link, 1 % loss on every link, in virtual time" in page


@pytest.mark.slow
def test_the_demo_writes_report_plots_and_page(tmp_path: Path) -> None:
    base = Experiment(topology="star:2", workers=2, train="digits", rounds=1, link_rate=1e9)
    experiments = [replace(base, algorithm=algorithm) for algorithm in ALGORITHMS]
    demo = run_demo(
        experiments,
        lambda experiment, recording: run_experiment(experiment, recording=recording),
        tmp_path,
    )
    assert demo.problems == []
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["algorithm"] for run in report["runs"]] == ["in-network", "server", "ring"]
    training = report["training"]
    assert abs(training["accuracy"] - training["single_process_accuracy"]) < 0.02
    page = (tmp_path / "index.html").read_text()
    assert "<svg" in page
    assert "s1 → ps" in page
    assert 'src="http' not in page
    plots = {"time.png", "bytes.png", "goodput.png", "slots-in-network.png", "loss.png"}
    assert plots == {p.name for p in tmp_path.iterdir() if p.suffix == ".png"}
    assert "ring: no slots to show, no switch sums for it" in page
    cells = re.findall(r"<tr><td[^>]*>s1</td>(.*?)</tr>", page)
    # Slots, packets and sums of s1 in-network, then with a server: all as predicted.
    assert len(cells) == 2
    assert all(row.count('class="good"') == 3 for row in cells), cells
