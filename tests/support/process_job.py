"""Processes that call for sums, their hosts' sources, and switches between these that only add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from random import Random
from typing import Any

import numpy as np

from hopsum.collectives.plan import JobPlan, TreePlan
from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.node.environment import NamedTensor
from hopsum.host_agent.node.process_source import ProcessSource
from hopsum.host_agent.node.rank_values import MOST
from hopsum.host_agent.node.roots import roots_of
from hopsum.host_agent.numbers import exponent_codes
from hopsum.host_agent.process_calls import ALL, PASSED, CallPacket
from hopsum.protocol.wire import LANES_DEFAULT, ROOT_REDUCTIONS, Reduction, Width

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

    def sum(
        self,
        values: Any,
        reduction: str = "sum",
        target: int = ALL,
        *,
        passes: bool = False,
        kind: str = "",
    ) -> int:
        """Call for a sum; `passes`: values that are not finite go into it; `kind`: type, if not
        the tensor's."""
        tensor = np.array(values)
        finite = np.isfinite(tensor)
        fault, magnitude = None, 0
        if reduction != "sum":
            if np.isnan(tensor).any():
                fault = ("nan", int(np.argmax(np.isnan(tensor))))
        elif tensor.dtype.kind == "i":
            magnitude = int(np.abs(tensor.astype(np.int64)).max(initial=0))
        elif passes and not finite.all():
            fault = (PASSED, 0)
            magnitude = int(exponent_codes(np.where(finite, tensor, 0), tensor.size, "")[0])
        elif not finite.all():
            fault = ("nan", int(np.argmin(finite)))
        elif tensor.size:
            magnitude = int(exponent_codes(tensor, tensor.size, "")[0])
        request = self._calls, tensor, magnitude, fault, reduction, target, kind
        self.asked.append(Request("sum", *request))
        return self._called(tensor)

    def copy(self, values: Any, target: int) -> int:
        tensor = np.array(values)
        self.asked.append(Request("copy", self._calls, tensor, target=target))
        return self._called(tensor)

    def _called(self, tensor: Any) -> int:
        self.tensors[self._calls] = tensor
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

    def start(self, ranks: Sequence[str], *, rooted: bool) -> None: ...

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

    def absent(self) -> list[int]:
        """All are here from the beginning."""
        return []

    def mailbox(self, rank: int) -> None:
        """Flows take nothing here."""

    def request(self, rank: int, packet: CallPacket) -> Request:
        raise AssertionError("no flow takes packets here")

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        self._end(
            rank, call, "; ".join([why, *(f"{each}: {text}" for each, text in whose.items())])
        )

    def _end(self, rank: int, call: int, end: str) -> None:
        assert call not in self._processes[rank].ended
        self._processes[rank].ended[call] = end


