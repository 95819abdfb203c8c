"""Coverage of a program: statements, branches, transitions and entries reached by packets."""

from __future__ import annotations

from collections.abc import Callable as Function
from dataclasses import dataclass
from typing import Any

from p4switch import ir
from p4switch.backends.reference.code import Code
from p4switch.backends.reference.host import Host
from p4switch.backends.reference.statements import Execute, Flow
from p4switch.backends.reference.tables import InstalledEntry, KeyValues, TableRuntime
from p4switch.backends.reference.trace import match_text
from p4switch.position import NOWHERE, Position
from p4switch.targets.v1model.engine import TableEntry
from p4switch.targets.v1model.matches import match_keys

KINDS = ("statement", "branch", "transition", "entry")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A coverage point. Instances of one control share the points of its source."""

    kind: str
    file: str
    line: int
    column: int
    label: str = ""


class Coverage:
    """Counts of each point, over any number of runs of one program."""

    def __init__(self) -> None:
        self.counts: dict[Point, int] = {}
        """Counts by point; 0 for those never reached."""

    def point(self, kind: str, position: Position, label: str = "") -> Point:
        """Register a point."""
        made = Point(kind, position.file, position.line, position.column, label)
        self.counts.setdefault(made, 0)
        return made

    def reach(self, point: Point) -> None:
        """Count a visit."""
        self.counts[point] += 1

    def totals(self, kind: str) -> tuple[int, int]:
        """Return how many points of a kind were reached, and their total."""
        counts = [count for point, count in self.counts.items() if point.kind == kind]
        return sum(count > 0 for count in counts), len(counts)

    def missed(self, kind: str) -> list[Point]:
        """Return the points of a kind that were never reached, in order of the source."""
        return sorted(p for p, count in self.counts.items() if p.kind == kind and not count)


class CoveringCode(Code):
    """Count statements, branches and transitions."""

    def __init__(self, host: Host, coverage: Coverage) -> None:
        super().__init__(host)
        self._coverage = coverage

    def later(self, prepare: Function[[], Execute]) -> Execute:
        """See `Statements`; the points of what is never executed count too."""
        return prepare()

    def statement(self, statement: ir.Statement) -> Execute:
        """See `Statements`."""
        run = super().statement(statement)
        if statement.position == NOWHERE:
            return run
        return self._counted(self._coverage.point("statement", statement.position), run)

    def branch(self, owner: ir.Statement, label: str, execute: Execute) -> Execute:
        """See `Statements`."""
        if owner.position == NOWHERE:
            return execute
        return self._counted(self._coverage.point("branch", owner.position, label), execute)

    def _counted(self, point: Point, run: Execute) -> Execute:
        counts = self._coverage.counts

        def execute() -> Flow | None:
            counts[point] += 1
            return run()

        return execute

    def transition(self, block: ir.Block, state: ir.State) -> Function[[], str]:
        """See `Parsers`; a transition is from one state to another, by any case."""
        following = super().transition(block, state)
        transition = state.transition
        targets = (
            [transition.state]
            if isinstance(transition, ir.Goto)
            else [target for _, target in transition.cases]
        )
        position = state.body[-1].position if state.body else NOWHERE
        points = {
            target: self._coverage.point(
                "transition", position, f"{block.name}: {state.name} -> {target}"
            )
            for target in targets
        }
        counts = self._coverage.counts

        def follow() -> str:
            target = following()
            counts[points[target]] += 1
            return target

        return follow


class CoveringTable(TableRuntime):
    """A table that counts hits of its entries, and misses."""

    def __init__(self, coverage: Coverage, table: ir.Table, *arguments: Any) -> None:
        super().__init__(table, *arguments)
        self._coverage = coverage
        self._table = table
        self._keys = match_keys(table)
        self._miss = self._point("no entry (default action)")

    def _point(self, label: str) -> Point:
        name = self._table.name
        return self._coverage.point("entry", self._table.position, f"{name}: {label}")

    def _label(self, entry: TableEntry) -> str:
        pairs = zip(self._keys, entry.matches, strict=True)
        parts = [f"{key.name}={match_text(match, key.match_kind)}" for key, match in pairs]
        if entry.priority:
            parts.append(f"priority {entry.priority}")
        return ", ".join(parts)

    def insert(self, handle: int, entry: TableEntry, now_us: int) -> None:
        """See `TableRuntime`."""
        super().insert(handle, entry, now_us)
        self._point(self._label(entry))

    def _chosen(self, key: KeyValues, item: InstalledEntry | None, choice: ir.ActionChoice) -> None:
        """See `TableRuntime`."""
        point = self._miss if item is None else self._point(self._label(item.entry))
        self._coverage.reach(point)
