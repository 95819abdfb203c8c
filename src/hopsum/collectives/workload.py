"""Workloads: the number, lengths and contents of the tensors that a job's workers sum.

Pure data, sent by a job's owner to the controller and on to the agents
(`hopsum.collectives.task_messages`). `hopsum.host_agent.workload` makes the tensors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from hopsum.collectives.choices import Collective, DataType
from hopsum.protocol.errors import InputError

RANDOM = "random"
DIGITS = "digits"
VECTORS = "vectors"
PROCESS = "process"
KINDS = (RANDOM, DIGITS, VECTORS, PROCESS)
DATA_SETS = (DIGITS,)
"""Data sets for training."""

MOST_WORKERS = 0xFFFF
"""Maximum number of workers: the range of the packet's worker field."""
MOST_RANKS_OF_HOST = 64
"""Maximum ranks on a host: an agent accepts as many connections of one user."""
MOST_ELEMENTS = 1 << 40
MOST_TENSORS = 1_000_000
"""Maximum tensors of a job; an agent reports the times of the first MOST_INTERVALS."""
MOST_SEED = (1 << 64) - 1

FLOAT_VERDICT_BYTES = 80
"""Bytes per element while a tensor of floats is made and its sum is checked, in float64."""
INTEGER_VERDICT_FACTOR = 6
"""Bytes of that per byte of a tensor of integers."""
WIRE_BITS = {
    DataType.FLOAT32: (32, 16),
    DataType.INT32: (32,),
    DataType.FLOAT16: (16, 32),
    DataType.BFLOAT16: (16, 32),
    DataType.INT8: (8, 32),
}
"""Bits that values of each type can have in packets."""
TENSOR_BYTES = 250
"""Overhead per tensor, regardless of its length."""
KEPT_BYTES = 1 << 28
"""Bytes of sums that a worker keeps to check them later, when nothing waits for it."""


class WorkloadError(InputError):
    """An invalid workload; the message names the field and what was expected."""


class Digits:
    """Sizes of the training on handwritten digits: of the data, the model and the training."""

    INPUTS: ClassVar = 64
    HIDDEN: ClassVar = 512
    CLASSES: ClassVar = 10
    TRAIN_IMAGES: ClassVar = 1437
    BATCH: ClassVar = 128
    STEPS_PER_EPOCH: ClassVar = TRAIN_IMAGES // BATCH
    SHAPES: ClassVar = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    PARAMETERS: ClassVar = INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES


def check_wire_bits(dtype: DataType, wire_bits: int) -> None:
    """Raise WorkloadError unless values of a type can have these bits in packets; 0: as it has."""
    if wire_bits and wire_bits not in WIRE_BITS[dtype]:
        raise WorkloadError(
            f"wire-bits {wire_bits} of {dtype}: expected {' or '.join(map(str, WIRE_BITS[dtype]))}"
        )


