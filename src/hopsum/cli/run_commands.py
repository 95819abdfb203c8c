"""Commands that run an experiment, the demonstration, or the switches of a running Mininet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hopsum.cli.cluster_commands import EngineOption, LanesOption
from hopsum.cli.command_options import (
    ELEMENTS,
    ROUNDS,
    SEED,
    AlgorithmOption,
    CollectiveOption,
    CoordinateOption,
    CoordinationDistanceOption,
    CoordinationFanOutOption,
    CoordinationHeightOption,
    CoordinationOption,
    DashboardOption,
    DataTypeOption,
    ElementsOption,
    IntegrityOption,
    JsonOption,
    KeepOption,
    LargestPieceOption,
    LatencyOption,
    LevelWiseFormOption,
    LinkRateOption,
    LossOption,
    MaxHeightOption,
    MaxHopsOption,
    MaxTreesOption,
    MinRateOption,
    NamedServersOption,
    NamedWorkersOption,
    NetworkOption,
    PcapOption,
    PenaltyOption,
    PlannerOption,
    ResultsOption,
    RoundsOption,
    SeedOption,
    SiblingsOption,
    TopologyArgument,
    TopologyOption,
    TrainOption,
    TreeBandwidthOption,
    UplinkOption,
    WebOption,
    WeightStepsOption,
    WindowOption,
    link_rate_of,
    print_json,
    rate,
    seconds,
    servers_of,
    tree_rate,
    web_option,
    workers_of,
)
from hopsum.cli.console import complain, console, notify, standard_output
from hopsum.collectives.choices import (
    DEFAULT_PLANNER,
    WEIGHT_STEPS,
    Algorithm,
    Collective,
    Coordination,
    DataType,
    FormOptions,
    Shape,
)
from hopsum.coordination.tree import DEFAULT_FAN_OUT, TreeLimits
from hopsum.experiment.description import Engine, Experiment, PacketIo, WorldKind
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment
from hopsum.files.output import check_writable, write_file
from hopsum.library.progress import progress_bar
from hopsum.mininet_topos.loader import why_unavailable
from hopsum.planning.model.request import WeightSteps
from hopsum.protocol.errors import InputError
from hopsum.protocol.extras import require
from hopsum.protocol.web_address import WebAddress
from hopsum.reports.summary import reservation, run_table, setting
from hopsum.simulation.faults import outage_from

if TYPE_CHECKING:
    from hopsum.controller.web.recording import Recording
    from hopsum.simulation.fragment_trace import FragmentTrace


def run(
    topology: TopologyOption = "fat-tree:4",
    workers: NamedWorkersOption = None,
    elements: ElementsOption = ELEMENTS,
    rounds: RoundsOption = ROUNDS,
    algorithm: AlgorithmOption = Algorithm.IN_NETWORK,
    world: Annotated[
        WorldKind, typer.Option(help="Virtual time, or real processes (root).")
    ] = WorldKind.SIMULATION,
    engine: EngineOption = Engine.EMBEDDED,
    dtype: DataTypeOption = DataType.FLOAT32,
    results: ResultsOption = None,
    link_rate: LinkRateOption = None,
    uplink_rate: UplinkOption = None,
    largest_piece: LargestPieceOption = False,
    latency: LatencyOption = None,
    loss: LossOption = 0.0,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            help="Inject a failure, in seconds of virtual time after submission: "
            "link-cut:l1-s1@0.5-3 (repeatable); also switch-down:, switch-hangs: and "
            "agent-down:; without -STOP it is permanent."
        ),
    ] = None,
    seed: SeedOption = SEED,
    lanes: LanesOption = 256,
    window: WindowOption = None,
    max_hops: MaxHopsOption = None,
    servers: NamedServersOption = None,
    collective: CollectiveOption = Collective.ALL_REDUCE,
    planner: PlannerOption = None,
    max_trees: MaxTreesOption = None,
    max_height: MaxHeightOption = None,
    min_rate: MinRateOption = None,
    tree_bandwidth: TreeBandwidthOption = None,
    keep: KeepOption = None,
    weight_steps: WeightStepsOption = WEIGHT_STEPS,
    penalty: PenaltyOption = 1,
    level_wise_form: LevelWiseFormOption = Shape.AUTO,
    siblings: SiblingsOption = None,
    packet_io: Annotated[PacketIo, typer.Option(help="Agents' packet path.")] = PacketIo.FAST,
    train: TrainOption = None,
    coordinate: CoordinateOption = True,
    coordination: CoordinationOption = Coordination.AUTO,
    coordination_height: CoordinationHeightOption = None,
    coordination_fan_out: CoordinationFanOutOption = None,
    coordination_distance: CoordinationDistanceOption = None,
    integrity: IntegrityOption = False,
    limit: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 600.0,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the report to this file: .json, or .html for a page."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Record the run to this file, for `hopsum dashboard --replay`."),
    ] = None,
    pcap: PcapOption = None,
    trace_fragment: Annotated[
        int | None,
        typer.Option(
            min=0, max=0xFFFF_FFFF, help="Print the journey of this fragment (not on BMv2)."
        ),
    ] = None,
    trace_svg: Annotated[
        Path | None, typer.Option(help="Draw that journey as a sequence diagram, to this file.")
    ] = None,
    dashboard: DashboardOption = False,
    web: WebOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run all-reduce of random tensors (or a training) and check every element and byte."""
    named_workers, named_servers = workers_of(workers), servers_of(servers, collective)
    experiment = Experiment(
        topology=topology,
        workers=len(named_workers) if isinstance(named_workers, tuple) else named_workers or 0,
        worker_names=named_workers if isinstance(named_workers, tuple) else (),
        elements=elements,
        rounds=rounds,
        algorithm=algorithm,
        world=world,
        engine=engine,
        dtype=dtype,
        results=results,
        link_rate=link_rate_of(topology, link_rate),
        uplink_rate=rate("uplink-rate", uplink_rate),
        largest_piece=largest_piece,
        latency=seconds("latency", latency),
        loss=loss,
        outages=tuple(map(outage_from, outage or ())),
        seed=seed,
        lanes=lanes,
        window=window,
        max_hops=max_hops,
        collective=collective,
        servers=named_servers if isinstance(named_servers, int) else len(named_servers),
        server_names=() if isinstance(named_servers, int) else named_servers,
        planner=DEFAULT_PLANNER if planner is None else planner,
        max_trees=max_trees,
        max_height=max_height,
        min_rate=tree_rate("min-rate", min_rate) or 0.0,
        tree_bandwidth=tree_rate("tree-bandwidth", tree_bandwidth),
        keep=keep,
        weights=WeightSteps(weight_steps, penalty),
        form=FormOptions(level_wise_form, siblings),
        packet_io=packet_io,
        train=train,
        coordinate=coordinate,
        coordination=coordination,
        coordination_limits=TreeLimits(
            coordination_fan_out or DEFAULT_FAN_OUT, coordination_height, coordination_distance
        ),
        integrity=integrity,
        limit=limit,
    )
    trace = _trace_of(trace_fragment, trace_svg)
    if report is not None and report.suffix not in ("", ".json", ".html"):
        raise InputError(f"report {report}: expected a name that ends in .json or .html")
    page = report if report is not None and report.suffix == ".html" else None
    with ExitStack() as stack:
        address = web_option(dashboard, web)
        recording = _recording(stack, record, address)
        if page is not None:
            from hopsum.reports.run_page import Run, recording_for, run_page

            require("matplotlib", "report")
            check_writable(page)
            recording = recording or recording_for(world)
        try:
            values = None if page else report
            finished = _recorded_run(experiment, values, recording, record, pcap, trace)
        except Exception as error:
            if address is not None:
                complain("failed", str(error))
                _keep_page()
            raise
        _show(finished, as_json)
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
        return run_with_progress(experiment, report, recording, pcap, trace)
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


def run_with_progress(
    experiment: Experiment,
    report_path: Path | None,
    recording: Recording | None = None,
    pcap: Path | None = None,
    trace: FragmentTrace | None = None,
) -> Report:
    """Run an experiment behind a progress bar on standard error."""
    what = f"{experiment.algorithm.value} on {experiment.topology}"
    with progress_bar(what, shown=True, console=console()) as progress:
        return run_experiment(
            experiment, report_path, progress, recording, pcap=pcap, trace=trace, notify=notify
        )


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
        lambda e, recording: run_with_progress(e, None, recording),
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
