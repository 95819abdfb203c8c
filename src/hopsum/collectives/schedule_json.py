"""Schedules as JSON: the form as it is, arrays as rows.

`{"algorithm", "collective", "ranks", "relays", "names", "elements", "block", "given", "wanted",
"steps"}`; `given` and `wanted`: rows of [node, start, stop]; a step: `{"combine", "after",
"repeat", "period", "transfers"}` with rows of [source, target, start, stop].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import Ranges, Schedule, ScheduleError, Step, make_step
from hopsum.files.json_text import parse_json

MOST_NODES = 1 << 16
"""Maximum ranks of a schedule in a file: checking needs memory for every pair of them."""


def schedule_to_json(schedule: Schedule) -> str:
    """Return a schedule as one line of JSON."""
    return json.dumps(
        {
            "algorithm": schedule.algorithm,
            "collective": schedule.collective.value,
            "ranks": schedule.ranks,
            "relays": schedule.relays,
            "names": list(schedule.names),
            "elements": schedule.elements,
            "block": schedule.block,
            "given": schedule.given.rows(),
            "wanted": schedule.wanted.rows(),
            "steps": [_step_values(step) for step in schedule.steps],
        }
    )


def _step_values(step: Step) -> dict[str, Any]:
    rows = np.stack([step.sources, step.targets, step.starts, step.stops], axis=1)
    return {
        "combine": step.combine,
        "after": list(step.after),
        "repeat": step.repeat,
        "period": step.period,
        "transfers": rows.tolist(),
    }


def schedule_from_json(text: str) -> Schedule:
    """Parse JSON. Raises ScheduleError that names the wrong field and what was expected.

    The form is checked; that it does its collective is for `schedule_checker.check_schedule`.
    """
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ScheduleError(f"schedule: not JSON: {error}") from None
    file = _Fields("schedule", values)
    collective = file.text("collective")
    if collective not in list(Collective):
        raise ScheduleError(
            f"schedule: collective {collective!r}: expected one of {', '.join(Collective)}"
        )
    steps = file.get("steps", list, "a list of steps")
    nodes = file.number("ranks") + file.number("relays", 0)
    if nodes > MOST_NODES:
        raise ScheduleError(f"schedule: {nodes} ranks and relays: expected at most {MOST_NODES}")
    return Schedule(
        file.text("algorithm"),
        Collective(collective),
        file.number("ranks"),
        file.number("elements"),
        tuple(_step(number, step) for number, step in enumerate(steps)),
        _ranges(file, "given"),
        _ranges(file, "wanted"),
        relays=file.number("relays", 0),
        block=file.number("block", 0),
        names=tuple(str(name) for name in file.get("names", list, "a list of names", [])),
    )


def _step(number: int, values: object) -> Step:
    step = _Fields(f"step {number}", values)
    rows = step.rows("transfers", 4, "[source, target, start, stop]")
    after = step.get("after", list, "a list of numbers of steps", [])
    if not all(isinstance(other, int) for other in after):
        raise ScheduleError(f"step {number}: after {after}: expected numbers of steps")
    repeat, period = step.number("repeat", 1), step.number("period", 1)
    if repeat > max(1, period):
        # A file of a few lines must not take years to check.
        raise ScheduleError(
            f"step {number}: repeat {repeat}: expected at most its period, {period}; after that "
            "the same ranges go the same way again"
        )
    return make_step(
        rows[:, 0],
        rows[:, 1],
        rows[:, 2],
        rows[:, 3],
        combine=step.get("combine", bool, "true or false"),
        after=after,
        repeat=repeat,
        period=period,
    )


def _ranges(file: _Fields, name: str) -> Ranges:
    rows = file.rows(name, 3, "[node, start, stop]")
    return Ranges(rows[:, 0], rows[:, 1], rows[:, 2])


class _Fields:
    """The fields of a JSON object, of the types that are expected."""

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ScheduleError(f"{where}: {_short(values)}: expected an object")
        self._where = where
        self._values = values

    def get(self, name: str, kind: type, expected: str, default: Any = None) -> Any:
        """Return a field of a type.

        ScheduleError if it is another, or missing without a default.
        """
        if name not in self._values and default is None:
            raise ScheduleError(f"{self._where}: {name} is missing; expected {expected}")
        value = self._values.get(name, default)
        # To Python, true and false are numbers too.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ScheduleError(f"{self._where}: {name} {_short(value)}: expected {expected}")
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        return str(self.get(name, str, "a string"))

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = int(self.get(name, int, "a whole number", default))
        if abs(value) >= 1 << 62:
            raise ScheduleError(f"{self._where}: {name} {_short(value)}: expected below 2^62")
        return value

    def rows(self, name: str, width: int, expected: str) -> Any:
        """Return a table of whole numbers, shape (n, width)."""
        values = self.get(name, list, f"rows of {expected}")
        for number, row in enumerate(values):
            if (
                not isinstance(row, list)
                or len(row) != width
                or not all(type(value) is int and abs(value) < 1 << 62 for value in row)
            ):
                raise ScheduleError(
                    f"{self._where}: {name}, row {number}: {_short(row)}: expected {expected}"
                )
        return np.array(values, dtype=np.int64).reshape(-1, width)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
