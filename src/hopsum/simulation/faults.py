"""Faults of links and switches in a simulated network, as data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from hopsum.network.model import Network, NetworkError
from hopsum.protocol.errors import InputError

CHANCES = ("loss", "corrupt", "flip", "duplicate", "reorder")
"""Fields of `Faults` that are probabilities."""


class FaultError(InputError):
    """An invalid fault; the message names the value and what was expected."""


@dataclass(frozen=True, slots=True)
class LinkCut:
    """The link between two nodes loses every frame from `start` to `stop`, seconds."""

    a: str
    b: str
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class LostFrame:
    """Frame number `frame` (from 0) that node `source` sends to its neighbour `target` is lost."""

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
    """Probabilities per frame on every link and direction, and scheduled faults.

    `loss`: the frame is lost; where `burst` is above 1, in bursts of that many frames on average
    (Gilbert's model: a link is good or bad, and loses every frame while it is bad). `corrupt`: a
    bit flips and the far end drops the frame because of its FCS (so it uses the link). `flip`: a
    bit of a hopsum frame's lanes flips where no FCS detects it, as in a network card's memory, and
    the frame arrives. `duplicate`: it arrives twice. `reorder`: it is delayed by up to `hold`
    seconds, so that later ones overtake it.
    """

    loss: float = 0.0
    burst: float = 1.0
    corrupt: float = 0.0
    flip: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    hold: float = 0.005
    cuts: tuple[LinkCut, ...] = ()
    reboots: tuple[Reboot, ...] = ()
    lost: tuple[LostFrame, ...] = ()

    def __post_init__(self) -> None:
        for name in CHANCES:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise FaultError(f"fault {name} {value}: expected a probability from 0 to 1")
        if not self.burst >= 1:
            raise FaultError(f"fault burst {self.burst}: expected 1 frame or more")
        if not self.hold >= 0:
            raise FaultError(f"fault hold {self.hold}: expected 0 s or more")

    @property
    def random(self) -> bool:
        """Return whether any fault is random."""
        return bool(self.loss or self.corrupt or self.flip or self.duplicate or self.reorder)


class OutageKind(StrEnum):
    """Kinds of outages of a cluster, with the meaning of `Outage.what`."""

    SWITCH_DOWN = "switch down"
    """A switch's process ends and loses its tables and registers."""
    SWITCH_HANGS = "switch hangs"
    """A switch's process hangs with its connections open."""
    LINK_CUT = "link cut"
    """`a-b`: every frame is lost, and the ports are down."""
    AGENT_DOWN = "agent down"
    """A host's agent process ends."""
    CONTROLLER_DOWN = "controller down"
    """The controller ends (`what` is empty); its journal is kept."""
    CONTROLLER_HANGS = "controller hangs"
    """The controller's process is stopped with its connections open (`what` is empty)."""
    PARTED = "parted"
    """All messages between the controller and a host or switch are lost, without an error."""
    MANAGEMENT_CUT = "management cut"
    """All messages between the controller and every host and switch are lost (`what` is empty)."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of `what` from `start` to `stop`, seconds; permanent with infinite `stop`."""

    trouble: OutageKind
    what: str
    start: float
    stop: float

    def later(self, seconds: float) -> Outage:
        """Return the same outage, shifted by seconds."""
        return replace(self, start=self.start + seconds, stop=self.stop + seconds)


_OUTAGE = re.compile(
    r"(?P<trouble>[a-z-]+):(?P<what>[^@]+)@(?P<start>[0-9.]{1,12})(-(?P<stop>[0-9.]{1,12}))?"
)
_OF_A_RUN = {
    trouble.replace(" ", "-"): trouble
    for trouble in (
        OutageKind.SWITCH_DOWN,
        OutageKind.SWITCH_HANGS,
        OutageKind.LINK_CUT,
        OutageKind.AGENT_DOWN,
    )
}
_KIND_OF_TARGET = {
    OutageKind.SWITCH_DOWN: "switch",
    OutageKind.SWITCH_HANGS: "switch",
    OutageKind.LINK_CUT: "link",
    OutageKind.AGENT_DOWN: "host",
    OutageKind.CONTROLLER_DOWN: "controller",
    OutageKind.CONTROLLER_HANGS: "controller",
    OutageKind.PARTED: "switch or host",
    OutageKind.MANAGEMENT_CUT: "management network",
}
OUTAGE_FORM = f"TROUBLE:WHAT@START[-STOP], with TROUBLE one of {', '.join(_OF_A_RUN)}"


def outage_from(text: str) -> Outage:
    """Return the outage of a text such as `link-cut:l1-s1@0.5-3`. Raises FaultError."""
    found = _OUTAGE.fullmatch(text)
    if found is None or found["trouble"] not in _OF_A_RUN:
        raise FaultError(f"outage {text!r:.80}: expected {OUTAGE_FORM}, as link-cut:l1-s1@0.5-3")
    try:
        start = float(found["start"])
        stop = math.inf if found["stop"] is None else float(found["stop"])
    except ValueError:
        raise FaultError(f"outage {text!r:.80}: expected seconds after the @, as 0.5-3") from None
    if not start < stop:
        raise FaultError(f"outage {text!r:.80}: expected an end after its start")
    return Outage(_OF_A_RUN[found["trouble"]], found["what"], start, stop)


def outage_targets(network: Network) -> dict[OutageKind, list[str]]:
    """Return the possible targets of each kind of outage in a network, as in `Outage.what`."""
    return {
        OutageKind.SWITCH_DOWN: [*network.switches],
        OutageKind.SWITCH_HANGS: [*network.switches],
        OutageKind.LINK_CUT: [f"{link.a}-{link.b}" for link in network.links],
        OutageKind.AGENT_DOWN: [*network.hosts],
        OutageKind.CONTROLLER_DOWN: [""],
        OutageKind.CONTROLLER_HANGS: [""],
        OutageKind.PARTED: [*network.switches, *network.hosts],
        OutageKind.MANAGEMENT_CUT: [""],
    }


def check_outage(network: Network, outage: Outage) -> None:
    """Raise FaultError if a network lacks what the outage names."""
    if outage.trouble is OutageKind.LINK_CUT:
        try:
            network.link_named(outage.what)
        except NetworkError as error:
            raise FaultError(f"outage: {error}") from None
        return
    names = outage_targets(network)[outage.trouble]
    if outage.what in names:
        return
    kind = _KIND_OF_TARGET[outage.trouble]
    raise FaultError(
        f"outage: {network.name} has no {kind} {outage.what!r:.40}; expected one of "
        f"{', '.join(names[:20])}"
    )
