"""Injects the faults of a schedule into a cluster in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.faults import Faults, Outage
from hopsum.simulation.soak.attacks import Attacker
from hopsum.simulation.soak.schedule import (
    EVERYWHERE,
    Attack,
    ClockDrift,
    ClockJump,
    DiskFault,
    DiskFaultKind,
    Fault,
    Noise,
)

Link = tuple[str, str]


class Injection:
    """Schedules faults as events of a cluster's queue. `attacker` sends forged frames."""

    def __init__(self, cluster: VirtualCluster, attacker: Attacker) -> None:
        self.injected: Counter[str] = Counter()
        """Faults injected so far, by kind."""
        self._cluster = cluster
        self._attacker = attacker
        self._noise: dict[Link, list[Noise]] = {}

    def plan(self, fault: Fault, began: float) -> None:
        """Schedule a fault at its time after `began`."""
        start = began + fault.start
        match fault:
            case Noise():
                self._at(start, lambda: self._set_noise(fault, on=True))
                self._at(began + fault.stop, lambda: self._set_noise(fault, on=False))
            case Outage():
                self._cluster.plan(fault.later(began))
                self._at(start, lambda: self._count(fault.trouble))
            case DiskFault():
                self._plan_disk(fault, start, began + fault.stop)
            case ClockJump():
                self._at(start, lambda: self._set_clock(fault.by))
            case ClockDrift():
                self._at(start, lambda: self._set_pace(fault))
            case Attack():
                self._attacker.plan(fault, began)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._cluster.queue.at(time, action)

    def _count(self, kind: str) -> None:
        self.injected[kind] += 1

    def count_frames(self) -> None:
        """Count the faults of frames, at the end."""
        channels = self._cluster.world.channels.values()
        for kind, number in (
            ("frames lost", sum(channel.lost for channel in channels)),
            ("frames delayed", sum(channel.delayed for channel in channels)),
            ("frames duplicated", sum(channel.duplicated for channel in channels)),
            ("frames forged", self._attacker.sent),
        ):
            if number:
                self.injected[kind] += number

    def _set_noise(self, noise: Noise, *, on: bool) -> None:
        channels = self._cluster.world.channels
        for (u, v), channel in channels.items():
            if noise.link not in (EVERYWHERE, f"{u}-{v}", f"{v}-{u}"):
                continue
            active = self._noise.setdefault((u, v), [])
            if on:
                active.append(noise)
            else:
                active.remove(noise)
            channel.faults = _together(active)

    def _plan_disk(self, fault: DiskFault, start: float, stop: float) -> None:
        cluster = self._cluster
        disk = cluster.disk

        def tear() -> None:
            self._count("disk torn")
            cluster.crash_controller_now()
            self._at(stop, cluster.start_controller)

        match fault.trouble:
            case DiskFaultKind.FULL:
                self._at(start, lambda: disk.fill(fault.room))
                self._at(start, lambda: self._count("disk full"))
                self._at(stop, disk.free)
            case DiskFaultKind.TORN:
                self._at(start, lambda: disk.tear(fault.room, tear))
                self._at(stop, disk.free)

    def _set_clock(self, by: float) -> None:
        self._count("clock set")
        self._cluster.clock_error += by

    def _set_pace(self, drift: ClockDrift) -> None:
        self._count("clock drift")
        self._cluster.drift(drift.host, drift.pace)


def _together(active: list[Noise]) -> Faults:
    """Return the combination of several noises: the worst of each kind."""

    def worst(name: str) -> float:
        return max((getattr(noise, name) for noise in active), default=0.0)

    return Faults(
        loss=worst("loss"),
        burst=max(1.0, worst("burst")),
        corrupt=worst("corrupt"),
        flip=worst("flip"),
        duplicate=worst("duplicate"),
        reorder=worst("reorder"),
        hold=worst("hold"),
    )
