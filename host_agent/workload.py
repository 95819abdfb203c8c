"""What workers do with an all-reduce: the tensors they submit, and what they make of the sums.

A workload runs in lock step on all workers of a job: `next_tensor`, all-reduce, `take_result`, and
so on until there is no next tensor. The same objects run in Mininet, a process each, and in the
simulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.choices import Collective
from hopsum.collectives.decomposition import decompose
from hopsum.collectives.operation import Ranges, width_of, worker_parts
from hopsum.collectives.plan import DataType, JobPlan, exponent_group, tensor_ranges
from hopsum.collectives.schedule import part
from hopsum.collectives.workload import DIGITS, KEPT_BYTES
from hopsum.collectives.workload import PROCESS as PROCESS
from hopsum.collectives.workload import VECTORS as VECTORS
from hopsum.collectives.workload import WorkloadSpec as WorkloadSpec
from hopsum.host_agent.digits import Digits, DigitsTraining
from hopsum.host_agent.elements import DTYPES, Element, element_of
from hopsum.host_agent.numbers import as_bfloat16, as_float32, error_bound, exponent_codes
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import OperationError
from hopsum.protocol.wire import Width

Tensor = NDArray[Any]

EXPECTED_BYTES = 1 << 27
"""Bytes of expected sums that workers in one process share."""

INT32_LIMIT = 1 << 31


@dataclass(slots=True)
class Verdict:
    """How a worker's results compare with what numpy computes.

    `wrong`: int32 elements that differ, float32 elements further from the float64 sum than their
    bound. `max_error` and `error_bound`: the largest error and the largest bound of any element.
    """

    checked: int = 0
    wrong: int = 0
    max_error: float = 0.0
    error_bound: float = 0.0

    def merge(self, other: Verdict) -> None:
        """Take another verdict in."""
        self.checked += other.checked
        self.wrong += other.wrong
        self.max_error = max(self.max_error, other.max_error)
        self.error_bound = max(self.error_bound, other.error_bound)


def verdict_message(verdict: Verdict) -> pb.Verdict:
    """Return the message of a verdict."""
    return pb.Verdict(**asdict(verdict))


def verdict_from(message: pb.Verdict) -> Verdict:
    """Return the verdict of a message."""
    return Verdict(message.checked, message.wrong, message.max_error, message.error_bound)


class Stopped(OperationError):
    """The job has ended before its workload did."""


class CheckedWorkload(ABC):
    """A workload that checks its own results.

    `stop`, from any thread, makes long operations raise Stopped soon.
    """

    _stopped = False

    def stop(self) -> None:
        """Stop work in progress."""
        self._stopped = True

    def _check_going(self) -> None:
        if self._stopped:
            raise Stopped("the job has ended")

    @abstractmethod
    def verdict(self) -> Verdict:
        """Check the results, after the last one."""

    @abstractmethod
    def cut_as(self, plan: JobPlan) -> None:
        """From the next tensor on, who sums which of its elements is as this plan says."""

    def outcome(self) -> pb.Outcome:
        """Return what else there is to report."""
        return pb.Outcome()


class UncheckedWorkload(CheckedWorkload):
    """A workload whose sums are for others, who know what they must be."""

    def cut_as(self, plan: JobPlan) -> None:
        """Nothing is compared."""

    def verdict(self) -> Verdict:
        """Nothing is compared."""
        return Verdict()


class Workload(CheckedWorkload):
    """One worker's side of a workload in lock step.

    `collective`: what happens to its tensors; `width`: that their values are to have in packets.
    """

    collective = Collective.ALL_REDUCE
    width: Width | None = None

    @abstractmethod
    def next_tensor(self) -> Tensor | None:
        """Return the next tensor to sum over all workers, flat; None when done."""

    @abstractmethod
    def take_result(self, result: Tensor) -> None:
        """Take the sum of the tensors submitted last."""


def random_tensor(spec: WorkloadSpec, worker: int, number: int) -> Tensor:
    """Worker `worker`'s tensor of round `number`: the same wherever it is computed.

    int32: uniform over a range whose sum over all workers cannot overflow; int8: over all numbers.
    Floats: normal, with a scale that varies from block to block over some orders of magnitude.
    """
    generator = np.random.default_rng([spec.seed, worker, number])
    if spec.dtype is DataType.INT32:
        limit = INT32_LIMIT // spec.workers
        return generator.integers(-limit + 1, limit, spec.elements, dtype=np.int32)
    if spec.dtype is DataType.INT8:
        return generator.integers(-128, 128, spec.elements, dtype=np.int8)
    values = generator.standard_normal(spec.elements, dtype=np.float32)
    scales = generator.integers(-12, 8, (spec.elements + 999) // 1000)
    values *= np.repeat(np.ldexp(np.float32(1), scales), 1000)[: spec.elements]
    if spec.dtype is DataType.BFLOAT16:
        return as_bfloat16(values)
    return values.astype(DTYPES[spec.dtype], copy=False)


class _CheckedLater(Workload):
    """A workload whose results are checked at the end, off the critical path of all workers.

    They are checked earlier if more than KEPT_BYTES would be kept.
    """

    def __init__(self, spec: WorkloadSpec, plan: JobPlan | None) -> None:
        self._plan = plan
        for width in Width:
            if width.bits == spec.wire_bits:
                self.width = width
        self._results: list[tuple[Tensor, JobPlan | None]] = []
        self._kept_bytes = 0
        self._verdict = Verdict()

    @abstractmethod
    def _check(self, result: Tensor, plan: JobPlan | None) -> Verdict:
        """Check the next result, of sums as a plan says."""

    def take_result(self, result: Tensor) -> None:
        """Keep a sum for the verdict."""
        self._results.append((np.array(result), self._plan))
        self._kept_bytes += result.nbytes
        if self._kept_bytes > KEPT_BYTES:
            self._check_kept()

    def cut_as(self, plan: JobPlan) -> None:
        """Check later sums by another plan."""
        self._plan = plan

    def verdict(self) -> Verdict:
        """All results' verdicts together."""
        self._check_kept()
        return self._verdict

    def _check_kept(self) -> None:
        for result, plan in self._results:
            self._verdict.merge(self._check(result, plan))
        self._results.clear()
        self._kept_bytes = 0


