"""What workers do with an all-reduce: the tensors they hand in, and what they make of the sums.

A workload runs in lock step on all workers of a job: `next_tensor`, all-reduce, `take_result`, and
so on until there is no next tensor. The same objects run in Mininet, a process each, and in the
simulation.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.decomposition import decompose
from collectives.plan import DataType, JobPlan, tensor_ranges
from collectives.schedule import part
from host_agent.digits import Digits, DigitsTraining
from host_agent.numbers import error_bound, exponent_codes

Tensor = NDArray[Any]

INT32_LIMIT = 1 << 31
VECTORS = "vectors"
PROCESS = "process"


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Which workload, the same for all workers; it crosses to the agents as JSON.

    `kind`: `random` (tensors of `elements`, `rounds` times), `digits` (training; `rounds` is the
    number of epochs), VECTORS (what the workers of another job say to agree on an order: as many
    words, as often, as it takes), or PROCESS (what processes on the hosts hand in). `coordinate`:
    training sums a tensor a layer's parameters, in an order that the workers agree on
    (`operator_training`), else all in one.
    """

    kind: str
    workers: int
    elements: int
    rounds: int
    dtype: DataType
    seed: int
    coordinate: bool = False

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkloadSpec:
        """From one line of JSON."""
        values = json.loads(text)
        values["dtype"] = DataType(values["dtype"])
        return cls(**values)

    @property
    def steps(self) -> int:
        """Rounds of the same tensors."""
        return self.rounds * (Digits.STEPS_PER_EPOCH if self.kind == "digits" else 1)

    def step_sizes(self) -> list[int]:
        """Elements of the tensors of one step, so that bytes can be predicted."""
        if self.kind != "digits":
            return [] if self.kind == PROCESS else [self.elements]
        return list(map(prod, Digits.SHAPES)) if self.coordinate else [Digits.PARAMETERS]

    def tensor_sizes(self) -> list[int]:
        """Elements of all tensors; within a step the workers may sum them in another order."""
        return self.step_sizes() * self.steps


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


class Judged(ABC):
    """What is to be said of a workload at its end."""

    @abstractmethod
    def verdict(self) -> Verdict:
        """Judge the results, after the last one."""

    @abstractmethod
    def cut_as(self, plan: JobPlan) -> None:
        """From the next tensor on, who sums which of its elements is as this plan says."""

    def outcome(self) -> dict[str, Any]:
        """What else there is to report."""
        return {}


class Workload(Judged):
    """One worker's side of a workload in lock step."""

    @abstractmethod
    def next_tensor(self) -> Tensor | None:
        """The next tensor to sum over all workers, flat; None when done."""

    @abstractmethod
    def take_result(self, result: Tensor) -> None:
        """Take the sum of the tensors handed in last."""


