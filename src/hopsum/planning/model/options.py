"""Options of planners as data: name, type, default and meaning, and where a request keeps them.

Commands, submissions and `import hopsum` take them by name, as texts such as `max-trees=3`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

from hopsum.collectives.plan import PlanError
from hopsum.network.units import (
    format_rate,
    format_time,
    has_unit,
    parse_count,
    parse_rate,
    parse_share,
    parse_time,
)
from hopsum.planning.model.request import Method, PlanRequest

NONE = "none"
"""The text for no limit."""


class Kind(StrEnum):
    """Type of an option; the value is how help shows it."""

    COUNT = "COUNT"
    RATE = "RATE"
    TIME = "TIME"
    SHARE = "SHARE"
    METHOD = "|".join(Method)


@dataclass(frozen=True, slots=True)
class PlannerOption:
    """An option of a planner.

    `field`: where a `PlanRequest` has it, such as `forest.max_trees`. The default is that of the
    field; `note`: a remark for the help. `most`: the maximum, of a time in seconds, or of a count.
    """

    name: str
    kind: Kind
    field: str
    meaning: str
    note: str = ""
    most: float | None = None

    @property
    def default(self) -> str:
        """The default as text."""
        return self.text(PlanRequest(1, 1, (), ()))

    @property
    def help(self) -> str:
        """Meaning and default in a sentence."""
        return f"{self.meaning} Default: {self.default}{f', {self.note}' if self.note else ''}."

    def of(self, request: PlanRequest) -> Any:
        """Return the value that a request has."""
        value: Any = request
        for name in self.field.split("."):
            value = getattr(value, name)
        return value if value is None or self.most is None else min(value, self.most)

    def text(self, request: PlanRequest) -> str:
        """Return the value that a request has, as text that `put` takes."""
        return self.show(self.of(request))

    def put(self, request: PlanRequest, given: object) -> PlanRequest:
        """Return the request with a value, given as text or as a number. Raises PlanError."""
        try:
            value = self._parsed(given)
        except ValueError as error:
            raise PlanError(f"planner option {self.name}: {error}") from None
        if self.most is not None and value is not None and value > self.most:
            raise PlanError(
                f"planner option {self.name}: {self.show(value)}: expected at most "
                f"{self.show(self.most)}"
            )
        changed: PlanRequest = _with(request, self.field.split("."), value)
        return changed

    def _parsed(self, given: object) -> Any:
        if (given is None or given == NONE) and self.default == NONE:
            return None
        text = str(given)
        match self.kind:
            case Kind.COUNT:
                return parse_count(text)
            case Kind.RATE:
                return Fraction(str(parse_rate(text))) if text != "0" else Fraction(0)
            case Kind.TIME:
                if isinstance(given, str) and not has_unit(given) and parse_time(given):
                    raise ValueError(f"{text}: expected a unit, such as {text}ms or {text}s")
                return parse_time(text)
            case Kind.SHARE:
                share = parse_share(text)
                if self.field != "forest.keep":
                    return share
                if not 0 < share <= 1:
                    raise ValueError(f"{text!r:.40}: expected above 0 to 1")
                return Fraction(str(share))
            case Kind.METHOD:
                if text not in tuple(Method):
                    raise ValueError(f"{text!r:.40}: expected one of {', '.join(Method)}")
                return Method(text)

    def show(self, value: Any) -> str:
        """Return a value of the field as text."""
        match value, self.kind:
            case None, _:
                return NONE
            case _, Kind.TIME:
                return format_time(value).replace(" ", "")
            case _, Kind.RATE:
                return format_rate(float(value)).replace(" ", "") if value else "0"
            case _, Kind.SHARE:
                return f"{float(value):g}"
            case _:
                return str(value)


def _with(part: Any, names: list[str], value: object) -> Any:
    first, *rest = names
    return replace(part, **{first: _with(getattr(part, first), rest, value) if rest else value})


MAX_TREES = PlannerOption(
    "max-trees",
    Kind.COUNT,
    "forest.max_trees",
    "K: maximum number of trees.",
    "8 in runs and jobs",
    most=0xFFFF,
)
MAX_HEIGHT = PlannerOption(
    "max-height",
    Kind.COUNT,
    "forest.max_height",
    "H: maximum number of links from a node to its root.",
    most=0xFFFF,
)
MAX_DELAY = PlannerOption(
    "max-delay",
    Kind.TIME,
    "forest.max_delay",
    "Maximum latency from a node to its root, e.g. 5ms.",
)
MIN_RATE = PlannerOption(
    "min-rate",
    Kind.RATE,
    "forest.min_rate",
    "r: minimum rate of a tree, e.g. 1Mbit.",
)
TREE_BANDWIDTH = PlannerOption(
    "tree-bandwidth",
    Kind.RATE,
    "forest.tree_bandwidth",
    "b: bandwidth that is reserved on each link of a tree, e.g. 1Mbit.",
    "several are tried",
)
KEEP = PlannerOption(
    "keep",
    Kind.SHARE,
    "forest.keep",
    "Fraction of the throughput to keep when the height of trees is reduced.",
)
GAP = PlannerOption(
    "gap",
    Kind.SHARE,
    "forest.gap",
    "Relative gap to the bound at which to stop.",
)
TIME_LIMIT = PlannerOption(
    "time-limit",
    Kind.TIME,
    "forest.time_limit",
    "Time limit for planning.",
)
METHOD = PlannerOption("method", Kind.METHOD, "method", "How to search.")
MAX_AGGREGATING = PlannerOption(
    "max-aggregating",
    Kind.COUNT,
    "max_aggregating",
    "Maximum number of switches that sum.",
    most=0xFFFF,
)
WEIGHT_STEPS = PlannerOption(
    "weight-steps",
    Kind.COUNT,
    "embedding.weights.steps",
    "q: weights of topologies are multiples of 1/q.",
)
PENALTY = PlannerOption(
    "penalty",
    Kind.COUNT,
    "embedding.weights.penalty",
    "Factor that makes this step larger, so that there are fewer topologies.",
)
EMBEDDING_TIME = replace(TIME_LIMIT, most=2.0)
"""Other jobs wait for the controller meanwhile."""


def apply_options(
    request: PlanRequest,
    known: Iterable[PlannerOption],
    options: Mapping[str, object],
    refuse: Callable[[str], PlanError],
) -> PlanRequest:
    """Return the request with options by name; `refuse` makes the error for an unknown one."""
    by_name = {option.name: option for option in known}
    given = {name.replace("_", "-"): value for name, value in options.items()}
    for name in given:
        if name not in by_name:
            raise refuse(name)
    # In the order of declaration: a penalty is checked against its steps.
    for name, option in by_name.items():
        if name in given:
            request = option.put(request, given[name])
    return request


OPTIONS = {
    option.name: option
    for option in (
        *(MAX_TREES, MAX_HEIGHT, MAX_DELAY, MIN_RATE, TREE_BANDWIDTH, KEEP, GAP, TIME_LIMIT),
        *(METHOD, MAX_AGGREGATING, WEIGHT_STEPS, PENALTY),
    )
}
"""All options by name."""


def as_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options, given as texts or numbers (seconds, bit/s), as texts for a submission."""
    texts = {}
    for given, value in options.items():
        name = given.replace("_", "-")
        known = OPTIONS.get(name)
        texts[name] = (
            value if isinstance(value, str) else known.show(value) if known else str(value)
        )
    return texts
