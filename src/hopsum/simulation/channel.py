"""One direction of a link: a queue, a rate, a latency and faults (compiled/links.c)."""

from __future__ import annotations

import ctypes
import random
from typing import Self

from hopsum.protocol.tos import LEVELS
from hopsum.simulation.compiled.library import ChannelView, library
from hopsum.simulation.faults import CHANCES, Faults


class Channel(ChannelView):
    """One direction of a link. A transmission is not interrupted.

    Counters: `bytes`, `frames`, `lost`, `delayed`, `flipped`, `duplicated`, `queue_drops`. `cut`:
    whether every frame is lost at present. `ends`: names of the nodes.
    """

    ends: tuple[str, str]
    _seed: str
    _faults: Faults
    _kept: tuple[object, ...]

    @classmethod
    def create(
        cls,
        ends: tuple[str, str],
        address: int,
        number: int,
        port: int,
        rate: float | None,
        latency: float,
        faults: Faults,
        seed: str,
        *,
        fair: bool,
    ) -> Self:
        """Set up a channel at an address, to a `port`. `fair`: flows take turns in its queues."""
        made = cls.from_address(address)
        made.ends = ends
        made.number, made.port = number, port
        made.rate, made.latency = rate or 0.0, latency
        made.queues, made.fair = rate is not None, fair
        made._seed = seed
        cuts = [(cut.start, cut.stop) for cut in faults.cuts if {cut.a, cut.b} == set(ends)]
        lost = [lost.frame for lost in faults.lost if (lost.source, lost.target) == ends]
        cut_times = (ctypes.c_double * (2 * len(cuts)))(*[time for cut in cuts for time in cut])
        lost_frames = (ctypes.c_uint64 * len(lost))(*lost)
        made._kept = cut_times, lost_frames
        made.cuts, made.losses = len(cuts), len(lost)
        made.cut_times = ctypes.addressof(cut_times)
        made.lost_frames = ctypes.addressof(lost_frames)
        made.faults = faults
        return made

    @property
    def address(self) -> int:
        """Of `struct channel`."""
        return ctypes.addressof(self)

    @property
    def faults(self) -> Faults:
        """Random faults of its frames at present."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        if faults.random and self._seed:
            _, state, _ = random.Random(self._seed).getstate()
            ctypes.memmove(self.random, (ctypes.c_uint32 * len(state))(*state), 4 * len(state))
            self._seed = ""
        for name in (*CHANCES, "burst", "hold"):
            setattr(self, name, getattr(faults, name))
        self.faulty = faults.random
        self._faults = faults

    def depths(self) -> list[int]:
        """Return the number of waiting frames by the priority of v1model."""
        return list((ctypes.c_uint32 * LEVELS).from_address(self.waiting))

    def transmit(self, frame: bytes) -> None:
        """Queue a frame; it arrives later, or never."""
        library().channel_transmit(self.address, frame, len(frame))