def random_tensor(spec: WorkloadSpec, worker: int, number: int) -> Tensor:
    """Worker `worker`'s tensor of round `number`: the same wherever it is computed.

    int32: uniform over a range whose sum over all workers cannot overflow. float32: normal,
    with a scale that varies from block to block over some orders of magnitude.
    """
    generator = np.random.default_rng([spec.seed, worker, number])
    if spec.dtype is DataType.INT32:
        limit = INT32_LIMIT // spec.workers
        return generator.integers(-limit + 1, limit, spec.elements, dtype=np.int32)
    values = generator.standard_normal(spec.elements, dtype=np.float32)
    scales = generator.integers(-12, 8, (spec.elements + 999) // 1000)
    values *= np.ldexp(np.float32(1), np.repeat(scales, 1000)[: spec.elements])
    return values


class RandomTensors(Workload):
    """Random tensors, every element of every result checked afterwards."""

    def __init__(self, spec: WorkloadSpec, worker: int, plan: JobPlan | None) -> None:
        self._spec = spec
        self._worker = worker
        self._plan = plan
        self._results: list[tuple[Tensor, JobPlan | None]] = []
        self._number = 0

    def next_tensor(self) -> Tensor | None:
        """The tensor of the next round."""
        if self._number == self._spec.rounds:
            return None
        self._number += 1
        return random_tensor(self._spec, self._worker, self._number - 1)

    def take_result(self, result: Tensor) -> None:
        """Keep a round's sum for the verdict."""
        self._results.append((np.array(result), self._plan))

    def cut_as(self, plan: JobPlan) -> None:
        """Judge what follows by another plan."""
        self._plan = plan

    def verdict(self) -> Verdict:
        """Compare each round with the sum of all workers' tensors."""
        total = Verdict()
        for number, (result, plan) in enumerate(self._results):
            tensors = [
                random_tensor(self._spec, worker, number) for worker in range(self._spec.workers)
            ]
            total.merge(judge(tensors, result, plan))
        return total


class TrainingWorkload(Workload):
    """Data-parallel training on the digits: gradients in, their sum out, a step of descent."""

    def __init__(self, spec: WorkloadSpec, worker: int, plan: JobPlan | None) -> None:
        self._spec = spec
        self._plan = plan
        self._training = DigitsTraining(seed=spec.seed, epochs=spec.rounds)
        self._parts = [part(0, Digits.BATCH, spec.workers, w) for w in range(spec.workers)]
        self._worker = worker
        self._verdict = Verdict()

    def next_tensor(self) -> Tensor | None:
        """The gradient of this worker's part of the next batch."""
        if self._training.finished:
            return None
        return self._training.gradient(*self._parts[self._worker])

    def take_result(self, result: Tensor) -> None:
        """Check the summed gradient against all workers' parts and take a step along it."""
        gradients = [self._training.gradient(*part) for part in self._parts]
        self._verdict.merge(judge(gradients, result, self._plan))
        self._training.step(result)

    def cut_as(self, plan: JobPlan) -> None:
        """Judge what follows by another plan."""
        self._plan = plan

    def verdict(self) -> Verdict:
        """All steps' verdicts together."""
        return self._verdict

    def outcome(self) -> dict[str, Any]:
        """Accuracy on the test images, and the loss after every epoch."""
        return {"accuracy": self._training.accuracy(), "losses": self._training.losses}


class Watched(Workload):
    """A workload that tells how far it is: `progress(tensors summed, tensors in all)`."""

    def __init__(
        self, workload: Workload, total: int, progress: Callable[[int, int], None]
    ) -> None:
        self._workload = workload
        self._total = total
        self._progress = progress
        self._done = 0

    def next_tensor(self) -> Tensor | None:
        """The workload's next tensor."""
        return self._workload.next_tensor()

    def take_result(self, result: Tensor) -> None:
        """Pass a result on and tell."""
        self._workload.take_result(result)
        self._done += 1
        self._progress(self._done, self._total)

    def cut_as(self, plan: JobPlan) -> None:
        """Pass it on."""
        self._workload.cut_as(plan)

    def verdict(self) -> Verdict:
        """The workload's verdict."""
        return self._workload.verdict()

    def outcome(self) -> dict[str, Any]:
        """The workload's outcome."""
        return self._workload.outcome()


Interval = tuple[float, float]
"""When a call began and ended at one worker, seconds."""


def call_seconds(intervals: Sequence[Sequence[Interval]]) -> list[float]:
    """How long each all-reduce took, from the intervals of each worker's calls, workers first.

    A call lasts from when the last worker has handed its tensor in until the last has the sum.
    """
    return [
        max(finish for _, finish in call) - max(start for start, _ in call)
        for call in zip(*intervals, strict=True)
    ]


def reduce_seconds(intervals: Sequence[Sequence[Interval]]) -> float:
    """Time spent in all-reduces; see `call_seconds`. What several share counts once."""
    total, until = 0.0, float("-inf")
    for call in zip(*intervals, strict=True):
        began = max(until, *(start for start, _ in call))
        until = max(until, *(finish for _, finish in call))
        total += until - began
    return total


def make_workload(spec: WorkloadSpec, worker: int, plan: JobPlan | None) -> Workload:
    """Worker `worker`'s side of a workload; without a plan hosts sum, none of it the switches."""
    if spec.kind == "digits":
        return TrainingWorkload(spec, worker, plan)
    return RandomTensors(spec, worker, plan)


def judge(tensors: Sequence[Tensor], result: Tensor, plan: JobPlan | None) -> Verdict:
    """Compare a sum with that of the workers' tensors, all flat; see `Verdict`.

    The bound of a float32 sum is that of block exponents for what the plan's trees sum, and for all
    else (None: everything) that of n - 1 float32 additions in any order (Higham, Accuracy and
    Stability of Numerical Algorithms, 4.2).
    """
    if result.dtype == np.int32:
        # Wraps around as the switches' sums do.
        expected = np.sum(tensors, axis=0, dtype=np.int32)
        return Verdict(len(result), int(np.count_nonzero(result != expected)))
    exact: NDArray[np.float64] = np.asarray(np.sum(tensors, axis=0, dtype=np.float64))
    magnitude = np.sum(np.abs(tensors), axis=0, dtype=np.float64)
    bound: NDArray[np.float64] = np.asarray(
        (len(tensors) - 1) * 2.0**-24 * magnitude * (1 + 2.0**-20)
    )
    if plan is not None and plan.trees:
        _, start, stop = decompose(plan, len(exact))[0]
        summed = [tensor[start:stop] for tensor in tensors]
        bound[start:stop] = switch_bounds(summed, exact[start:stop], plan)
    error = np.abs(result.astype(np.float64) - exact)
    # Written so that a NaN counts as wrong.
    wrong = int(np.count_nonzero(~(error <= bound)))
    return Verdict(len(result), wrong, float(error.max(initial=0.0)), float(bound.max(initial=0.0)))


def switch_bounds(
    tensors: Sequence[Tensor], exact: NDArray[np.float64], plan: JobPlan
) -> NDArray[np.float64]:
    """The error bound of every element that a plan's trees sum, as `numbers.error_bound`.

    A fragment's exponent is the largest of all workers'; the first window of a tree's range
    shares one (docs/protocol.md).
    """
    bounds = np.zeros(len(exact))
    for start, stop in tensor_ranges(plan, len(exact)):
        if start == stop:
            continue
        codes = np.max(
            [exponent_codes(t[start:stop], plan.lanes, "tensor") for t in tensors], axis=0
        )
        codes[: plan.window] = codes[: plan.window].max()
        for code in np.unique(codes):
            chosen = np.repeat(codes == code, plan.lanes)[: stop - start]
            where = np.flatnonzero(chosen) + start
            bounds[where] = error_bound(int(code), len(tensors), exact[where])
    return bounds
