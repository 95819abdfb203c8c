"""Commands that run an experiment, the demonstration, or the switches of a running Mininet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hopsum.cli.command_options import (
    DashboardOption,
    EngineOption,
    JsonOption,
    LanesOption,
    LossOption,
    NetworkOption,
    PcapOption,
    TopologyArgument,
    WebOption,
    print_json,
    web_option,
)
from hopsum.cli.console import complain, console, notify, standard_output
from hopsum.cli.option_groups import (
    AlgorithmGroup,
    JobGroup,
    NetworkGroup,
    PacketGroup,
    PlannerGroup,
    TrainingGroup,
    with_groups,
)
from hopsum.collectives.choices import Engine
from hopsum.coordination.tree import DEFAULT_FAN_OUT, TreeLimits
from hopsum.experiment.description import Experiment, PacketIo, WorldKind
from hopsum.experiment.result import Report
from hopsum.files.output import check_writable, write_file
from hopsum.library.runs import execute, experiment_of
from hopsum.mininet_topos.loader import why_unavailable
from hopsum.protocol.errors import InputError
from hopsum.protocol.extras import require
from hopsum.protocol.web_address import WebAddress
from hopsum.reports.summary import reservation, run_table, setting

if TYPE_CHECKING:
    from hopsum.controller.web.recording import Recording
    from hopsum.simulation.fragment_trace import FragmentTrace


@dataclass(frozen=True)
class OutputGroup:
    """What a run writes and shows."""

    report: Annotated[
        Path | None,
        typer.Option(help="Write the report to this file: .json, or .html for a page."),
    ] = None
    record: Annotated[
        Path | None,
        typer.Option(help="Record the run to this file, for `hopsum dashboard --replay`."),
    ] = None
    pcap: PcapOption = None
    trace_fragment: Annotated[
        int | None,
        typer.Option(
            min=0, max=0xFFFF_FFFF, help="Print the journey of this fragment (not on BMv2)."
        ),
    ] = None
    trace_svg: Annotated[
        Path | None, typer.Option(help="Draw that journey as a sequence diagram, to this file.")
    ] = None
    dashboard: DashboardOption = False
    web: WebOption = None
    as_json: JsonOption = False


@with_groups
def run(
    network: NetworkGroup,
    work: JobGroup,
    packets: PacketGroup,
    way: AlgorithmGroup,
    trees: PlannerGroup,
    training: TrainingGroup,
    output: OutputGroup,
    world: Annotated[
        WorldKind, typer.Option(help="Virtual time, or real processes (root).")
    ] = WorldKind.SIMULATION,
    engine: EngineOption = Engine.EMBEDDED,
    loss: LossOption = 0.0,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            help="Inject a failure, in seconds of virtual time after submission: "
            "link-cut:l1-s1@0.5-3 (repeatable); also switch-down:, switch-hangs: and "
            "agent-down:; without -STOP it is permanent."
        ),
    ] = None,
    packet_io: Annotated[PacketIo, typer.Option(help="Agents' packet path.")] = PacketIo.FAST,
    limit: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 600.0,
) -> None:
    """Run all-reduce of random tensors (or a training) and check every element and byte."""
    experiment = experiment_of(
        network.topology,
        work.placed_workers,
        servers=work.placed_servers,
        elements=work.elements,
        rounds=work.rounds,
        algorithm=way.algorithm,
        world=world,
        engine=engine,
        dtype=work.dtype,
        wire_bits=work.wire_bits or 0,
        results=work.results,
        link_rate=network.link,
        uplink_rate=network.uplink,
        largest_piece=network.largest_piece,
        latency=network.delay,
        loss=loss,
        outages=outage or (),
        seed=work.seed,
        lanes=packets.lanes,
        window=work.window,
        max_hops=packets.max_hops,
        collective=work.collective,
        planner=trees.planner,
        options=trees.options,
        form=way.form,
        packet_io=packet_io,
        train=training.train,
        coordinate=training.coordinate,
        coordination=training.coordination,
        coordination_limits=TreeLimits(
            training.coordination_fan_out or DEFAULT_FAN_OUT,
            training.coordination_height,
            training.coordination_distance,
        ),
        integrity=training.integrity,
        limit=limit,
    )
    _run(experiment, output)


def _run(experiment: Experiment, output: OutputGroup) -> None:
    """Run an experiment, and write and show what is asked for."""
    report, record, pcap = output.report, output.record, output.pcap
    trace_svg = output.trace_svg
    trace = _trace_of(output.trace_fragment, trace_svg)
    if report is not None and report.suffix not in ("", ".json", ".html"):
        raise InputError(f"report {report}: expected a name that ends in .json or .html")
    page = report if report is not None and report.suffix == ".html" else None
    with ExitStack() as stack:
        address = web_option(output.dashboard, output.web)
        recording = _recording(stack, record, address)
        if page is not None:
            from hopsum.reports.run_page import Run, recording_for, run_page

            require("matplotlib", "report")
            check_writable(page)
            recording = recording or recording_for(experiment.world)
        try:
            values = None if page else report
            finished = _recorded_run(experiment, values, recording, record, pcap, trace)
        except Exception as error:
            if address is not None:
                complain("failed", str(error))
                _keep_page()
            raise
        _show(finished, output.as_json)
        if pcap is not None:
            from hopsum.experiment.captured_trace import capture_holes

            for line in capture_holes(pcap):
                notify(line)
        if page is not None and recording is not None:
            write_file(page, run_page(Run(finished, recording.frames())))
        if trace is not None:
            _show_trace(trace, trace_svg)
        if address is not None:
            _keep_page()
    if finished.problems:
        raise typer.Exit(1)


def _recording(
    stack: ExitStack, record: Path | None, address: WebAddress | None
) -> Recording | None:
    """Return the recording of a run, served on a web page if there is an address."""
    if record is None and address is None:
        return None
    from hopsum.controller.web.recording import Recording

    if record is not None:
        check_writable(record)
    recording = Recording(live=True)
    if address is not None:
        from hopsum.controller.web.server import web_thread

        url = stack.enter_context(web_thread(recording, address))
        notify(f"dashboard at {url}")
    return recording


def _recorded_run(
    experiment: Experiment,
    report: Path | None,
    recording: Recording | None,
    record: Path | None,
    pcap: Path | None,
    trace: FragmentTrace | None,
) -> Report:
    """Run an experiment; end its recording and write it to `record`, even on failure."""
    try:
        return execute(
            experiment,
            report=report,
            recording=recording,
            pcap=pcap,
            trace=trace,
            notify=notify,
            progress=True,
            console=console(),
        ).report
    finally:
        if recording is not None:
            recording.end()
            if record is not None and recording.frames():
                write_file(record, recording.to_lines())


def _trace_of(fragment: int | None, svg: Path | None) -> FragmentTrace | None:
    """Return the trace of a fragment, if requested."""
    if fragment is None:
        if svg is not None:
            raise InputError("trace-svg: needs --trace-fragment N")
        return None
    from hopsum.simulation.fragment_trace import FragmentTrace

    if svg is not None:
        check_writable(svg)
    return FragmentTrace(fragment)


def _show_trace(trace: FragmentTrace, svg: Path | None) -> None:
    from hopsum.reports.fragment_trace import trace_lines, trace_svg

    for line in trace_lines(trace):
        notify(line)
    if svg is not None:
        write_file(svg, trace_svg(trace))


def _keep_page() -> None:
    """Wait for Ctrl-C."""
    notify("the page is served until Ctrl-C")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _show(finished: Report, as_json: bool) -> None:
    if as_json:
        print_json(finished.to_dict())
    else:
        _print_summary([finished])
        if finished.measured is not None and finished.experiment.outages:
            for seconds_after, text in finished.measured.events:
                standard_output().print(
                    f"{seconds_after:.3f} s: {text}", highlight=False, markup=False
                )
        for form in finished.forms:
            standard_output().print(f"level-wise: {form}", highlight=False, soft_wrap=True)
    for missed in finished.missed_outages:
        notify(missed)
    for problem in finished.problems:
        complain("failed", problem)


def _print_summary(reports: Sequence[Report]) -> None:
    """Print what ran where, the table of its figures, and what its predictions leave out."""
    experiments = [report.experiment for report in reports]
    out = Console(highlight=False, soft_wrap=True)
    out.print(setting(experiments[0]), markup=False)
    standard_output().print(run_table(reports))
    said = reservation(experiments)
    if said:
        out.print(said)


def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the report, plots and HTML page.")
    ] = Path("out/run"),
    world: Annotated[
        WorldKind | None, typer.Option(help="Default: Mininet where it can run, else simulation.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Train on digits with in-network sums, and compare with a parameter server and a ring."""
    from hopsum.cli.demo import demo_experiments, run_demo

    if world is None:
        reason = why_unavailable()
        world = WorldKind.SIMULATION if reason else WorldKind.MININET
        if reason:
            notify(f"in simulation: {reason}")
    finished = run_demo(
        demo_experiments(world, seed, epochs),
        lambda e, recording: (
            execute(e, recording=recording, notify=notify, progress=True, console=console()).report
        ),
        output,
    )
    if as_json:
        print_json(finished.to_dict())
    else:
        _print_summary(finished.reports)
        standard_output().print(
            f"accuracy {finished.accuracy:.4f} with gradients summed in the switches, "
            f"{finished.single_process_accuracy:.4f} in a single process\n"
            f"report: {output}/report.json   page: {output}/index.html",
            highlight=False,
            soft_wrap=True,
        )
    for problem in finished.problems:
        complain("failed", problem)
    if finished.problems:
        raise typer.Exit(1)


def drive(
    network: TopologyArgument,
    engine: EngineOption = Engine.EMBEDDED,
    lanes: LanesOption = 256,
    topology: NetworkOption = None,
) -> None:
    """Keep plain forwarding on the switches of a running `mn --custom mininet_topos/custom.py`."""
    import asyncio

    from hopsum.experiment.drive import drive as drive_network
    from hopsum.network.loaders import load_network

    asyncio.run(drive_network(load_network(network), engine, lanes, notify))


def stop() -> None:
    """Clean up after a killed run: processes, interfaces, namespaces (root)."""
    from hopsum.mininet_topos.record import stop_left_over

    lines = stop_left_over()
    for line in lines or ["nothing to clean up"]:
        standard_output().print(line, highlight=False)
