"""The subcommands of `hopsum` by group, and its help, which needs no more than this table."""

from __future__ import annotations

import os
import textwrap
from typing import NamedTuple

NARROW, WIDE = 50, 80
"""Columns of the help at least, and at most."""


class Command(NamedTuple):
    """Location of a subcommand (`module:function`, or `module:app` of a group), and its help.

    `passes_on`: everything after its first argument, including options, is for another program.
    """

    target: str
    help: str
    passes_on: bool = False


GROUPS = {
    "Run": {
        "run": Command(
            "hopsum.cli.run_commands:run",
            "Run all-reduce of random tensors (or a training) and check every element and byte.",
        ),
        "demo": Command(
            "hopsum.cli.run_commands:demo",
            "Train on digits with in-network sums, and compare with a parameter server and a ring.",
        ),
        "torchrun": Command(
            "hopsum.cli.torchrun_command:torchrun",
            "Train with PyTorch on a cluster in Mininet (root): the running one, or one of its "
            "own.",
            passes_on=True,
        ),
        "simulate": Command(
            "hopsum.cli.simulate_command:simulate",
            "Time all-reduce algorithms at flow level: max-min fair rates, latency, "
            "background traffic.",
        ),
        "exec": Command(
            "hopsum.cli.exec_command:execute",
            "Run a command on a host of `hopsum cluster` (root), in this folder.",
            passes_on=True,
        ),
        "soak": Command(
            "hopsum.cli.soak_command:soak",
            "Test random networks, jobs and faults in virtual time: sums stay exact, nothing "
            "leaks.",
        ),
    },
    "Plan": {
        "plan": Command(
            "hopsum.cli.plan_command:plan",
            "Plan a job: trees, rates and their bound, what each switch does, bytes on each link.",
        ),
        "topology": Command(
            "hopsum.cli.controller_commands:topology",
            "Show a network, convert it to node-link JSON, or draw it.",
        ),
        "schedule": Command(
            "hopsum.cli.schedule_commands:app", "Collectives as schedules: make, check, draw."
        ),
    },
    "Cluster": {
        "cluster": Command(
            "hopsum.cli.cluster_commands:cluster",
            "Bring up a cluster in Mininet that jobs can be submitted to, until interrupted "
            "(root).",
        ),
        "controller": Command(
            "hopsum.cli.cluster_commands:app", "The controller as a long-running process."
        ),
        "submit": Command(
            "hopsum.cli.job_commands:submit", "Submit a job to the running controller."
        ),
        "jobs": Command(
            "hopsum.cli.job_commands:jobs",
            "List the jobs of the running controller, including finished ones.",
        ),
        "job": Command(
            "hopsum.cli.job_commands:job",
            "Show a job of the running controller: its progress, and its workers' verdicts.",
        ),
        "cancel": Command("hopsum.cli.job_commands:cancel", "Cancel a job, queued or running."),
        "nodes": Command(
            "hopsum.cli.job_commands:nodes",
            "List the hosts: which have an agent, their jobs, and the load of their links.",
        ),
        "link": Command(
            "hopsum.cli.link_commands:app",
            "Links of the running controller: list; cut and restore those of `hopsum cluster`.",
        ),
        "status": Command(
            "hopsum.cli.status_command:status",
            "Show the jobs of the running controller and their agents; its switches, links and "
            "slots.",
        ),
        "top": Command(
            "hopsum.cli.top_command:top",
            "Show jobs, switches, busy links and events of the running controller, every second.",
        ),
        "dashboard": Command(
            "hopsum.cli.dashboard_command:dashboard",
            "Show the running controller, or a recorded run, on a web page, until interrupted.",
        ),
    },
    "Look inside": {
        "trace": Command(
            "hopsum.cli.trace_command:trace",
            "Show when the frames of a fragment crossed which links, from capture files.",
        ),
        "stats": Command(
            "hopsum.cli.controller_commands:stats",
            "Show the packet counters of every switch, by outcome.",
        ),
        "slots": Command(
            "hopsum.cli.controller_commands:slots",
            "Show the contents of a switch's slots, read in-band.",
        ),
        "why-stuck": Command(
            "hopsum.cli.controller_commands:why_stuck",
            "List the children missing at each switch, for every incomplete fragment.",
        ),
        "shell": Command(
            "hopsum.cli.controller_commands:shell",
            "Open p4runtime-shell on a switch, with helpers for hopsum's tables.",
        ),
    },
    "Set up": {
        "doctor": Command(
            "hopsum.cli.controller_commands:doctor",
            "Check this machine: what works, and what to install for the rest.",
        ),
        "certificates": Command(
            "hopsum.cli.certificates_command:certificates",
            "Make an authority, and certificates for controller, hosts, switches and people.",
        ),
        "export": Command(
            "hopsum.cli.export_command:export",
            "Write what other programs need: Wireshark's dissector, and Grafana's dashboard.",
        ),
        "drive": Command(
            "hopsum.cli.run_commands:drive",
            "Keep plain forwarding on the switches of a running `mn --custom "
            "mininet_topos/custom.py`.",
        ),
        "manual": Command(
            "hopsum.cli.manual_command:manual",
            "Print the man page (`hopsum manual | man -l -`), or write those of both programs.",
        ),
        "stop": Command(
            "hopsum.cli.run_commands:stop",
            "Clean up after a killed run: processes, interfaces, namespaces (root).",
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
SUMMARY = "Gradients summed hop by hop inside the network."
OPTIONS = {
    "--version": "Print the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or customize the "
    "installation.",
    "-h, --help": "Show this message and exit.",
}


def overview() -> str:
    """Return the help of `hopsum`: commands by group, with whole sentences, for this terminal."""
    lines = ["Usage: hopsum [OPTIONS] COMMAND [ARGS]...", "", f"  {SUMMARY}", ""]
    columns = _columns()
    lines += ["Options:", *_definitions(OPTIONS, max(map(len, OPTIONS)), columns)]
    widest = max(map(len, COMMANDS))
    for title, group in GROUPS.items():
        rows = {name: command.help for name, command in group.items()}
        lines += ["", f"{title}:", *_definitions(rows, widest, columns)]
    return "\n".join(lines)


def _columns() -> int:
    try:
        return max(NARROW, min(os.get_terminal_size().columns, WIDE)) - 2
    except OSError:
        return WIDE - 2


def _definitions(rows: dict[str, str], widest: int, columns: int) -> list[str]:
    lines = []
    for name, text in rows.items():
        first, *rest = textwrap.wrap(text, columns - widest - 4)
        lines += [f"  {name:{widest}}  {first}", *(" " * (widest + 4) + line for line in rest)]
    return lines
