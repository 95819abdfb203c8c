"""Check lanes in C against those of a scalar reference in Python's integers."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.datapath.library import library
from hopsum.protocol.wire import CHECK_LANES
from tests.oracles.reference_check_lanes import P, ReferenceCheckLanes
from tests.support.search import examples

LANES = 32
VALUES = LANES - CHECK_LANES
KEY = bytes(range(32))
INT32 = st.integers(-(2**31), 2**31 - 1)
WIRE = st.sampled_from([0, 63, 64, 2**32 - 1]) | st.integers(0, 2**32 - 1)


class CheckLanes:
    """`struct check_lanes` with its arrays."""

    class _State(ctypes.Structure):
        _fields_ = c_fields("datapath/check_lanes.h", "check_lanes")

    def __init__(self, workers: int, key: bytes = KEY, tree: int = 0, lanes: int = LANES) -> None:
        self._state = self._State()
        layout = _function("check_layout", ctypes.c_uint64)
        self._memory = np.empty(layout(self.address, None, ctypes.c_int64(lanes)), np.uint8)
        at = ctypes.c_void_p(self._memory.ctypes.data)
        layout(self.address, at, ctypes.c_int64(lanes))
        self("restart", key, *map(ctypes.c_int64, (tree, workers, lanes)))

    @property
    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(self._state))

    def __call__(self, name: str, *arguments: Any, result: Any = ctypes.c_int64) -> Any:
        return _function(f"check_{name}", result)(self.address, *arguments)

    def of(self, name: str, lanes: NDArray[np.int32], wire: int, *rest: int) -> int:
        """Call a function of lanes, a fragment number and further numbers."""
        at = ctypes.c_void_p(lanes.ctypes.data)
        result = ctypes.c_int64 if name == "sum" else ctypes.c_int
        found: int = self(name, at, *map(ctypes.c_int64, (wire, *rest)), result=result)
        return found

    def result(
        self, lanes: NDArray[np.int32], wire: int, code: int, *, overflow: bool = False
    ) -> tuple[bool, bool]:
        """Whether a result is genuine, and whether no worker needed its exponent."""
        useless = ctypes.c_int()
        at = ctypes.c_void_p(lanes.ctypes.data)
        arguments = (at, ctypes.c_int64(wire), ctypes.c_uint8(code), ctypes.c_int(overflow))
        genuine = self("result", *arguments, ctypes.byref(useless), result=ctypes.c_int)
        return bool(genuine), bool(useless.value)


def _function(name: str, result: Any) -> Any:
    function = library()[name]
    function.restype = result
    return function


def array(lanes: list[int]) -> NDArray[np.int32]:
    return np.array(lanes, np.int64).astype(np.int32)


@pytest.mark.parametrize("count", [1, 20, 21, 22, 64, 355])
@pytest.mark.parametrize("size", [0, 1, 32, 135, 136, 167])
def test_shake_is_that_of_hashlib(size: int, count: int) -> None:
    message = bytes(7 * i & 0xFF for i in range(size))
    out = np.empty(count, "<u8")
    _function("shake_128", None)(
        message, ctypes.c_uint64(size), ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(count)
    )
    assert out.tobytes() == hashlib.shake_128(message).digest(8 * count)


@pytest.mark.parametrize("lanes", [32, 352])
@settings(max_examples=examples(25, of=1000), deadline=None)
@given(st.data(), st.integers(1, 300), WIRE, st.booleans())
def test_workers_fill_in_what_the_formula_says(
    lanes: int, data: st.DataObject, workers: int, wire: int, needed: bool
) -> None:
    worker = data.draw(st.integers(0, workers - 1))
    values = data.draw(st.lists(INT32, min_size=lanes, max_size=lanes))
    check, reference = CheckLanes(workers, lanes=lanes), ReferenceCheckLanes(workers, KEY, 0, lanes)
    got = array(values)
    check.of("protect", got, wire, worker, needed)
    assert got.tolist() == [*reference.protected(values, wire, worker, needed=needed)]
    assert check.of("single", got, wire, worker)
    got.view(np.uint32)[data.draw(st.integers(0, lanes - 1))] ^= np.uint32(
        1 << data.draw(st.integers(0, 31))
    )
    assert not check.of("single", got, wire, worker)


@settings(max_examples=examples(25, of=1000), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), WIRE, st.integers(0, 255))
def test_sums_fit_and_open_as_what_they_are_sealed_as(
    seed: int, workers: int, wire: int, code: int
) -> None:
    rng = np.random.default_rng(seed)
    check, reference = CheckLanes(workers), ReferenceCheckLanes(workers, KEY, 0, LANES)
    most = (2**31 - 1) // workers
    total = np.zeros(LANES, np.int32)
    values = np.zeros(VALUES, np.int64)
    needing = 0
    for worker in range(workers):
        own = rng.integers(-most, most + 1, LANES).astype(np.int32)
        needed = bool(rng.integers(2))
        needing += needed
        values += own[:VALUES]
        check.of("protect", own, wire, worker, needed)
        total += own
    assert check.of("sum", total, wire) == needing
    check.of("seal", total, wire, code, needing)
    sealed = reference.sealed(
        [*values.tolist(), 0, 0, 0], wire, code, needed=needing > 0, over=False
    )
    assert total.tolist() == [*sealed]
    assert check.result(total, wire, code) == (True, needing == 0)
    assert check.of("sum", total, wire) == -1
    assert not check.result(total, wire, code ^ 1)[0]
    assert not check.result(total, wire ^ 1, code)[0]
    assert not check.result(total, wire, code, overflow=True)[0]
    for other in (CheckLanes(workers, tree=1), CheckLanes(workers, KEY[::-1])):
        assert not other.result(total, wire, code)[0]


def total_of(check: CheckLanes, workers: int, wire: int, values: int = 5) -> NDArray[np.int32]:
    """The sum of what workers contribute, of whom the first needs the exponent."""
    total = np.zeros(LANES, np.int32)
    for worker in range(workers):
        own = np.full(LANES, values * (worker + 1), np.int32)
        check.of("protect", own, wire, worker, worker == 0)
        total += own
    return total


def test_p_is_a_prime_between_what_a_lane_changes_by_and_what_limbs_hold() -> None:
    assert 2**33 < P < 2**45
    assert all(pow(base, P - 1, P) == 1 for base in (2, 3, 5, 7, 11))
    assert all(P % divisor for divisor in range(3, 5_931_642, 2))


def test_any_bit_that_flips_is_found() -> None:
    check = CheckLanes(3)
    total = total_of(check, 3, 63)
    sealed = total.copy()
    check.of("seal", sealed, 63, 0, check.of("sum", total, 63))
    for lane in range(LANES):
        for bit in range(32):
            for lanes in (total, sealed):
                lanes.view(np.uint32)[lane] ^= np.uint32(1 << bit)
            assert check.of("sum", total, 63) == -1
            assert not check.result(sealed, 63, 0)[0]
            for lanes in (total, sealed):
                lanes.view(np.uint32)[lane] ^= np.uint32(1 << bit)
    assert check.of("sum", total, 63) == 1


@pytest.mark.parametrize("change", [P, 2**32 - 2 * P % 2**32, 1 << 15, 1, 2**31])
def test_lanes_that_are_changed_together_are_found(change: int) -> None:
    """Nothing public (P, the limbs' weights) makes changes cancel."""
    check = CheckLanes(3)
    total = total_of(check, 3, 64)
    for lane, other in [(0, 1), (0, VALUES), (3, VALUES + 1), (VALUES, VALUES + 1)]:
        changed = total.copy()
        changed.view(np.uint32)[[lane, other]] += np.array(
            [change % 2**32, -change % 2**32], np.uint32
        )
        assert check.of("sum", changed, 64) == -1


def test_a_sum_that_wrapped_around_does_not_fit() -> None:
    check = CheckLanes(2)
    total = total_of(check, 2, 7, values=2**30 - 1)
    assert check.of("sum", total, 7) == -1
    assert check.of("sum", total_of(check, 2, 7), 7) == 1


def test_pads_hide_what_the_lanes_would_tell_of_the_key() -> None:
    """A total's check number is not a known function of its values: else r follows from many."""
    for workers in (1, 2):
        totals = [total_of(CheckLanes(workers), workers, wire) for wire in (0, 63, 64, 2**32 - 1)]
        assert len({tuple(total[VALUES:].tolist()) for total in totals}) == 4


@settings(max_examples=examples(25, of=1000), deadline=None)
@given(st.lists(INT32, min_size=LANES, max_size=LANES), st.integers(1, 9), WIRE)
def test_lanes_of_any_content_are_no_sum_and_no_result(
    values: list[int], workers: int, wire: int
) -> None:
    check, reference = CheckLanes(workers), ReferenceCheckLanes(workers, KEY, 0, LANES)
    lanes = array(values)
    assert check.of("sum", lanes, wire) == -1
    assert not check.result(lanes, wire, 0)[0]
    assert not check.of("question", lanes, wire)
    check.of("seal_overflow", lanes, wire, 7)
    assert lanes.tolist() == [*reference.sealed(values, wire, 7, needed=True, over=True)]
    assert check.result(lanes, wire, 7, overflow=True) == (True, False)
    check.of("ask", lanes, wire)
    assert lanes.tolist() == [*reference.question(wire)]
    assert check.of("question", lanes, wire)


def test_pads_are_right_whatever_was_derived_before() -> None:
    """Lines are shared: by blocks, by workers, by results and questions."""
    check, reference = CheckLanes(70), ReferenceCheckLanes(70, KEY, 0, LANES)
    rng = np.random.default_rng(3)
    for _ in range(300):
        wire, worker = int(rng.integers(0, 300)), int(rng.integers(0, 70))
        lanes = np.zeros(LANES, np.int32)
        check.of("protect", lanes, wire, worker, False)
        number = reference.of_workers(worker, worker + 1, wire)
        assert lanes.tolist() == [*reference.put([0] * LANES, number)]
        check.of("ask", lanes, wire)
        assert check.of("question", lanes, wire)
        check.of("seal_overflow", lanes, wire, 0)
        assert check.result(lanes, wire, 0, overflow=True)[0]


def test_most_workers_and_extreme_lanes() -> None:
    workers = 65535
    check, reference = CheckLanes(workers, lanes=352), ReferenceCheckLanes(workers, KEY, 0, 352)
    for value in (-(2**31), 2**31 - 1):
        lanes = np.full(352, value, np.int32)
        number = reference.z * workers + reference.of_workers(0, workers, 5)
        lanes[-3:] = reference.put(lanes.tolist(), reference.dot(lanes.tolist()) + number)[-3:]
        assert check.of("sum", lanes, 5) == workers
        lanes[-3:] = value
        assert check.of("sum", lanes, 5) == -1