class Job:
    """Processes, their hosts' sources, and switches that sum the nth tensors of all.

    `ranks`: the host of each process; None: hosts of their own. `sets`: how many trees have their
    root at each host.
    """

    def __init__(
        self,
        size: int,
        random: Random | None = None,
        ranks: Sequence[str] | None = None,
        sets: int = 0,
        **options: Any,
    ) -> None:
        ranks = ranks or [f"h{number}" for number in range(1, size + 1)]
        hosts = [*dict.fromkeys(ranks)]
        self.processes = [Process() for _ in ranks]
        self._roots = [number % len(hosts) for number in range(sets * len(hosts))]
        """The places of the hosts where trees have their roots."""
        lanes = options.get("lanes", LANES_DEFAULT)
        trees = [TreePlan(n, hosts[r], {}, {}, (), (), ()) for n, r in enumerate(self._roots)]
        plan = JobPlan(1, 1, tuple(hosts), tuple(trees), lanes, 64)
        options["roots"] = roots_of(plan, ranks) if sets else None
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
        self.reductions: set[Reduction | None] = set()
        self.widths: set[Width | None] = set()
        self.for_all = 0
        """How many tensors were for all hosts."""
        self.random = random or Random(0)
        self._waiting: list[list[NamedTensor]] = [[] for _ in hosts]
        self._held: Set[str] = frozenset()

    def hold(self, kinds: Set[str]) -> Callable[[], list[NamedTensor]]:
        """From now on leave tensors of these kinds in the switches; return what tells them."""
        self._held = kinds
        return lambda: [each for each in self._waiting[0] if _kind(each) in kinds]

    def run(self) -> None:
        """Go on until nothing moves; sources are asked, and answered, in any order."""
        moved = True
        while moved:
            moved = False
            for number in self.random.sample(range(len(self._sources)), len(self._sources)):
                while (tensor := self._sources[number].next(0.0)) is not None:
                    self._waiting[number].append(tensor)
                    moved = True
                    if self.random.random() < 0.3:
                        break
            count = min(map(len, self._waiting))
            places = [n for n in range(count) if _kind(self._waiting[0][n]) not in self._held]
            for place in self.random.sample(places, len(places)):
                tensors = [waiting[place] for waiting in self._waiting]
                first = tensors[0]
                alike = {
                    (each.tensor.dtype, each.tensor.shape, str(each.options._replace(remark=None)))
                    for each in tensors
                }
                assert len(alike) == 1, "they do not sum the same"
                remarks = [each.options.remark for each in tensors if each.options.remark]
                assert len(remarks) in (0, len(tensors)), "they do not remark the same"
                for remark in remarks:
                    remark.maximum = max(each.own for each in remarks)
                self.summed.append(len(first.tensor))
                self.types.append((first.tensor.dtype.name, len(first.tensor)))
                self.kinds.add(_kind(first))
                self.reductions.add(first.options.reduction)
                self.widths.add(first.options.width)
                self.for_all += first.options.reduction not in ROOT_REDUCTIONS
                self._combine(tensors)
                for source, each in zip(self._sources, tensors, strict=True):
                    source.finish(each.name, each.tensor, 0.0)
            for waiting in self._waiting:
                for place in reversed(places):
                    del waiting[place]
            moved |= bool(places)

    def _combine(self, tensors: Sequence[NamedTensor]) -> None:
        """Put what the switches make of tensors in their places."""
        reduction, _, ranges, _ = tensors[0].options
        arrays = [each.tensor for each in tensors]
        if ranges is None:
            combine(arrays, arrays, reduction)
            return
        assert len(ranges) == len(self._roots), "ranges of other trees"
        for root, (start, stop) in zip(self._roots, ranges, strict=True):
            parts = [array[start:stop] for array in arrays]
            if reduction is Reduction.BROADCAST:
                assert arrays[0].dtype == np.int32
                for part in parts:
                    part[...] = parts[root]
            elif reduction in ROOT_REDUCTIONS:
                combine(parts, parts[root : root + 1], Reduction(reduction - Reduction.REDUCE_SUM))
            else:
                combine(parts, parts, reduction)

    @property
    def over(self) -> list[bool]:
        return [source.over for source in self._sources]


def _kind(tensor: NamedTensor) -> str:
    """What a tensor is to its source."""
    return tensor.name.partition(" ")[0]


def combine(arrays: Sequence[Any], results: Sequence[Any], reduction: Reduction | None) -> None:
    """Reduce arrays into others, which may be of these."""
    wide = np.int64 if reduction else np.float64
    exact = SWITCHES[reduction or None].reduce([array.astype(wide) for array in arrays])
    if reduction:
        assert arrays[0].dtype in (np.int32, np.int16)
    elif arrays[0].dtype == np.int8:
        exact = np.add.reduce(arrays, dtype=np.int8)
    elif arrays[0].dtype == np.int32:
        assert np.abs(exact).max(initial=0) <= MOST + 1, "the switches overflow"
    for result in results:
        with np.errstate(over="ignore"):
            result[...] = exact
