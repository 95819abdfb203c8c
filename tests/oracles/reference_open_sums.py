"""Open sums of a server: unfinished fragments and their contributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import Frames, every, some
from hopsum.host_agent.history import EMPTY, History, is_newer
from hopsum.host_agent.reduction import combine


class OpenSums:
    """State per slot of a window: the fragment that is being summed, and its contributions.

    That is sums of children's subtrees, which `held` (slots, children) shows, and `singles` of
    workers that bypassed the switches. `covered`: how many workers both are of. `sum`: of the
    children, once one has `started` it.
    """

    def __init__(self, window: int, lanes: int) -> None:
        self.fragment = np.full(window, EMPTY, dtype=np.int64)
        self.since = np.zeros(window)
        self.held = np.zeros((window, 0), dtype=np.bool_)
        self.doubted = np.zeros(window, dtype=np.bool_)
        """Whether check lanes have shown the fragment's sum to be wrong: only singles count."""
        self.covered = np.zeros(window, dtype=np.int64)
        self.flags = np.zeros(window, dtype=np.uint8)
        self.code = np.zeros(window, dtype=np.uint8)
        self.reduction = np.zeros(window, dtype=np.uint8)
        self.singles: dict[int, dict[int, NDArray[np.int32]]] = {}
        self.started = np.zeros(window, dtype=np.bool_)
        self.sum = np.zeros((window, lanes), dtype=np.int32)

    @property
    def children(self) -> int:
        """Number of children."""
        return self.held.shape[1]

    def restart(self, groups: Sequence[Sequence[int]]) -> None:
        """Drop everything; from now on child i covers the workers `groups[i]`."""
        self._groups = groups
        self.held = np.zeros((len(self.fragment), len(groups)), dtype=np.bool_)
        self.fragment[:] = EMPTY
        self.doubted[:] = False
        self.singles.clear()

    def open(
        self,
        fragments: NDArray[np.int64],
        slots: NDArray[np.int64],
        reductions: NDArray[np.uint8],
        history: History,
        now: float,
    ) -> tuple[NDArray[np.bool_], int]:
        """Open slots for newer fragments; return which fragments (n,) are those of their slots now.

        A fragment that is not newer than its slot's or than the history is one whose result some
        worker has, or that this batch has just finished. Also returns how many have another
        reduction than their slot's.
        """
        held = self.fragment[slots]
        same: NDArray[np.bool_] = held == fragments
        agrees: NDArray[np.bool_] = same & (self.reduction[slots] == reductions)
        if every(agrees):
            return agrees, 0
        newer = ~same & ((held == EMPTY) | is_newer(fragments, held))
        newer &= history.is_older(slots, fragments)
        opened = slots[newer]
        self.fragment[opened] = fragments[newer]
        self.since[opened] = now
        self.doubted[opened] = False
        self.reduction[opened] = reductions[newer]
        self._empty(opened)
        return agrees | newer, int((same & ~agrees).sum())

    def add(
        self,
        slots: NDArray[np.int64],
        children: NDArray[np.int64],
        weights: NDArray[np.int64],
        values: NDArray[np.int32],
        flags: NDArray[np.uint8],
        codes: NDArray[np.uint8],
    ) -> None:
        """Add the sums of children's subtrees, each slot once. Changes `flags`."""
        empty = ~self.started[slots]
        if every(empty):
            self.sum[slots] = values
        elif not some(empty):
            total, wrapped = combine(
                self.sum[slots], values.astype(np.int32), self.reduction[slots]
            )
            self.sum[slots] = total
            flags |= wrapped
        else:
            into = slots[~empty]
            total, wrapped = combine(
                self.sum[into], values[~empty].astype(np.int32), self.reduction[into]
            )
            self.sum[into] = total
            flags[~empty] |= wrapped
            self.sum[slots[empty]] = values[empty]
        self.held[slots, children] = True
        self.started[slots] = True
        self.covered[slots] += weights
        self.flags[slots] |= flags
        self.code[slots] = np.maximum(self.code[slots], codes)

    def drop_covered(self, slots: NDArray[np.int64], children: NDArray[np.int64]) -> None:
        """Drop the singles of workers that arriving sums cover."""
        for slot, child in zip(slots.tolist(), children.tolist(), strict=True):
            held = self.singles.get(slot)
            if held is None:
                continue
            for worker in self._groups[child]:
                if held.pop(worker, None) is not None:
                    self.covered[slot] -= 1

    def add_single(
        self, slot: int, worker: int, values: NDArray[np.int32], flags: int, code: int
    ) -> None:
        """Keep a worker's single contribution, if nothing of that worker has arrived yet."""
        self.singles.setdefault(slot, {})[worker] = values
        self.covered[slot] += 1
        self.flags[slot] |= flags
        self.code[slot] = max(int(self.code[slot]), code)

    def take_singles(self, slots: NDArray[np.int64]) -> None:
        """Add the singles of slots to their sums, in the order of workers."""
        for slot in self.singles.keys() & set(slots.tolist()) if self.singles else ():
            for _, values in sorted(self.singles[slot].items()):
                if self.started[slot]:
                    row = slice(slot, slot + 1)
                    total, wrapped = combine(
                        self.sum[row].copy(), values[None], self.reduction[row]
                    )
                    self.sum[slot] = total[0]
                    self.flags[slot] |= wrapped[0]
                else:
                    self.sum[slot] = values
                self.started[slot] = True

    def raw(self, slots: NDArray[np.int64]) -> Frames:
        """Return the sums of slots, as on the wire."""
        return self.sum[slots].astype(">i4").view(np.uint8)

    def doubt(self, slots: NDArray[np.int64]) -> None:
        """Drop the sums of slots: check lanes have shown them to be wrong."""
        self.doubted[slots] = True
        self._empty(slots)

    def _empty(self, slots: NDArray[np.int64]) -> None:
        self.held[slots] = False
        self.started[slots] = False
        self.covered[slots] = 0
        self.flags[slots] = 0
        self.code[slots] = 0
        if self.singles:
            for slot in slots.tolist():
                self.singles.pop(slot, None)

    def close(self, slots: NDArray[np.int64], fragments: NDArray[np.int64]) -> None:
        """Close slots whose fragments are finished, or older than finished ones."""
        self.doubted[slots] = False
        held = self.fragment[slots]
        over = slots[(held != EMPTY) & ~is_newer(held, fragments)]
        self.fragment[over] = EMPTY
        if self.singles:
            for slot in over.tolist():
                self.singles.pop(slot, None)

    def heard(self, slot: int) -> set[int]:
        """Return the workers whose contributions to a slot's fragment have arrived."""
        heard = set(self.singles.get(slot, ()))
        for child in np.flatnonzero(self.held[slot]).tolist():
            heard.update(self._groups[child])
        return heard

    def oldest(self) -> int | None:
        """Return the slot of the fragment that was opened first; None: none is open."""
        opened = np.flatnonzero(self.fragment != EMPTY)
        return int(opened[np.argmin(self.since[opened])]) if len(opened) else None
