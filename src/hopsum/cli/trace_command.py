"""`hopsum trace`: the journey of one fragment, from the capture files of a run or a cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hopsum.cli.command_options import JsonOption, print_json
from hopsum.cli.console import notify
from hopsum.controller.jobs.job_state import LAST_JOB
from hopsum.files.output import check_writable, write_file

LAST_FRAGMENT = 0xFFFF_FFFF


def trace(
    job: Annotated[int, typer.Argument(min=0, max=LAST_JOB, help="Number of the job.")],
    fragment: Annotated[
        int, typer.Argument(min=0, max=LAST_FRAGMENT, help="Number of the fragment.")
    ],
    pcap: Annotated[
        Path, typer.Option(help="Folder given to --pcap of the run or cluster.")
    ] = Path("pcap"),
    svg: Annotated[
        Path | None, typer.Option(help="Draw it as a sequence diagram, to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show when the frames of a fragment crossed which links, from capture files."""
    if svg is not None:
        check_writable(svg)
    from hopsum.experiment.captured_trace import capture_holes, captured_trace
    from hopsum.reports.fragment_trace import trace_lines, trace_svg

    found = captured_trace(pcap, fragment, job)
    for line in capture_holes(pcap):
        notify(f"{line}; hops may be missing")
    if svg is not None:
        write_file(svg, trace_svg(found))
    if as_json:
        print_json([asdict(hop) for hop in found.hops])
        return
    for line in trace_lines(found):
        typer.echo(line)
