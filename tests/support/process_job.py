"""Processes that call for sums, their hosts' sources, and switches between these that only add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from host_agent.io.process_socket import Request
from host_agent.node.environment import Named
from host_agent.node.process import MOST, ProcessSource
from host_agent.numbers import exponent_codes
from protocol.wire import Reduction

SWITCHES: dict[Reduction | None, np.ufunc] = {
    None: np.add,
    Reduction.AND: np.bitwise_and,
    Reduction.MAX: np.maximum,
    Reduction.XOR: np.bitwise_xor,
}
"""The operations of switches on 32-bit lanes."""
EXPECTED = {
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Process:
    """A training process, and the replies it gets."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ended: dict[int, str] = {}
        self.tensors: dict[int, Any] = {}
        self._calls = 0

    def sum(self, values: Any, reduction: str = "sum") -> int:
        tensor = np.array(values)
        finite = np.isfinite(tensor)
        fault, magnitude = None, 0
        if reduction != "sum":
            if np.isnan(tensor).any():
                fault = ("nan", int(np.argmax(np.isnan(tensor))))
        elif tensor.dtype == np.int32:
            magnitude = int(np.abs(tensor.astype(np.int64)).max(initial=0))
        elif not finite.all():
            fault = ("nan", int(np.argmin(finite)))
        elif tensor.size:
            magnitude = int(exponent_codes(tensor, tensor.size, "")[0])
        self.tensors[self._calls] = tensor
        self.asked.append(Request("sum", self._calls, tensor, magnitude, fault, reduction))
        self._calls += 1
        return self._calls - 1

    def barrier(self) -> int:
        self.asked.append(Request("barrier", self._calls))
        self._calls += 1
        return self._calls - 1

    def leave(self) -> None:
        self.asked.append(Request("leave"))


class Hand:
    """The agent's end of a host's processes, by rank."""

    def __init__(self, processes: Mapping[int, Process]) -> None:
        self._processes = processes

    def start(self, ranks: Sequence[str]) -> None: ...

    def close(self, why: str) -> None: ...

    def take(self) -> list[tuple[int, Request]]:
        taken = [
            (rank, each) for rank, process in self._processes.items() for each in process.asked
        ]
        for process in self._processes.values():
            process.asked = []
        return taken

    def done(self, rank: int, call: int) -> None:
        self._end(rank, call, "done")

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        self._end(
            rank, call, "; ".join([why, *(f"{each}: {text}" for each, text in whose.items())])
        )

    def _end(self, rank: int, call: int, end: str) -> None:
        assert call not in self._processes[rank].ended
        self._processes[rank].ended[call] = end


class Job:
    """Processes, their hosts' sources, and switches that sum the nth tensors of all.

    `ranks`: the host of each process; None: hosts of their own.
    """

    def __init__(
        self,
        size: int,
        random: Random | None = None,
        ranks: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        ranks = ranks or [f"h{number}" for number in range(1, size + 1)]
        hosts = [*dict.fromkeys(ranks)]
        self.processes = [Process() for _ in ranks]
        self._sources = []
        for host in hosts:
            here = {rank: each for rank, each in enumerate(self.processes) if ranks[rank] == host}
            self._sources.append(ProcessSource(Hand(here), host, ranks, **options))
        self.summed: list[int] = []
        """Elements of each tensor that the switches have summed."""
        self.types: list[tuple[str, int]] = []
        """The same with their types."""
        self.kinds: set[str] = set()
        """The operations that sources submit for them."""
        self._random = random or Random(0)
        self._waiting: list[list[Named]] = [[] for _ in hosts]

    def run(self) -> None:
        """Go on until nothing moves; sources are asked, and answered, in any order."""
        moved = True
        while moved:
            moved = False
            for number in self._random.sample(range(len(self._sources)), len(self._sources)):
                while (tensor := self._sources[number].next(0.0)) is not None:
                    self._waiting[number].append(tensor)
                    moved = True
                    if self._random.random() < 0.3:
                        break
            count = min(map(len, self._waiting))
            for place in self._random.sample(range(count), count):
                tensors = [waiting[place] for waiting in self._waiting]
                shapes = {
                    (each.tensor.dtype, each.tensor.shape, each.reduction) for each in tensors
                }
                assert len(shapes) == 1, "they do not sum the same"
                [(dtype, _, reduction)] = shapes
                combine = SWITCHES[reduction]
                wide = np.float64 if reduction is None else np.int64
                exact = combine.reduce([each.tensor.astype(wide) for each in tensors])
                if reduction is not None:
                    assert dtype == np.int32
                elif dtype == np.int32:
                    assert np.abs(exact).max(initial=0) <= MOST + 1, "the switches overflow"
                remarks = [each.remark for each in tensors if each.remark is not None]
                assert len(remarks) in (0, len(tensors)), "they do not remark the same"
                for remark in remarks:
                    remark.maximum = max(each.own for each in remarks)
                self.summed.append(exact.size)
                self.types.append((dtype.name, exact.size))
                self.kinds.add(tensors[0].name.partition(" ")[0])
                for source, each in zip(self._sources, tensors, strict=True):
                    with np.errstate(over="ignore"):
                        each.tensor[...] = exact
                    source.finish(each.name, each.tensor, 0.0)
            for waiting in self._waiting:
                del waiting[:count]
            moved |= count > 0

    @property
    def over(self) -> list[bool]:
        return [source.over for source in self._sources]
