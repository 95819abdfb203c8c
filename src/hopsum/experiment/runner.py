"""Runs an experiment in its world and reports."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hopsum.collectives.choices import Engine
from hopsum.experiment.captured_trace import captured_trace, prepare_captures, trace_conditions
from hopsum.experiment.description import Experiment, ExperimentError, WorldKind
from hopsum.experiment.prepare import PreparedExperiment, prepare
from hopsum.experiment.result import Report, RunMeasurement
from hopsum.experiment.session import Progress, no_progress

if TYPE_CHECKING:
    from hopsum.controller.web.recording import Recording
    from hopsum.experiment.supervision import Notify
    from hopsum.network.model import Network
    from hopsum.simulation.fragment_trace import FragmentTrace
    from hopsum.simulation.world import Observer


def run_experiment(
    experiment: Experiment,
    report_path: Path | None = None,
    progress: Progress = no_progress,
    recording: Recording | None = None,
    *,
    pcap: Path | None = None,
    trace: FragmentTrace | None = None,
    network: Network | None = None,
    notify: Notify | None = None,
) -> Report:
    """Prepare, predict, run and compare; the states of the cluster go to `recording`.

    `network`: used as it is instead of the one that the experiment names. `notify`: gets lines
    about what is started in Mininet (None: the log). `pcap`: folder for capture files of the
    switches' ports. `trace`: follows a fragment; ExperimentError on BMv2.

    The report is written with the prediction before traffic starts, and again at the end. Raises
    the errors of `prepare` for an invalid experiment, and those of the world for a run that fails.
    """
    if trace is not None and experiment.engine is Engine.BMV2:
        raise ExperimentError(
            "trace-fragment: BMv2 does not report its counts per packet; use the embedded "
            "engine, or capture the links with --pcap and read them with `hopsum trace`"
        )
    prepared = prepare(experiment, network)
    if pcap is not None:
        prepare_captures(prepared.network, pcap)
    report = Report(
        prepared.experiment,
        prepared.tensor_elements,
        prepared.predicted,
        forms=prepared.forms,
        steps=prepared.workload.steps,
    )
    if report_path is not None:
        report.write(report_path)
    report = replace(report, measured=_run(prepared, progress, recording, pcap, trace, notify))
    if report_path is not None:
        report.write(report_path)
    return report


def _run(
    prepared: PreparedExperiment,
    progress: Progress,
    recording: Recording | None,
    pcap: Path | None,
    trace: FragmentTrace | None,
    notify: Notify | None,
) -> RunMeasurement:
    if prepared.experiment.world is WorldKind.SIMULATION:
        from hopsum.experiment.simulated import run_simulated
        from hopsum.simulation.capture import Capture

        with contextlib.ExitStack() as stack:
            observers: list[Observer] = [] if trace is None else [trace]
            if pcap is not None:
                observers.append(stack.enter_context(Capture(prepared.network, pcap)))
            return run_simulated(prepared, progress, recording, observers)
    from hopsum.experiment.emulated import LOGGER, run_emulated

    told = notify or LOGGER.info
    if trace is None:
        return run_emulated(prepared, progress, recording, pcap, notify=told)
    with contextlib.ExitStack() as stack:
        if pcap is None:
            pcap = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsum-trace-")))
            prepare_captures(prepared.network, pcap)
        conditions = trace_conditions(trace.fragment, trace.job)
        measured = run_emulated(prepared, progress, recording, pcap, conditions, told)
        trace.hops += captured_trace(pcap, trace.fragment, trace.job).hops
        return measured
