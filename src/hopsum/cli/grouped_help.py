"""Help of a command with many options, which lists them by group."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from typer.core import TyperCommand

LONG = 20
"""Number of parameters from which groups help."""
GROUPS = {
    "Network": (
        *("topology", "workers", "servers", "link-rate", "uplink-rate", "latency", "loss"),
        *("plain", "hosts-per-switch", "largest-piece", "outage"),
    ),
    "Job": (
        *("algorithm", "collective", "elements", "rounds", "dtype", "wire-bits", "results"),
        *("lanes", "window", "max-hops", "integrity", "train", "coordinate", "coordination"),
        *("ranks-per-host", "coordination-height", "coordination-fan-out", "coordination-distance"),
    ),
    "Trees and schedules": (*("planner", "planner-option", "level-wise-form", "siblings"),),
    "World": ("world", "engine", "packet-io", "seed", "limit"),
    "Output": (
        *("rules", "explain", "draw", "top", "report", "record", "pcap"),
        *("trace-fragment", "trace-svg", "dashboard", "web", "json"),
    ),
}
OTHER = "Other options"
PLANNER = "hopsum.planner"
"""Key of the planner whose help is wanted."""
_GROUP_OF = {f"--{name}": group for group, names in GROUPS.items() for name in names}


OPTIONAL_VALUES = {"--rules": "text"}
"""Options whose value may be omitted, with the value that they have then."""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group if there are many."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse arguments; those of `OPTIONAL_VALUES` get the value that they lack."""
        known = {name for parameter in self.params for name in parameter.opts}
        given: list[str] = []
        for argument, following in pairwise([*args, "-"]):
            given.append(argument)
            if argument in OPTIONAL_VALUES and argument in known and following.startswith("-"):
                given.append(OPTIONAL_VALUES[argument])
        if "--planner-option" in known:
            # Help comes before any option has its value.
            ctx.meta[PLANNER] = _value_of("--planner", args)
        return super().parse_args(ctx, given)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        self._format_options(ctx, formatter)
        planner = ctx.meta.get(PLANNER)
        if planner is not None:
            _format_planner(planner, formatter)

    def _format_options(self, ctx: Any, formatter: Any) -> None:
        parameters = self.get_params(ctx)
        if len(parameters) < LONG:
            super().format_options(ctx, formatter)
            return
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        sections |= {group: [] for group in (*GROUPS, OTHER)}
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections[_section(parameter)].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _format_planner(name: str, formatter: Any) -> None:
    """Write the options of a planner. Raises PlanError."""
    from hopsum.planning.registry import find_planner

    with formatter.section(f"Options of the planner {name} (-O NAME=VALUE)"):
        formatter.write_dl(
            [(f"{each.name}={each.kind}", each.help) for each in find_planner(name).options]
        )


def _value_of(option: str, args: list[str]) -> str | None:
    """Return the last value of an option, as `--option VALUE` or `--option=VALUE`; None: absent."""
    found = None
    for argument, following in pairwise([*args, ""]):
        if argument == option and following:
            found = following
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def _section(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return next((_GROUP_OF[name] for name in parameter.opts if name in _GROUP_OF), OTHER)
