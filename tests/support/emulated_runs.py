"""Several experiments in one emulation: bringing it up costs more than they do."""

from __future__ import annotations

from hopsum.experiment.description import Experiment
from hopsum.experiment.emulated import with_cluster
from hopsum.experiment.prepare import prepare
from hopsum.experiment.result import Report, RunMeasurement
from hopsum.experiment.session import RunningCluster, no_progress, run_job
from hopsum.mininet_topos.emulation import Emulation


def run_together(*experiments: Experiment) -> list[Report]:
    """Run experiments of one network, engine, loss and lanes one after the other; their reports."""
    prepared = [prepare(experiment) for experiment in experiments]

    async def run_all(running: RunningCluster, emulation: Emulation) -> list[RunMeasurement]:
        return [await run_job(running, each, no_progress) for each in prepared]

    measured = with_cluster(prepared[0], run_all, all_hosts=True)
    return [
        Report(each.experiment, each.tensor_elements, each.predicted, found, each.forms)
        for each, found in zip(prepared, measured, strict=True)
    ]
