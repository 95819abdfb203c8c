"""`make run`: train a classifier with gradients summed in the switches, and with two baselines."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.experiment.description import Experiment, WorldKind
from cli.experiment.prepare import prepare
from cli.experiment.result import Report, write_json
from cli.reports import page
from cli.reports.network_drawing import network_svg
from cli.reports.summary import figures, si
from collectives.choices import Algorithm, DataType
from files.output import check_writable, write_file
from host_agent.digits import train_alone
from protocol.extras import require

ALGORITHMS = (Algorithm.IN_NETWORK, Algorithm.SERVER, Algorithm.RING)
EPOCHS = 10
COLOURS = {"in-network": "#0b7285", "server": "#e8590c", "ring": "#5f3dc4"}


@dataclass(frozen=True, slots=True)
class Demo:
    """Results of the demo: a report per algorithm, and the accuracy of single-process training."""

    reports: tuple[Report, ...]
    single_process_accuracy: float

    @property
    def accuracy(self) -> float:
        """Accuracy of the model whose gradients the switches summed."""
        measured = self.reports[0].measured
        assert measured is not None
        return float(measured.outcome["accuracy"])

    @property
    def problems(self) -> list[str]:
        """Problems of all runs."""
        return [
            f"{report.experiment.algorithm.value}: {problem}"
            for report in self.reports
            for problem in report.problems
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object of `report.json`."""
        return {
            "training": {
                "accuracy": self.accuracy,
                "single_process_accuracy": self.single_process_accuracy,
            },
            "runs": [report.to_dict() for report in self.reports],
        }


def demo_experiments(world: WorldKind, seed: int = 1) -> tuple[Experiment, ...]:
    """Return the demo's runs: digits, eight workers, a fat-tree of twenty switches."""
    base = Experiment(
        topology="fat-tree:4",
        workers=8,
        rounds=EPOCHS,
        train="digits",
        # Gradients in one tensor, and nothing else on the links: every byte is predicted.
        coordinate=False,
        world=world,
        dtype=DataType.FLOAT32,
        link_rate=25e6,
        seed=seed,
    )
    return tuple(replace(base, algorithm=algorithm) for algorithm in ALGORITHMS)


def run_demo(
    experiments: Sequence[Experiment], run: Callable[[Experiment], Report], folder: Path
) -> Demo:
    """Run the experiments, train alone for comparison, and write report, plots and page."""
    require("matplotlib", "demo")
    check_writable(folder / "report.json")
    alone = train_alone(experiments[0].seed, experiments[0].rounds)
    demo = Demo(tuple(run(experiment) for experiment in experiments), alone.accuracy())
    write_json(folder / "report.json", demo.to_dict())
    plots = {
        "time.png": _time_plot(demo),
        "bytes.png": _bytes_plot(demo),
        "loss.png": _loss_plot(demo, alone.losses),
    }
    for name, data in plots.items():
        write_file(folder / name, data)
    write_file(folder / "index.html", _page(demo, plots))
    return demo


def _names(demo: Demo) -> list[str]:
    return [report.experiment.algorithm.value for report in demo.reports]


def _save(figure: Any) -> bytes:
    buffer = io.BytesIO()
    # Without the version in it, the same run gives the same picture.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _axes(width: float = 6.4, height: float = 3.2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _time_plot(demo: Demo) -> bytes:
    figure, axes = _axes()
    names = _names(demo)
    seconds = [report.measured.seconds for report in demo.reports if report.measured]
    bars = axes.bar(names, seconds, color=[COLOURS[name] for name in names], width=0.55)
    predicted = [report.predicted.seconds for report in demo.reports]
    axes.hlines(
        predicted,
        [x - 0.34 for x in range(len(names))],
        [x + 0.34 for x in range(len(names))],
        colors="k",
        linestyles="dashed",
        linewidth=1.2,
        label="predicted",
    )
    axes.bar_label(bars, fmt="%.2f s", padding=3)
    axes.set_ylabel("seconds in all-reduce")
    axes.legend(frameon=False)
    return _save(figure)


def _bytes_plot(demo: Demo) -> bytes:
    figure, axes = _axes()
    for report in demo.reports:
        if report.measured is None:
            continue
        name = report.experiment.algorithm.value
        loads = sorted((count / 1e6 for count in report.measured.links.values()), reverse=True)
        axes.step(range(len(loads)), loads, where="post", color=COLOURS[name], label=name)
    axes.set_xlabel("link directions, busiest first")
    axes.set_ylabel("megabytes sent")
    axes.legend(frameon=False)
    return _save(figure)


def _loss_plot(demo: Demo, alone: Sequence[float]) -> bytes:
    figure, axes = _axes()
    epochs = range(1, len(alone) + 1)
    axes.plot(epochs, alone, "k--", label="one process")
    for report in demo.reports:
        if report.measured is not None:
            name = report.experiment.algorithm.value
            axes.plot(
                epochs,
                report.measured.outcome["losses"],
                color=COLOURS[name],
                label=name,
                alpha=0.7,
            )
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")
    axes.legend(frameon=False)
    return _save(figure)


def _image(data: bytes, alt: str) -> str:
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{alt}" src="data:image/png;base64,{encoded}">'


def _page(demo: Demo, plots: dict[str, bytes]) -> str:
    first = demo.reports[0]
    experiment = first.experiment
    prepared = prepare(experiment)
    names = _names(demo)
    links = dict(first.measured.links) if first.measured else {}
    picture = network_svg(prepared.network, prepared.plan, link_bytes=links)
    checks = "every sum checked"
    if not first.differing_links:
        checks += ", bytes in-network as predicted on every link"
    lead = (
        f"{experiment.workers} workers train a digit classifier on {experiment.topology} at "
        f"{si(experiment.link_rate or 0, 'bit/s')} a link, in {experiment.world.value}; "
        f"{checks if not demo.problems else 'with problems, see below'}."
    )
    sections = [
        (
            "Accuracy",
            f"<p>{demo.accuracy:.4f} with gradients summed in the switches, "
            f"{demo.single_process_accuracy:.4f} in a single process.</p>"
            + page.figure(_image(plots["loss.png"], "training loss"), "Training loss by epoch"),
        ),
        ("Three ways to sum", page.table(("", *names), figures(demo.reports))),
        (
            "Time and bytes",
            page.figure(_image(plots["time.png"], "seconds"), "Time spent in all-reduce")
            + page.figure(_image(plots["bytes.png"], "bytes"), "Bytes on every link"),
        ),
        (
            "The aggregation tree",
            page.figure(picture, "Switches that sum are filled; the tree's links are bold"),
        ),
        (
            "Bytes on each link",
            "".join(
                page.folded(name, page.links_table(report.to_dict()))
                for name, report in zip(names, demo.reports, strict=True)
            ),
        ),
    ]
    if demo.problems:
        listed = "".join(f"<li>{problem}</li>" for problem in demo.problems)
        sections.insert(0, ("Problems", f'<ul class="bad">{listed}</ul>'))
    return page.page("hopsum: gradients summed in the network", lead, sections)