class RandomTensors(_CheckedLater):
    """Random tensors; every element of every result of this worker is checked."""

    def __init__(
        self,
        spec: WorkloadSpec,
        worker: int,
        plan: JobPlan | None,
        expected: ExpectedSums | None = None,
    ) -> None:
        super().__init__(spec, plan)
        self.collective = spec.collective
        self._expected = expected
        self._spec = spec
        self._worker = worker
        self._checked = 0
        self._number = 0

    def next_tensor(self) -> Tensor | None:
        """Return the tensor of the next round."""
        if self._number == self._spec.rounds:
            return None
        self._number += 1
        return random_tensor(self._spec, self._worker, self._number - 1)

    def _check(self, result: Tensor, plan: JobPlan | None) -> Verdict:
        """Compare a round's result with that of all workers' tensors."""
        number, spec = self._checked, self._spec
        self._checked += 1
        tensors = self._tensors(number)
        if self._expected is None or spec.collective is not Collective.ALL_REDUCE:
            return verify_result(spec, self._worker, tensors, result, plan)

        def compute() -> ExpectedSum:
            return expected_sum(tensors, len(result), result.dtype, plan, wire_bits=spec.wire_bits)

        return self._expected.of(spec, number, plan, compute).compare(result)

    def _tensors(self, number: int) -> Iterator[Tensor]:
        """All workers' tensors of a round, one at a time."""
        for worker in range(self._spec.workers):
            self._check_going()
            yield random_tensor(self._spec, worker, number)


class TrainingWorkload(_CheckedLater):
    """Data-parallel training on the digits: gradients in, their sum out, a step of descent.

    The check repeats the training, with all workers' gradients of each step.
    """

    def __init__(self, spec: WorkloadSpec, worker: int, plan: JobPlan | None) -> None:
        super().__init__(spec, plan)
        self._training = DigitsTraining(seed=spec.seed, epochs=spec.rounds)
        self._checked = DigitsTraining(seed=spec.seed, epochs=spec.rounds)
        self._parts = [part(0, Digits.BATCH, spec.workers, w) for w in range(spec.workers)]
        self._wire_bits = spec.wire_bits
        self._worker = worker

    def next_tensor(self) -> Tensor | None:
        """Return the gradient of this worker's part of the next batch."""
        if self._training.finished:
            return None
        return self._training.gradient(*self._parts[self._worker])

    def take_result(self, result: Tensor) -> None:
        """Keep a summed gradient for the verdict, and take a step along it."""
        super().take_result(result)
        self._training.step(result)

    def _check(self, result: Tensor, plan: JobPlan | None) -> Verdict:
        """Compare a summed gradient with all workers' parts."""
        verdict = verify_sum(self._gradients(), result, plan, wire_bits=self._wire_bits)
        self._checked.step(result)
        return verdict

    def _gradients(self) -> Iterator[Tensor]:
        for start, stop in self._parts:
            self._check_going()
            yield self._checked.gradient(start, stop)

    def outcome(self) -> pb.Outcome:
        """Accuracy on the test images, and the loss after every epoch."""
        return pb.Outcome(accuracy=self._training.accuracy(), losses=self._training.losses)


