"""The root's part: the master controller and the order collector ([004 claims 1, 5, 6][004])."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopsum.coordination.messages import Amendment, OperatorRequest, Response, Variant
from hopsum.coordination.operators import Operator, OrderTable

_SHOWN = 4
"""Variants of a mismatch that the error names."""


class Master:
    """Decides which operators start, and keeps the order table, which the first iteration fills.

    `names`: of the processes, by rank. `forget_after`: an operator that no process has started for
    this many iterations leaves the table.

    The first iteration is the first number that the root's process publishes; the table is sent
    when the next one is published. So a job that resumes at iteration 500 records its order too.
    """

    def __init__(self, names: Sequence[str], forget_after: int) -> None:
        self.table = OrderTable()
        self._names = names
        self._forget_after = forget_after
        self._iteration: int | None = None
        self._collecting = False
        self._hand_out = False
        self._added: dict[str, Operator] = {}
        self._removed: dict[str, None] = {}
        self._since: dict[str, int] = {}
        self._started: set[str] = set()
        self._quiet: dict[str, int] = {}
        self._awaited: int | None = None

    @property
    def amending(self) -> bool:
        """Whether some process may not have the newest table yet."""
        return self._awaited is not None

    def iteration(self, number: int) -> None:
        """Begin an iteration of the root's process."""
        first = self._iteration is None
        self._iteration = number
        if first:
            self._collecting = True
        elif self._collecting:
            self._collecting = False
            self._hand_out = True
        else:
            self._forget()
        self._started.clear()

    def _forget(self) -> None:
        for operator in self.table.operators:
            quiet = 0 if operator.name in self._started else self._quiet.get(operator.name, 0) + 1
            self._quiet[operator.name] = quiet
            if quiet >= self._forget_after:
                self._removed[operator.name] = None

    def complete(self, wanted: Iterable[OperatorRequest]) -> Response | None:
        """Process requests made by all processes; return the response, if it is possible at once.

        They start if the table has not been sent yet; otherwise they are added to the table, and
        bit vectors start them.
        """
        start: list[tuple[int, str]] = []
        failed: list[tuple[int, str, str]] = []
        for want in wanted:
            if len(want.variants) > 1:
                failed.append((want.iteration, want.name, self._mismatch(want)))
                continue
            operator = want.variants[0].operator
            if self.table.version or self._hand_out:
                self._added[want.name] = operator
            else:
                start.append((want.iteration, want.name))
                if self._collecting:
                    self._added.setdefault(want.name, operator)
        return Response(tuple(start), tuple(failed)) if start or failed else None

    def _mismatch(self, want: OperatorRequest) -> str:
        def described(variant: Variant) -> str:
            others = f" and {variant.count - 1} more" if variant.count > 1 else ""
            return f"{variant.operator} at {self._names[variant.first]}{others}"

        shown = "; ".join(map(described, want.variants[:_SHOWN]))
        more = len(want.variants) - _SHOWN
        return (
            f"operator {want.name}: the processes differ: {shown}"
            f"{f'; and {more} more forms' if more > 0 else ''}; expected the same everywhere"
        )

    def contest(self, name: str, version: int) -> bool:
        """Move an operator that a process cannot start by the table back to negotiation.

        False if it is not in the table.
        """
        if self.table.find(name) is None:
            return False
        # The table has a newer entry of that name than the process has seen.
        if version >= self._since[name]:
            self._removed[name] = None
        return True

    def started(self, names: Iterable[str]) -> None:
        """Record that these operators have started by the table."""
        self._started.update(names)

    def amendment(self, contributed: int) -> Amendment | None:
        """Return the next version of the table, if one is due and all have the last.

        `contributed`: number of vectors that the root has contributed. The root withholds its next
        vector until all have the table, so that cycle cannot end before; the cycle after it uses
        the new table.
        """
        if self.amending or not (self.table.version or self._hand_out):
            return None
        if not (self._hand_out or self._added or self._removed):
            return None
        # An operator that is both removed and requested again is removed first.
        added = {
            name: operator
            for name, operator in self._added.items()
            if name in self._removed or self.table.find(name) is None
        }
        removed = tuple(name for name in self._removed if self.table.find(name) is not None)
        version = self.table.version + 1
        amendment = Amendment(
            version,
            contributed + 1 if self.table.version else 0,
            removed,
            tuple(added.values()),
        )
        self.table = self.table.amended(version, removed, added.values())
        self._since.update(dict.fromkeys(added, version))
        for name in (*removed, *added):
            self._quiet.pop(name, None)
        self._added.clear()
        self._removed.clear()
        self._hand_out = False
        self._awaited = version
        return amendment

    def acknowledged(self, version: int) -> None:
        """Record that all processes have this version."""
        if version == self._awaited:
            self._awaited = None
