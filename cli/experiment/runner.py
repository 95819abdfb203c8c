"""Run an experiment, in whichever world it asks for, and report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.experiment.description import Experiment, WorldKind
from cli.experiment.prepare import Prepared, prepare
from cli.experiment.result import Measured, Report
from cli.experiment.session import Progress, no_progress

if TYPE_CHECKING:
    from controller.web.recording import Recording


def run_experiment(
    experiment: Experiment,
    report_path: Path | None = None,
    progress: Progress = no_progress,
    recording: Recording | None = None,
) -> Report:
    """Prepare, predict, run, compare; the states of the cluster go to `recording`.

    The report is written before traffic starts, with the prediction, and again at the end. Raises
    what `prepare` raises for a wrong experiment, and what the world raises for a run that fails.
    """
    prepared = prepare(experiment)
    report = Report(
        prepared.experiment, prepared.tensor_elements, prepared.predicted, forms=prepared.forms
    )
    if report_path is not None:
        report.write(report_path)
    report = replace(report, measured=_run(prepared, progress, recording))
    if report_path is not None:
        report.write(report_path)
    return report


def _run(prepared: Prepared, progress: Progress, recording: Recording | None) -> Measured:
    if prepared.experiment.world is WorldKind.SIMULATION:
        from cli.experiment.simulated import run_simulated

        return run_simulated(prepared, progress, recording)
    from cli.experiment.emulated import run_emulated

    return run_emulated(prepared, progress, recording)
