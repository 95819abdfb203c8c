"""Check lanes: proof that a sum is that of its job's workers' contributions.

The last `CHECK_LANES` lanes of a fragment hold an element of the field of size P = 2^45 - 55, as
limbs of 15 bits, which switches add like any lanes: the sums of at most 65,535 limbs stay within 31
bits, and together they are the sum of the elements. Worker i contributes to fragment f

    r . x_i + z w_i + F(f, i) - F(f, i + 1)        (mod P)

where x_i are its values, r (one number per lane) and z are derived from the job's key, w_i is 1 or
0 (see below), and F are numbers derived from the key, each used once. So N workers' check values
add up to

    r . S + z k + F(f, 0) - F(f, N)

where S is the sum of their values over the integers, and k that of the w. A forger without the key
who alters S and the check value in any way goes undetected with probability at most (N + 1) / P: no
lane changes by a multiple of P (the universal hash of Carter and Wegman, JCSS 1981, made one-time
by the pads). A sum that wrapped around is invalid too. The server subtracts F(f, 0) - F(f, N) and
*seals* the result, which is then valid as a result only, and only with its exponent byte and
overflow flag:

    r . S + z [k > 0] + c code + v overflow + R(f)

w_i says that worker i's own values need the exponent by which they are scaled. The exponents'
maximum on the way up is not a sum, so only w protects it: if no worker needs it, it was altered.

Field elements are int64 arrays, 0 to P - 1. Received lanes may be any int32.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.plan_checks import KEY_BYTES as KEY_BYTES
from hopsum.host_agent.plan_checks import check_key
from hopsum.protocol.wire import CHECK_LANES

P = (1 << 45) - 55
_LIMB_BITS = 15
_LIMB = (1 << _LIMB_BITS) - 1
_PIECE_BITS = 12
_PIECES = 4
"""A coefficient times a value is computed by pieces of the coefficient: 12 + 31 bits, and 9 for the
lanes, are exact in float64, in which matrix products are fast."""
_BLOCK_BITS = 6
"""Pads of 2^6 fragments are derived by one call of the hash."""
_BLOCK = 1 << _BLOCK_BITS
_KEPT_BLOCKS = 4096

Numbers = NDArray[np.int64]


class Integrity:
    """The check lanes of one tree of a job with `workers` workers and `lanes` lanes a packet.

    Values of fragments, (n, lanes), may be big-endian; `wire`: fragment numbers (n,), modulo 2^32.
    """

    def __init__(self, key: bytes, tree: int, workers: int, lanes: int) -> None:
        self.workers = workers
        self.values = lanes - CHECK_LANES
        self._key = key
        self._tree = tree
        drawn = self._draw("coefficients", 0, 0, self.values + 3)
        self._need, self._code, self._overflow = (int(number) for number in drawn[:3])
        pieces = [
            drawn[3:] >> (_PIECE_BITS * piece) & ((1 << _PIECE_BITS) - 1)
            for piece in range(_PIECES)
        ]
        self._coefficients = np.stack(pieces, axis=1).astype(np.float64)
        self._needs = np.sort(np.array([self._need * k % P for k in range(workers + 1)]))
        self._block = lru_cache(maxsize=_KEPT_BLOCKS)(self._draw_block)

    def _draw(self, use: str, first: int, second: int, count: int) -> Numbers:
        """Return pseudorandom numbers derived from the key."""
        name = f"{use} {self._tree} {first} {second}".encode()
        drawn = hashlib.shake_128(self._key + name).digest(8 * count)
        return (np.frombuffer(drawn, dtype="<u8") % np.uint64(P)).astype(np.int64)

    def _draw_block(self, use: str, number: int, block: int) -> Numbers:
        return self._draw(use, number, block, _BLOCK)

    def _pads(self, use: str, number: int, wire: Numbers) -> Numbers:
        blocks = wire >> _BLOCK_BITS
        first = int(blocks[0])
        if np.count_nonzero(blocks != first):
            pads = np.empty(len(wire), dtype=np.int64)
            for block in np.unique(blocks).tolist():
                rows = blocks == block
                pads[rows] = self._block(use, number, block)[wire[rows] & (_BLOCK - 1)]
            return pads
        some_pads: Numbers = self._block(use, number, first)[wire & (_BLOCK - 1)]
        return some_pads

    def _between(self, first: int, last: int, wire: Numbers) -> Numbers:
        """Return the sum of the pads of workers `first` to `last` - 1, above -P."""
        use = f"of {self.workers}"
        return self._pads(use, first, wire) - self._pads(use, last, wire)

    def _hash(self, values: NDArray[np.int32]) -> Numbers:
        """Return r . x of each row."""
        products = values[:, : self.values].astype(np.float64) @ self._coefficients
        whole = products.astype(np.int64)
        result: Numbers = whole[:, -1]
        for piece in range(_PIECES - 2, -1, -1):
            result = (result % P << _PIECE_BITS) + whole[:, piece]
        result %= P
        return result

    def _number(self, values: NDArray[np.int32]) -> Numbers:
        """Return the value of the check lanes, not reduced modulo P."""
        limbs = values[:, self.values :].astype(np.int64)
        number: Numbers = limbs[:, 0]
        for limb in range(1, CHECK_LANES):
            number = number + (limbs[:, limb] << _LIMB_BITS * limb)
        return number

    def _rest(self, values: NDArray[np.int32]) -> Numbers:
        """Return the terms of the check lanes other than r . x."""
        return (self._number(values) - self._hash(values)) % P

    def _put(self, values: NDArray[np.int32], numbers: Numbers) -> None:
        for limb in range(CHECK_LANES):
            values[:, self.values + limb] = numbers >> _LIMB_BITS * limb & _LIMB

    def _coded(self, codes: NDArray[np.uint8]) -> Numbers:
        return self._code * codes.astype(np.int64) % P

    # -- a worker

    def protect(
        self, values: NDArray[np.int32], wire: Numbers, worker: int, needed: NDArray[np.bool_]
    ) -> None:
        """Fill in the check lanes of a worker's fragments; `needed`: its w."""
        pads = self._between(worker, worker + 1, wire)
        self._put(values, (self._hash(values) + np.where(needed, self._need, 0) + pads) % P)

    def protect_again(
        self, values: NDArray[np.int32], wire: Numbers, worker: int, before: Integrity, was: int
    ) -> None:
        """Adapt check lanes of fragments that worker number `was` made among `before`'s workers."""
        own = before._rest(values) - before._between(was, was + 1, wire)
        pads = self._between(worker, worker + 1, wire)
        self._put(values, (self._hash(values) + own + pads) % P)

    def opened(
        self,
        values: NDArray[np.int32],
        wire: Numbers,
        codes: NDArray[np.uint8],
        overflow: bool = False,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which results are genuine, and in which of these no worker needed the exponent."""
        rest = self._rest(values) - self._pads("result", 0, wire) - self._coded(codes)
        rest = (rest - (self._overflow if overflow else 0)) % P
        useless = rest == 0
        return useless | (rest == self._need), useless

    def asked(self, values: NDArray[np.int32], wire: Numbers) -> NDArray[np.bool_]:
        """Return which questions for single contributions (`question`) are the server's."""
        same: NDArray[np.bool_] = self._rest(values) == self._pads("question", 0, wire)
        return same

    # -- a server

    def fits(self, values: NDArray[np.int32], wire: Numbers) -> tuple[NDArray[np.bool_], Numbers]:
        """Return which are sums of all workers' contributions, and z k of each, for `seal`."""
        needs = (self._rest(values) - self._between(0, self.workers, wire)) % P
        nearest = np.minimum(np.searchsorted(self._needs, needs), self.workers)
        return self._needs[nearest] == needs, needs

    def fits_single(
        self, values: NDArray[np.int32], wire: Numbers, worker: int
    ) -> NDArray[np.bool_]:
        """Return which are contributions of a worker."""
        rest = (self._rest(values) - self._between(worker, worker + 1, wire)) % P
        fitting: NDArray[np.bool_] = (rest == 0) | (rest == self._need)
        return fitting

    def seal(
        self, values: NDArray[np.int32], wire: Numbers, codes: NDArray[np.uint8], needs: Numbers
    ) -> None:
        """Turn valid sums into results."""
        hashed = self._number(values) - self._between(0, self.workers, wire) - needs
        self._put_result(values, wire, codes, hashed + np.where(needs != 0, self._need, 0))

    def seal_overflow(
        self, values: NDArray[np.int32], wire: Numbers, codes: NDArray[np.uint8]
    ) -> None:
        """Turn sums that are known to have wrapped around into results."""
        self._put_result(values, wire, codes, self._hash(values) + self._need + self._overflow)

    def _put_result(
        self,
        values: NDArray[np.int32],
        wire: Numbers,
        codes: NDArray[np.uint8],
        numbers: Numbers,
    ) -> None:
        numbers = numbers + self._coded(codes) + self._pads("result", 0, wire)
        self._put(values, numbers % P)

    def question(self, wire: int, lanes: NDArray[np.int32]) -> None:
        """Fill in lanes (1, lanes) of the server's question for single contributions."""
        lanes[...] = 0
        self._put(lanes, self._pads("question", 0, np.array([wire])))


def make_integrity(plan: JobPlan, tree: int, key: bytes | None) -> Integrity | None:
    """Return the integrity checks of a plan's tree; None for a plan without integrity.

    Raises PlanError if there is no key.
    """
    key = check_key(plan, key)
    return None if key is None else Integrity(key, tree, len(plan.workers), plan.lanes)
