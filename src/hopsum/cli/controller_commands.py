"""The controller's commands; the `hopsum` command mounts `app`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from hopsum.cli import doctor as examination
from hopsum.cli.command_options import (
    ControllerOption,
    HostsOption,
    JsonOption,
    LargestPieceOption,
    LatencyOption,
    NetworkOption,
    PlainOption,
    RateOption,
    ServersOption,
    TopologyArgument,
    UplinkOption,
    WorkersOption,
    connect,
    print_json,
    print_table,
    print_wide_table,
)
from hopsum.cli.console import notify, standard_output
from hopsum.cli.shell import install_shell, run_shell
from hopsum.collectives.plan import PlanError
from hopsum.controller.dataplane.slots import SlotState
from hopsum.controller.jobs.job_state import LAST_JOB
from hopsum.controller.telemetry.slot_diagnosis import job_slots
from hopsum.files.output import write_file
from hopsum.network.loaders import load_network, node_link, save_network
from hopsum.network.model import Network
from hopsum.network.units import format_rate, format_time
from hopsum.protocol.errors import InputError
from hopsum.reports.network_drawing import network_svg

MOST_SLOTS = 1 << 20
"""Upper bound of slots of a switch."""
MOST_ID = (1 << 64) - 1
"""Maximum of P4Runtime's 64-bit ids."""