def is_for_trees(dtype: DataType, wire_bits: int) -> bool:
    """Return whether only switches and servers can sum it: hosts add numpy's, as they are."""
    return dtype.bits < 32 or wire_bits not in (0, 32)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A workload, the same for all workers. Raises WorkloadError if it is invalid.

    `kind`: `random` (tensors of `elements`, `rounds` times), `digits` (training; `rounds` is the
    number of epochs), VECTORS (bit vectors by which the workers of another job agree on an order,
    in any number and length), or PROCESS (tensors that processes on the hosts submit).
    `coordinate`: training sums a tensor a layer's parameters, in an order that the workers agree on
    (`operator_training`), else all in one. `ranks`: of PROCESS, the host of each rank, where a
    worker has several; empty: each worker has one, in the plan's order. `collective`: of random
    tensors. `wire_bits`: of a value in the switches' packets, 0: as the type has it.
    """

    kind: str
    workers: int
    elements: int
    rounds: int
    dtype: DataType
    seed: int
    coordinate: bool = False
    ranks: tuple[str, ...] = ()
    collective: Collective = Collective.ALL_REDUCE
    wire_bits: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise WorkloadError(
                f"workload: kind {self.kind!r:.40}: expected one of {', '.join(KINDS)}"
            )
        for name, least, most in (
            ("workers", 1, MOST_WORKERS),
            ("elements", 0, MOST_ELEMENTS),
            ("rounds", 1 if self.kind in (RANDOM, DIGITS) else 0, MOST_TENSORS),
            ("seed", 0, MOST_SEED),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise WorkloadError(
                    f"workload: {name} {value}: expected a whole number from {least} to {most}"
                )
        if self.collective is not Collective.ALL_REDUCE and self.kind != RANDOM:
            raise WorkloadError(
                f"workload: {self.collective} of {self.kind}: expected {Collective.ALL_REDUCE}; "
                f"others are of {RANDOM} tensors"
            )
        check_wire_bits(self.dtype, self.wire_bits)
        if self.ranks:
            self._check_ranks()
        if self.tensors > MOST_TENSORS:
            raise WorkloadError(
                f"workload: {self.rounds} epochs sum {self.tensors} tensors: expected at most "
                f"{MOST_TENSORS}"
            )

    def _check_ranks(self) -> None:
        hosts = Counter(self.ranks)
        [(fullest, most)] = hosts.most_common(1)
        if self.kind != PROCESS:
            raise WorkloadError(
                f"workload: ranks of {self.kind}: expected none; they are of {PROCESS}"
            )
        if len(hosts) != self.workers:
            raise WorkloadError(
                f"workload: ranks on {len(hosts)} hosts: expected each of {self.workers} workers "
                "to have one or more"
            )
        if most > MOST_RANKS_OF_HOST or len(self.ranks) > MOST_WORKERS:
            raise WorkloadError(
                f"workload: {len(self.ranks)} ranks, {most} of them on {fullest:.40}: expected at "
                f"most {MOST_WORKERS}, and {MOST_RANKS_OF_HOST} on a host"
            )

    @property
    def for_trees(self) -> bool:
        """See `is_for_trees`."""
        return is_for_trees(self.dtype, self.wire_bits)

    @property
    def steps(self) -> int:
        """Rounds of the same tensors."""
        return self.rounds * (Digits.STEPS_PER_EPOCH if self.kind == DIGITS else 1)

    @property
    def tensors(self) -> int:
        """Total number of tensors; 0 if processes decide it."""
        return len(self.step_sizes()) * self.steps

    def step_sizes(self) -> list[int]:
        """Return the elements of the tensors of one step, so that bytes can be predicted."""
        if self.kind != DIGITS:
            return [] if self.kind == PROCESS else [self.elements]
        return list(map(prod, Digits.SHAPES)) if self.coordinate else [Digits.PARAMETERS]

    def tensor_sizes(self) -> list[int]:
        """Return the elements of all tensors; workers may sum those of a step in another order."""
        return self.step_sizes() * self.steps

    @property
    def _element_bytes(self) -> int:
        return self.dtype.bits // 8

    @property
    def worker_bytes(self) -> int:
        """Approximate memory that a worker needs for its tensors and to check their sums."""
        match self.kind:
            case "random":
                each = self.elements * self._element_bytes
                kept = min(self.rounds * each, KEPT_BYTES + each)
                checked = INTEGER_VERDICT_FACTOR * each
                if self.dtype.scaled:
                    checked = FLOAT_VERDICT_BYTES * self.elements
                return kept + checked + TENSOR_BYTES * self.rounds
            case "digits":
                # Sums are kept to be checked; those of several operators are checked at once, with
                # the gradients of all.
                each = self._element_bytes * Digits.PARAMETERS
                kept = min(self.steps * each, KEPT_BYTES + each)
                if self.coordinate:
                    kept = self.workers * each
                return 20 * each + kept + TENSOR_BYTES * self.tensors
            case _:
                return 0

    @property
    def relay_bytes(self) -> int:
        """Approximate memory of a host that adds to the sums and has no tensors of its own."""
        return 4 * self._element_bytes * max(self.step_sizes(), default=0) + 8 * self.tensors
