"""The steady state: cycles of bit vectors over the order table ([004 claims 7-10][004])."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from hopsum.coordination.failure import CoordinationError
from hopsum.coordination.operators import BitVector, Operator, OrderTable
from hopsum.coordination.reduction import AndAllReduce, Outgoing


class Cycles:
    """Schedule of this process's vectors: when it contributes one, and over which table.

    A process contributes while it has operators ready, but only every `pause` seconds while the
    last vector started none of them and no other has become ready. A cycle ends when all have
    contributed; its table is the same for all, because a new version is in force from a cycle that
    cannot begin before all processes have it (`Master.amendment`).
    """

    def __init__(self, reduction: AndAllReduce, pause: float) -> None:
        self.table = OrderTable()
        self.reduction = reduction
        self.number = 0
        """Number of the next vector to contribute."""
        self.vectors = 0
        self.until: int | None = None
        """Contribute all vectors before this number, and none from it on."""
        self._pause = pause
        self._waiting: deque[tuple[int, OrderTable]] = deque()
        self._in_flight: BitVector | None = None
        self._fruitless: BitVector | None = None
        self._again_at = float("-inf")

    @property
    def finished(self) -> int:
        """Number of cycles whose result has been read."""
        return self.number - (self._in_flight is not None)

    def amend(self, cycle: int, table: OrderTable) -> None:
        """Put a new version of the table in force from this cycle on."""
        self._waiting.append((cycle, table))

    def switch(self) -> bool:
        """Switch to the next table if it is in force by now; return whether the table changed."""
        if self._in_flight is not None or not self._waiting:
            return False
        cycle, table = self._waiting[0]
        if self.number < cycle:
            return False
        self._waiting.popleft()
        self.table = table
        self._fruitless = None
        return True

    def contribute(self, ready: Iterable[Operator], iteration: int, now: float) -> Outgoing | None:
        """Return the vector of ready operators for the next cycle; None if it is not due."""
        if self._in_flight is not None or not self.table.version:
            return None
        if self.until is not None and self.number >= self.until:
            return None
        vector = self.table.vector(ready, iteration)
        # A newer table, or the end, waits until this cycle is over: then even an empty vector must
        # go.
        idle = not vector.bits or (vector == self._fruitless and now < self._again_at)
        if idle and not self._waiting and self.until is None:
            return None
        self._in_flight = vector
        self._again_at = now + self._pause
        self.number += 1
        self.vectors += 1
        return self.reduction.contribute(self.number - 1, vector)

    def finish(self) -> list[Operator] | None:
        """Return the operators that start by a finished cycle, in order; None if there is none.

        Nothing starts by vectors of different iterations.
        """
        if self._in_flight is None:
            return None
        result = self.reduction.take_result()
        if result is None:
            return None
        vector, self._in_flight = self._in_flight, None
        if result.length != vector.length or result.bits & ~vector.bits:
            raise CoordinationError(
                f"cycle {self.number - 1}: the result contains operators that this process did not "
                f"offer; the all-reduce is not a bitwise and of all vectors"
            )
        if result.bits and result.iteration != vector.iteration:
            raise CoordinationError(
                f"cycle {self.number - 1}: the result is of iteration {result.iteration}, "
                f"expected {vector.iteration}; the all-reduce mixes its calls"
            )
        self._fruitless = replace(vector, bits=vector.bits & ~result.bits)
        return self.table.chosen(result)

    def deadline(self, ready: Iterable[Operator], iteration: int) -> float:
        """Return when the next vector is due if nothing else becomes ready; infinity: never."""
        if self._in_flight is not None or self._fruitless is None or not self._fruitless.bits:
            return float("inf")
        vector = self.table.vector(ready, iteration)
        return self._again_at if vector == self._fruitless else float("inf")
