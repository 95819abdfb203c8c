"""What can go wrong in a simulated network: faults of links and switches, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import InputError


class FaultError(InputError):
    """A fault that cannot be; the message says which value and what was expected."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The link between two nodes loses every frame from `start` to `stop`, seconds."""

    a: str
    b: str
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Frame number `frame` (from 0) that node `source` sends to its neighbour `target` vanishes."""

    source: str
    target: str
    frame: int


@dataclass(frozen=True, slots=True)
class Reboot:
    """A switch loses its registers and tables at `time` and is back after `downtime` seconds."""

    switch: str
    time: float
    downtime: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities a frame on every link, in each direction; and what happens when.

    `loss`: it vanishes, in runs of `burst` frames on average where that is above 1 (Gilbert's
    model: a link is good or bad, and loses every frame while it is bad). `corrupt`: a bit flips,
    the FCS is wrong, it is dropped at the far end (so it takes its time on the wire). `duplicate`:
    it arrives twice. `reorder`: it is held back by up to `hold` seconds, so that later ones
    overtake it.
    """

    loss: float = 0.0
    burst: float = 1.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    hold: float = 0.005
    cuts: tuple[Cut, ...] = ()
    reboots: tuple[Reboot, ...] = ()
    lost: tuple[Lost, ...] = ()

    def __post_init__(self) -> None:
        for name in ("loss", "corrupt", "duplicate", "reorder"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise FaultError(f"fault {name} {value}: expected a probability from 0 to 1")
        if not self.burst >= 1:
            raise FaultError(f"fault burst {self.burst}: expected 1 frame or more")
        if not self.hold >= 0:
            raise FaultError(f"fault hold {self.hold}: expected 0 s or more")

    @property
    def random(self) -> bool:
        """Whether any fault is drawn by chance."""
        return bool(self.loss or self.corrupt or self.duplicate or self.reorder)


class Trouble(StrEnum):
    """What can befall a cluster for a time, and what `Outage.what` names then."""

    SWITCH_DOWN = "switch down"
    """A switch's process is gone, with its tables and registers."""
    SWITCH_HANGS = "switch hangs"
    """It does nothing, and its connections stay open."""
    LINK_CUT = "link cut"
    """`a-b`: every frame is lost, and the ports know."""
    AGENT_DOWN = "agent down"
    """A host's agent process is gone."""
    CONTROLLER_DOWN = "controller down"
    """Nothing is named; its journal is kept."""
    PARTED = "parted"
    """No word gets through between the controller and a host or switch; neither gets an error."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Trouble with `what` from `start` to `stop`, seconds; with `stop` infinite, for good."""

    trouble: Trouble
    what: str
    start: float
    stop: float
