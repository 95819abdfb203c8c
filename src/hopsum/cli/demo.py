"""`make run`: train a classifier with gradients summed in the switches, and with two baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopsum.collectives.choices import Algorithm, DataType
from hopsum.controller.web.recording import Recording
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.result import Report, write_json
from hopsum.files.output import check_writable, write_file
from hopsum.host_agent.digits import train_alone
from hopsum.protocol.extras import require
from hopsum.reports import page
from hopsum.reports.plotting import panels, png
from hopsum.reports.run_page import Run, plots, problems_section, recording_for, sections
from hopsum.reports.summary import setting

ALGORITHMS = (Algorithm.IN_NETWORK, Algorithm.SERVER, Algorithm.RING)
EPOCHS = 10


@dataclass(frozen=True, slots=True)
class Demo:
    """Results of the demo: a run per algorithm, and the accuracy of single-process training."""

    runs: tuple[Run, ...]
    single_process_accuracy: float

    @property
    def reports(self) -> list[Report]:
        """Reports of the runs."""
        return [run.report for run in self.runs]

    @property
    def accuracy(self) -> float:
        """Accuracy of the model whose gradients the switches summed."""
        return float(self.runs[0].measured.outcome["accuracy"])

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


def demo_experiments(
    world: WorldKind, seed: int = 1, epochs: int = EPOCHS
) -> tuple[Experiment, ...]:
    """Return the demo's runs: digits, eight workers, a fat-tree of twenty switches."""
    base = Experiment(
        topology="fat-tree:4",
        workers=8,
        rounds=epochs,
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
    experiments: Sequence[Experiment],
    run: Callable[[Experiment, Recording], Report],
    folder: Path,
) -> Demo:
    """Run the experiments, train alone for comparison, and write report, plots and page."""
    require("matplotlib", "demo")
    check_writable(folder / "report.json")
    alone = train_alone(experiments[0].seed, experiments[0].rounds)
    runs = []
    for experiment in experiments:
        recording = recording_for(experiment.world)
        runs.append(Run(run(experiment, recording), recording.frames()))
    demo = Demo(tuple(runs), alone.accuracy())
    write_json(folder / "report.json", demo.to_dict())
    images = {**plots(runs), "loss.png": _loss_plot(runs, alone.losses)}
    for name, data in images.items():
        write_file(folder / name, data)
    write_file(folder / "index.html", _page(demo, images))
    return demo


def _loss_plot(runs: Sequence[Run], alone: Sequence[float]) -> bytes:
    figure, [axes] = panels()
    epochs = range(1, len(alone) + 1)
    axes.plot(epochs, alone, "k--", label="one process")
    for run in runs:
        losses = run.measured.outcome["losses"]
        axes.plot(epochs, losses, color=run.colour, label=run.name, alpha=0.7)
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")
    axes.legend(frameon=False)
    return png(figure)


def _page(demo: Demo, images: Mapping[str, bytes]) -> str:
    first = demo.reports[0]
    experiment = first.experiment
    checks = "every sum checked"
    if not first.differing_links:
        checks += ", bytes in-network as predicted on every link"
    lead = (
        f"A digit classifier, trained by {setting(experiment)}; "
        f"{checks if not demo.problems else 'with problems, see below'}."
    )
    accuracy = (
        "Accuracy",
        f"<p>{demo.accuracy:.4f} with gradients summed in the switches, "
        f"{demo.single_process_accuracy:.4f} in a single process.</p>"
        + page.figure(
            page.image(images["loss.png"], "training loss"),
            "Training loss by epoch; dashed: in a single process, which must be the same",
        ),
    )
    return page.page(
        "hopsum: gradients summed in the network",
        lead,
        [*problems_section(demo.problems), accuracy, *sections(demo.runs, images)],
    )
