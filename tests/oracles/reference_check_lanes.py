"""Check lanes in Python's integers: the formulas of docs/protocol.md, word by word."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from hopsum.protocol.wire import CHECK_LANES

P = (1 << 45) - 55
Lanes = tuple[int, ...]


class ReferenceCheckLanes:
    """The check lanes of one tree of a job."""

    def __init__(self, workers: int, key: bytes, tree: int, lanes: int) -> None:
        self.workers, self.key, self.tree, self.values = workers, key, tree, lanes - CHECK_LANES
        self.z, self.c, self.v, *self.r = _drawn(key, f"coefficients {tree} 0 0", self.values + 3)

    def pad(self, use: str, number: int, fragment: int) -> int:
        """F(f, i) of worker i, R(f) of a result, or a question's."""
        pads = _drawn(self.key, f"{use} {self.tree} {number} {fragment >> 6}", 64)
        return pads[fragment & 63]

    def of_workers(self, first: int, last: int, fragment: int) -> int:
        """F(f, first) - F(f, last)."""
        use = f"of {self.workers}"
        return self.pad(use, first, fragment) - self.pad(use, last, fragment)

    def dot(self, lanes: Sequence[int]) -> int:
        """Return r . x."""
        return sum(r * x for r, x in zip(self.r, lanes, strict=False))

    def put(self, lanes: Sequence[int], number: int) -> Lanes:
        """The lanes with a number in their limbs."""
        return *lanes[: self.values], *(number % P >> at & 0x7FFF for at in (0, 15, 30))

    def rest(self, lanes: Sequence[int]) -> int:
        """What the limbs say but for r . x."""
        limbs = zip((0, 15, 30), lanes[self.values :], strict=True)
        return (sum(limb << at for at, limb in limbs) - self.dot(lanes)) % P

    def protected(self, lanes: Sequence[int], fragment: int, worker: int, *, needed: bool) -> Lanes:
        """A worker's contribution."""
        number = self.dot(lanes) + self.z * needed
        return self.put(lanes, number + self.of_workers(worker, worker + 1, fragment))

    def is_single(self, lanes: Sequence[int], fragment: int, worker: int) -> bool:
        """Whether it is the contribution of a worker."""
        rest = self.rest(lanes) - self.of_workers(worker, worker + 1, fragment)
        return rest % P in (0, self.z)

    def sum(self, lanes: Sequence[int], fragment: int) -> int | None:
        """How many workers needed the exponent of a sum of all; None: it is no such sum."""
        rest = (self.rest(lanes) - self.of_workers(0, self.workers, fragment)) % P
        return next((k for k in range(self.workers + 1) if k * self.z % P == rest), None)

    def sealed(
        self, lanes: Sequence[int], fragment: int, code: int, *, needed: bool, over: bool
    ) -> Lanes:
        """A result."""
        number = self.dot(lanes) + self.z * needed + self.c * code + self.v * over
        return self.put(lanes, number + self.pad("result", 0, fragment))

    def is_result(self, lanes: Sequence[int], fragment: int, code: int, *, over: bool) -> bool:
        """Whether it is a server's."""
        rest = self.rest(lanes) - self.pad("result", 0, fragment)
        return (rest - self.c * code - self.v * over) % P in (0, self.z)

    def question(self, fragment: int) -> Lanes:
        """The server's for single contributions."""
        return self.put([0] * self.values, self.pad("question", 0, fragment))


@lru_cache(maxsize=4096)
def _drawn(key: bytes, name: str, count: int) -> list[int]:
    """Numbers derived from the key."""
    drawn = hashlib.shake_128(key + name.encode()).digest(8 * count)
    return [int.from_bytes(drawn[at : at + 8], "little") % P for at in range(0, 8 * count, 8)]