Interval = tuple[float, float]
"""When a call began and ended at one worker, seconds."""


def intervals_from(message: pb.Intervals) -> list[Interval]:
    """Return the intervals of a message, as far as they have an end."""
    return list(zip(message.starts, message.finishes, strict=False))


def calls_of(intervals: Sequence[Sequence[Interval]]) -> list[Interval]:
    """When each all-reduce began and ended, from the intervals of each worker's calls.

    A call lasts from when the last worker has handed its tensor in until the last has the sum.
    None are known where a worker's report came without intervals, as those of very many tensors do.
    """
    if not all(intervals):
        return []
    return [
        (max(start for start, _ in call), max(finish for _, finish in call))
        for call in zip(*intervals, strict=True)
    ]


def call_seconds(intervals: Sequence[Sequence[Interval]]) -> list[float]:
    """How long each all-reduce took; see `calls_of`."""
    return [ended - began for began, ended in calls_of(intervals)]


def reduce_seconds(*jobs: Sequence[Sequence[Interval]]) -> float:
    """Time spent in all-reduces of one or several jobs; see `calls_of`.

    What several calls share counts once.
    """
    total, until = 0.0, float("-inf")
    for began, ended in sorted(call for intervals in jobs for call in calls_of(intervals)):
        began, until = max(until, began), max(until, ended)
        total += until - began
    return total


def make_workload(
    spec: WorkloadSpec, worker: int, plan: JobPlan | None, expected: ExpectedSums | None = None
) -> Workload:
    """Worker `worker`'s side of a workload; without a plan hosts sum, none of it the switches.

    `expected`: shared by workers in one process.
    """
    if spec.kind == DIGITS:
        return TrainingWorkload(spec, worker, plan)
    return RandomTensors(spec, worker, plan, expected)


def verify_result(
    spec: WorkloadSpec,
    worker: int,
    tensors: Iterable[Tensor],
    result: Tensor,
    plan: JobPlan | None,
) -> Verdict:
    """Compare what a worker got from a collective with what it is to get, see `verify_sum`."""
    if spec.collective is Collective.ALL_REDUCE:
        return verify_sum(tensors, result, plan, wire_bits=spec.wire_bits)
    parts = worker_parts(spec.collective, spec.workers, len(result))
    if not spec.collective.sums:
        verdict = Verdict()
        for tensor, (start, stop) in zip(tensors, parts, strict=True):
            got, sent = (bits_of(each[start:stop]) for each in (result, tensor))
            verdict.merge(Verdict(stop - start, int(np.count_nonzero(got != sent))))
        return verdict
    start, stop = parts[worker]
    own = (tensor[start:stop] for tensor in tensors)
    return verify_sum(own, result[start:stop], plan, ((0, stop - start),), spec.wire_bits)


def bits_of(tensor: Tensor) -> Tensor:
    """View the elements of a tensor as integers, to compare or copy them."""
    return tensor.view(f"i{tensor.itemsize}")


def verify_sum(
    tensors: Iterable[Tensor],
    result: Tensor,
    plan: JobPlan | None,
    ranges: Ranges | None = None,
    wire_bits: int = 0,
) -> Verdict:
    """Compare a sum with that of the workers' tensors, see `expected_sum`."""
    expected = expected_sum(tensors, len(result), result.dtype, plan, ranges, wire_bits)
    return expected.compare(result)


@dataclass(frozen=True, slots=True)
class ExpectedSum:
    """A sum that all workers get: of integers to the bit, of floats within `bound`, in float64."""

    exact: NDArray[Any]
    bound: NDArray[np.float64] | None = None

    def compare(self, result: Tensor) -> Verdict:
        """Compare a worker's result with it."""
        if self.bound is None:
            return Verdict(len(result), int(np.count_nonzero(result != self.exact)))
        error = np.abs(as_float32(result).astype(np.float64) - self.exact)
        # Written so that a NaN counts as wrong.
        wrong = int(np.count_nonzero(~(error <= self.bound)))
        most, bound = (float(each.max(initial=0.0)) for each in (error, self.bound))
        return Verdict(len(result), wrong, most, bound)

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return self.exact.nbytes + (0 if self.bound is None else self.bound.nbytes)