def topology(
    network: TopologyArgument,
    save: Annotated[Path | None, typer.Option(help="Write it as node-link JSON.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it to this file.")] = None,
    workers: WorkersOption = None,
    servers: ServersOption = 1,
    link_rate: RateOption = None,
    uplink_rate: UplinkOption = None,
    latency: LatencyOption = None,
    plain: PlainOption = None,
    hosts_per_switch: HostsOption = 1,
    largest_piece: LargestPieceOption = False,
    topology: NetworkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a network, convert it to node-link JSON, or draw it."""
    loaded = load_network(
        network,
        link_rate=link_rate,
        uplink_rate=uplink_rate,
        latency=latency,
        workers=workers,
        servers=servers,
        plain=plain or (),
        hosts_per_switch=hosts_per_switch,
        largest_piece=largest_piece,
    )
    if save is not None:
        save_network(loaded, save)
    if svg is not None:
        write_file(svg, network_svg(loaded))
    if as_json:
        print_json(node_link(loaded))
    else:
        _print_network(loaded)


def _print_network(loaded: Network) -> None:
    console = standard_output()
    console.print(
        f"{loaded.name}: {len(loaded.hosts)} hosts, {len(loaded.switches)} switches, "
        f"{len(loaded.links)} links",
        highlight=False,
    )
    # Names for options, and those of the file where they differ.
    labelled = any(loaded.label(node) != node for node in (*loaded.hosts, *loaded.switches))
    print_table(
        "hosts",
        ("host", *(["label"] * labelled), "address", "MAC", "attached to"),
        [
            (
                h.name,
                *([escape(h.label)] * labelled),
                h.ip,
                h.mac,
                ", ".join(loaded.ports(h.name).values()),
            )
            for h in loaded.hosts.values()
        ],
        console,
    )
    if loaded.switches:
        print_table(
            "switches",
            ("switch", *(["label"] * labelled), "sums", "slots", "ports"),
            [
                (
                    s.name,
                    *([escape(s.label)] * labelled),
                    "yes" if s.aggregates else "no",
                    s.slots,
                    "  ".join(f"{port}:{peer}" for port, peer in loaded.ports(s.name).items()),
                )
                for s in loaded.switches.values()
            ],
            console,
        )
    rates = sorted({(format_rate(x.bandwidth), format_time(x.latency)) for x in loaded.links})
    console.print("links: " + "; ".join(f"{rate}, {late}" for rate, late in rates))


def stats(
    controller: ControllerOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include counters that are zero.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the packet counters of every switch, by outcome."""
    switches = connect(controller).switches(counters=True)
    if as_json:
        print_json(
            {
                s.name: {
                    "state": s.state,
                    "seconds": s.seconds,
                    "health": s.health,
                    "address": s.address,
                    "outcomes": dict(s.outcomes),
                    "counters_error": s.counters_error,
                }
                for s in switches
            }
        )
        return
    totals: dict[str, int] = {}
    for switch in switches:
        for name, count in switch.outcomes.items():
            totals[name] = totals.get(name, 0) + count
    names = [name for name, count in totals.items() if count or everything]
    rows = [
        (s.name, s.counters_error or s.state, *(s.outcomes.get(name, 0) for name in names))
        for s in switches
    ]
    print_wide_table("packets", ("switch", "state", *names), rows, keys=2)


def slots(
    switch: Annotated[str, typer.Argument(help="Name of the switch.")],
    first: Annotated[int, typer.Option(min=0, max=MOST_SLOTS, help="First slot.")] = 0,
    count: Annotated[int, typer.Option(min=1, max=MOST_SLOTS, help="Number of slots.")] = 16,
    job: Annotated[
        int | None, typer.Option(min=0, max=LAST_JOB, help="Show all slots of this job instead.")
    ] = None,
    values: Annotated[bool, typer.Option(help="Include the values, in JSON.")] = False,
    controller: ControllerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the contents of a switch's slots, read in-band."""
    queries = connect(controller)
    ranges = [range(first, first + count)]
    if job is not None:
        held = job_slots(queries.describe(job)[1])
        if switch not in held:
            raise PlanError(
                f"job {job} has no slots at switch {switch}; it has some at {', '.join(held)}"
            )
        ranges = held[switch]
    found = [s for part in ranges for s in queries.slots(switch, part.start, len(part), values)]
    if as_json:
        print_json([_slot_dict(state, values) for state in found])
        return
    rows = [
        (
            s.slot,
            _slot_words(s),
            f"{s.job}/{s.tree}" if s.valid else "",
            s.epoch,
            s.fragment,
            f"{s.count}/{s.fan_in}",
            ", ".join(map(str, s.missing())) if s.valid and not s.cleared else "",
            s.weight,
        )
        for s in found
    ]
    columns = ("slot", "state", "job/tree", "epoch", "fragment", "children", "missing", "weight")
    print_table(f"slots of {switch}", columns, rows)


def _slot_words(state: SlotState) -> str:
    if not state.valid:
        return "empty"
    if state.cleared:
        return "cleared"
    return "complete" if state.complete else "waiting"


def _slot_dict(state: SlotState, values: bool) -> Mapping[str, Any]:
    shown: dict[str, Any] = {
        "slot": state.slot,
        "state": _slot_words(state),
        "job": state.job,
        "tree": state.tree,
        "epoch": state.epoch,
        "fragment": state.fragment,
        "bitmap": state.bitmap,
        "count": state.count,
        "fan_in": state.fan_in,
        "weight": state.weight,
        "flags": state.flags,
        "exponent": state.exponent,
    }
    if values:
        shown["width"] = state.width.bits
        shown["lanes"] = state.lanes.tolist()
    return shown


def why_stuck(
    job: Annotated[
        str | None, typer.Argument(help="Number or name of the job; default: every running job.")
    ] = None,
    controller: ControllerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the children missing at each switch, for every incomplete fragment."""
    from hopsum.controller.api.client import job_query

    queries = connect(controller)
    if job is None:
        jobs = [status.job for status in queries.status()]
    else:
        jobs = [job_query(job).job or queries.job(job).job]
    missing = [child for number in jobs for child in queries.missing(number)]
    if as_json:
        print_json([asdict(child) for child in missing])
        return
    console = standard_output()
    if not missing:
        console.print("no slot of a switch is waiting" if jobs else "no job is running")
        return
    for child in missing:
        console.print(child.sentence(), markup=False, highlight=False, soft_wrap=True)


def shell(
    switch: Annotated[
        str | None, typer.Argument(help="Name of a switch, or its host:port or unix:path.")
    ] = None,
    device_id: Annotated[
        int, typer.Option(min=0, max=MOST_ID, help="Device id of a switch given by address.")
    ] = 1,
    election_id: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_ID,
            help="Below 10 the controller stays primary and the shell only reads; above 10 the "
            "shell becomes primary.",
        ),
    ] = 1,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare", help="Install p4runtime-shell for later use without Internet access."
        ),
    ] = False,
    controller: ControllerOption = None,
) -> None:
    """Open p4runtime-shell on a switch, with helpers for hopsum's tables."""
    if prepare:
        typer.echo(f"p4runtime-shell is in {install_shell().parent.parent}")
        return
    if switch is None:
        raise InputError("switch: which one? `hopsum status` lists them; or give its host:port")
    address = switch
    if ":" not in switch:
        known = {s.name: s for s in connect(controller).switches()}
        if switch not in known:
            raise PlanError(f"there is no switch {switch!r}; switches: {', '.join(known)}")
        address, device_id = known[switch].address, known[switch].device_id
    raise typer.Exit(run_shell(address, device_id, election_id))


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(help="Check this configuration file of a controller or agent instead."),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(help="Also compare versions and clocks with the controller at this address."),
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(help="Check an interface, such as a switch's port, instead (repeatable)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: what works, and what to install for the rest."""
    from hopsum.cli.configuration_check import check_controller, check_file, check_interface

    one = config is not None or controller is not None or bool(interface)
    findings = [] if one else examination.examine()
    if config is not None:
        findings += check_file(config)
    if controller is not None:
        findings += check_controller(controller)
    for name in interface or ():
        findings += check_interface(name)
    # MissingChild features of the machine are not errors; an unusable file or controller is.
    failed = one and not all(found.ok for found in findings)
    if as_json:
        print_json([finding.to_dict() for finding in findings])
        raise typer.Exit(failed)
    if one:
        for finding in findings:
            mark, words = ("good ", finding.found) if finding.ok else ("wrong", finding.without)
            notify(f"{mark}  {finding.name}: {words}")
        raise typer.Exit(failed)
    rows = [
        (
            escape(finding.name),
            f"[green]{escape(finding.found)}[/]" if finding.ok else "[yellow]missing[/]",
            finding.needed_for,
            "" if finding.ok else escape(finding.without),
        )
        for finding in findings
    ]
    columns = ("", "found", "needed for", "what to do")
    print_table("this machine", columns, rows)
