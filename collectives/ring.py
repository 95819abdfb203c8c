"""Ring all-reduce: 2 (n - 1) steps of 1/n of the tensor (Patarasuk and Yuan, JPDC 2009)."""

from __future__ import annotations

from collectives.schedule import Schedule, Transfer

SEGMENT_BYTES = 1448
"""Data in a full TCP segment, with Linux's timestamp option and an MTU of 1500."""
SEGMENT_HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP headers of a segment; the length of an acknowledgement."""


def chunk(elements: int, ranks: int, index: int) -> tuple[int, int]:
    """The range [start, stop) of part `index` of `ranks` nearly equal parts."""
    return elements * index // ranks, elements * (index + 1) // ranks


def ring_all_reduce(ranks: int, elements: int) -> Schedule:
    """Reduce-scatter, then all-gather, around the ring 0, 1, ..., ranks - 1.

    Every rank sends 2 (ranks - 1) / ranks of the tensor.
    """
    transfers = []
    for step in range(2 * (ranks - 1)):
        gather = step >= ranks - 1
        for rank in range(ranks):
            start, stop = chunk(elements, ranks, (rank - step + gather * ranks) % ranks)
            if start < stop:
                transfers.append(
                    Transfer(step, rank, (rank + 1) % ranks, start, stop, combine=not gather)
                )
    return Schedule(ranks, elements, tuple(transfers))
