"""Run experiments in Mininet: real switch and agent processes, real links."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hopsum.experiment.cluster import with_running_cluster
from hopsum.experiment.event_loop import run_async, terminable
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.prepare import PreparedExperiment
from hopsum.experiment.result import RunMeasurement
from hopsum.experiment.session import Progress, RunningCluster, run_job
from hopsum.experiment.supervision import Notify
from hopsum.mininet_topos.emulation import Emulation

if TYPE_CHECKING:
    from hopsum.controller.web.recording import Recording

LOGGER = logging.getLogger("hopsum.run")

_T = TypeVar("_T")


def run_emulated(
    prepared: PreparedExperiment,
    progress: Progress,
    recording: Recording | None = None,
    pcap: Path | None = None,
    trace: Sequence[str] = (),
    notify: Notify = LOGGER.info,
) -> RunMeasurement:
    """Start the network, run the job and clean up; `notify` gets lines about what is started.

    Raises MininetUnavailable, EmulationError, SwitchFailed, DriverError, RunFailed.
    """
    return with_cluster(
        prepared,
        lambda running, _: run_job(running, prepared, progress, recording),
        pcap=pcap,
        trace=trace,
        notify=notify,
    )


def with_cluster(
    prepared: PreparedExperiment,
    work: Callable[[RunningCluster, Emulation], Awaitable[_T]],
    *,
    all_hosts: bool = False,
    pcap: Path | None = None,
    trace: Sequence[str] = (),
    notify: Notify = LOGGER.info,
) -> _T:
    """Start the network of an experiment, with a cluster for successive jobs.

    All jobs must be prepared for the same network, lanes and stack depth. `all_hosts`: with an
    agent on every host, not only on the experiment's. `pcap`: folder for capture files of
    the switches' ports; `trace`: see `Emulation`. Raises as `run_emulated`.
    """
    experiment, network, settings = prepared.experiment, prepared.network, prepared.settings
    pipeline = pipeline_for(network, experiment.engine, settings)
    results: list[_T] = []
    notes: list[str] = []

    with (
        terminable(),
        Emulation(
            network,
            engine=experiment.engine.value,
            pcap=pcap,
            trace=trace,
            progress=notify,
        ) as emulation,
    ):

        async def keep(running: RunningCluster) -> None:
            running.notes = notes
            results.append(await work(running, emulation))

        run_async(
            with_running_cluster(
                emulation,
                pipeline,
                settings,
                notes.append,
                keep,
                hosts=None if all_hosts else prepared.hosts,
                packet_io=experiment.packet_io.value,
            )
        )
    return results[0]