def expected_sum(
    tensors: Iterable[Tensor],
    length: int,
    dtype: np.dtype[Any],
    plan: JobPlan | None,
    ranges: Ranges | None = None,
    wire_bits: int = 0,
) -> ExpectedSum:
    """Return the sum of the workers' tensors, all flat, of which one is held at a time.

    `ranges`: the elements that each tree has summed; None: by the plan's shares. `wire_bits`: of
    the workload. See `Verdict`. The bound of a sum of floats is that of block exponents for what
    the plan's trees sum, and for all else (None: everything) that of n - 1 float32 additions in any
    order (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    element = element_of(dtype)
    assert element is not None
    if not element.scaled:
        expected = np.zeros(length, dtype)
        for tensor in tensors:
            # Wraps around as the switches' sums do.
            expected += tensor
        return ExpectedSum(expected)
    exact, magnitude = np.zeros((2, length), np.float64)
    trees = None
    if plan is not None and plan.trees:
        _, start, stop = decompose(plan, length)[0]
        [data_type] = [each for each, known in DTYPES.items() if known == dtype]
        width = width_of(plan, Collective.ALL_REDUCE, data_type, wire_bits)
        trees = SwitchBounds(
            plan, ranges or tensor_ranges(plan, stop - start, width), element, width
        )
    workers = 0
    for tensor in tensors:
        workers += 1
        values = as_float32(tensor)
        exact += values
        magnitude += np.abs(values)
        if trees is not None:
            trees.take(tensor[start:stop])
    bound: NDArray[np.float64] = magnitude
    bound *= (workers - 1) * 2.0**-24 * (1 + 2.0**-20)
    if trees is not None:
        bound[start:stop] = trees.bounds(exact[start:stop])
    return ExpectedSum(exact, bound)


class ExpectedSums:
    """Sums that several workers in one process expect, so that each is computed once.

    The last ones are kept, EXPECTED_BYTES at most.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[WorkloadSpec, int], tuple[JobPlan | None, ExpectedSum]] = {}

    def of(
        self,
        spec: WorkloadSpec,
        number: int,
        plan: JobPlan | None,
        compute: Callable[[], ExpectedSum],
    ) -> ExpectedSum:
        """Return what all workers expect of a round under a plan."""
        key = spec, number
        found = self._kept.get(key)
        if found is not None and found[0] == plan:
            return found[1]
        made = compute()
        self._kept.pop(key, None)
        self._kept[key] = plan, made
        while sum([each.nbytes for _, each in self._kept.values()]) > EXPECTED_BYTES:
            del self._kept[next(iter(self._kept))]
        return made


class SwitchBounds:
    """The error bound of every element that a plan's trees sum, as `numbers.error_bound`.

    It takes one worker's tensor of an `element` after the other, which have a `width` in packets.
    A fragment's exponent is the largest of all workers'; fragments of the first window of a tree's
    range share some (docs/protocol.md).
    """

    def __init__(
        self,
        plan: JobPlan,
        ranges: Ranges,
        element: Element = Element.OF_FLOAT32,
        width: Width = Width.WIDTH_32,
    ) -> None:
        self._ranges = ranges
        self._element, self._width = element, width
        self._values = plan.values * width.per_lane
        self._window, self._group = plan.in_flight, exponent_group(plan.in_flight, width)
        self._codes = [
            np.zeros(-(-(stop - start) // self._values), np.uint8) for start, stop in self._ranges
        ]
        self._workers = 0

    def take(self, tensor: Tensor) -> None:
        """Take a worker's tensor in."""
        self._workers += 1
        for (start, stop), codes in zip(self._ranges, self._codes, strict=True):
            found = exponent_codes(tensor[start:stop], self._values, "tensor")
            np.maximum(codes, found, out=codes)

    def bounds(self, exact: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bounds, given the sum in float64."""
        bounds = np.zeros(len(exact))
        for (start, stop), own in zip(self._ranges, self._codes, strict=True):
            if start == stop:
                continue
            codes = own.copy()
            for first in range(0, self._window, self._group):
                group = codes[first : min(first + self._group, self._window)]
                group[...] = group.max(initial=0)
            for code in np.unique(codes):
                chosen = np.repeat(codes == code, self._values)[: stop - start]
                where = np.flatnonzero(chosen) + start
                bounds[where] = error_bound(
                    int(code), self._workers, exact[where], self._element, self._width
                )
        return bounds
