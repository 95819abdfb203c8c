"""Training whose gradients are several operators, ready in a different order on every worker.

Which gradient is ready first depends on how each worker happens to be scheduled; here it is drawn
at random for every worker and step, so that workers in one order would be luck. The workers agree
on the order in which they sum ([004][]); any order gives the same training.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np

from hopsum.collectives.plan import JobPlan
from hopsum.collectives.schedule import part
from hopsum.coordination.operators import Operator
from hopsum.host_agent.digits import Digits, DigitsTraining
from hopsum.host_agent.workload import CheckedWorkload, Tensor, Verdict, WorkloadSpec, verify_sum
from hopsum.protocol import hopsum_pb2 as pb

NAMES = ("hidden weights", "hidden biases", "output weights", "output biases")
"""Names of the gradients, in the order of `Digits.SHAPES`."""

OPERATORS = tuple(
    Operator(name, shape, "float32") for name, shape in zip(NAMES, Digits.SHAPES, strict=True)
)
_ENDS = list(accumulate(map(prod, Digits.SHAPES)))
_RANGES = dict(zip(NAMES, zip([0, *_ENDS], _ENDS, strict=False), strict=True))
"""Range of an operator in the flat gradient: start and stop."""


class OperatorTraining(CheckedWorkload):
    """One worker's side: `begin_step`, then a `tensor` and a `take_result` for each operator."""

    def __init__(self, spec: WorkloadSpec, worker: int, plan: JobPlan | None) -> None:
        self.step = 0
        """The number of the current step, from 1."""
        self.order: list[str] = []
        """The operators of that step in the order in which they were summed."""
        self._missing: set[str] = set()
        self._plan = plan
        self._worker = worker
        self._training = DigitsTraining(seed=spec.seed, epochs=spec.rounds)
        self._parts = [part(0, Digits.BATCH, spec.workers, w) for w in range(spec.workers)]
        self._random = np.random.default_rng([spec.seed, worker, 3])
        self._gradients: list[Tensor] = []
        self._sum = np.zeros(Digits.PARAMETERS, dtype=np.float32)
        self._verdict = Verdict()

    def begin_step(self) -> list[Operator] | None:
        """Compute the next step's gradient; its operators in the order in which they are ready.

        None when all steps are done. Every operator must be summed before the next step.
        """
        if self._missing:
            raise RuntimeError(
                f"step {self.step} lacks the sums of {', '.join(sorted(self._missing))}; expected "
                f"all of them before the next step"
            )
        if self._training.finished:
            return None
        self.step += 1
        self.order = []
        self._missing = set(NAMES)
        self._gradients = [self._gradient(*part) for part in self._parts]
        return [OPERATORS[number] for number in self._random.permutation(len(OPERATORS))]

    def _gradient(self, start: int, stop: int) -> Tensor:
        self._check_going()
        return self._training.gradient(start, stop)

    def tensor(self, name: str) -> Tensor:
        """Return this worker's gradient of an operator, flat, at the start of its sum."""
        self.order.append(name)
        start, stop = _RANGES[name]
        return self._gradients[self._worker][start:stop]

    def take_result(self, name: str, result: Tensor) -> bool:
        """Check a sum against all workers' parts; after the last one take a gradient step.

        Whether it was the last of the step.
        """
        start, stop = _RANGES[name]
        self._verdict.merge(
            verify_sum([g[start:stop] for g in self._gradients], result, self._plan)
        )
        self._sum[start:stop] = result
        self._missing.remove(name)
        if self._missing:
            return False
        self._training.step(self._sum)
        return True

    def cut_as(self, plan: JobPlan) -> None:
        """Check later sums by another plan."""
        self._plan = plan

    def verdict(self) -> Verdict:
        """All sums' verdicts together."""
        return self._verdict

    def outcome(self) -> pb.Outcome:
        """Accuracy on the test images, the loss after every epoch, the order of the last step."""
        training = self._training
        return pb.Outcome(
            accuracy=training.accuracy(), losses=training.losses, operator_order=self.order
        )
