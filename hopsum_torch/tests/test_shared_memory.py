"""Memory that calls take and give back."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from hopsum_torch.shared_memory import LEAST_BYTES, Memories, Memory


def test_another_mapping_sees_the_same_and_it_cannot_shrink() -> None:
    other: list[mmap.mmap] = []

    def announce(memory: Memory) -> None:
        assert fcntl.fcntl(memory.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(memory.descriptor, 1)
        other.append(mmap.mmap(memory.descriptor, memory.size))

    memory = Memories(announce).take(10_000)
    assert memory.size == 1 << 14
    memory.bytes[:4].view(np.int32)[0] = 7
    assert np.frombuffer(other[0], np.int32)[0] == 7


def test_pieces_are_used_again() -> None:
    announced: list[int] = []
    memories = Memories(lambda memory: announced.append(memory.number))
    first, second = memories.take(1), memories.take(LEAST_BYTES)
    assert (first.size, second.size) == (LEAST_BYTES, LEAST_BYTES)
    memories.give_back(first)
    assert memories.take(0) is first
    assert memories.take(LEAST_BYTES + 1).size == 2 * LEAST_BYTES
    assert announced == [0, 1, 2]
