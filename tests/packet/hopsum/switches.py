"""One way to drive a switch that runs hopsum.p4, on any executor.

`Switch` is what the tests need; `EngineSwitch` runs one of the executors in this process,
`bmv2.Bmv2Switch` a simple_switch_grpc; the `ReferenceSwitch` of `tests.oracles` is the oracle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hopsum.controller.dataplane.rules import clone_session
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import HOPS_DEFAULT
from p4switch.backends.native import build as native
from p4switch.frontend.program import compile_file
from p4switch.ir import ActionChoice, Program, Table
from p4switch.packet_io.compile import NoCompilerError
from p4switch.stf import engine_factory
from p4switch.targets.v1model.engine import (
    CloneSession,
    Engine,
    EngineOptions,
    KeyMatch,
    Replica,
    TableEntry,
)
from tests.packet.hopsum.packets import check_frame, is_hopsum
from tests.support.paths import HOPSUM_P4

CPU_PORT = 510
PORTS = range(1, 9)
"""The ports that the tests use (BMv2 has an interface behind each)."""

Frame = tuple[int, bytes]
"""A port and what passes it."""
Match = int | tuple[int, int]
"""A key's value, or (value, prefix length)."""


@dataclass(frozen=True)
class Build:
    """Compile-time options of hopsum.p4."""

    lanes: int = 32
    per_lane: bool = False
    slots: int = 64
    max_hops: int = HOPS_DEFAULT

    @property
    def defines(self) -> dict[str, str]:
        """For -D."""
        defines = {"LANES": str(self.lanes), "SLOTS": str(self.slots), "CPU_PORT": str(CPU_PORT)}
        if self.max_hops != HOPS_DEFAULT:
            defines["MAX_HOPS"] = str(self.max_hops)
        if self.per_lane:
            defines["PER_LANE_REGISTERS"] = "1"
        return defines

    def __str__(self) -> str:
        return f"{'lane' if self.per_lane else 'wide'}{self.lanes}hops{self.max_hops}"


class Switch(ABC):
    """A switch under test."""

    build: Build

    @abstractmethod
    def forward(self, packets: Iterable[Frame]) -> list[Frame]:
        """Take frames in at ports; return what leaves, sorted by port, in order a port.

        At CPU_PORT frames begin with the packet-out or packet-in header. On BMv2 frames of
        different ports may overtake each other.
        """

    @abstractmethod
    def insert(
        self, table: str, matches: Mapping[str, Match], action: str, **arguments: int
    ) -> None:
        """Add a table entry, all by name."""

    @abstractmethod
    def delete(self, table: str, matches: Mapping[str, Match]) -> None:
        """Remove a table entry."""

    @abstractmethod
    def multicast(self, group: int, ports: Iterable[int]) -> None:
        """Make a multicast group."""

    @abstractmethod
    def outcomes(self) -> list[int]:
        """The cells of the counter."""

    def send(self, port: int, *frames: bytes) -> list[Frame]:
        """Take frames in at one port, see `send_all`."""
        return self.send_all([(port, frame) for frame in frames])

    def send_all(self, packets: Iterable[Frame]) -> list[Frame]:
        """`forward`, and check every hopsum frame that leaves by the rules of IP."""
        out = self.forward(packets)
        for left_at, frame in out:
            if left_at != CPU_PORT and is_hopsum(frame):
                check_frame(frame)
        return out

    def counted(self) -> dict[Outcome, int]:
        """The outcomes that happened so far."""
        return {Outcome(i): n for i, n in enumerate(self.outcomes()) if n}

    # --- a job's entries

    def admit_children(
        self,
        port: int,
        children: int,
        *,
        fan_in: int = 2,
        job: int = 1,
        tree: int = 0,
        base: int = 0,
        mask: int = 3,
    ) -> None:
        """Let children (a bitmap) of a job arrive at a port."""
        self.insert(
            "admission",
            {"job": job, "tree": tree, "ingress_port": port},
            "admit_children",
            slot_base=base,
            window_mask=mask,
            fan_in=fan_in,
            children=children,
        )

    def admit_results(
        self, port: int, *, job: int = 1, tree: int = 0, base: int = 0, mask: int = 3
    ) -> None:
        """Let a job's results arrive at a port."""
        self.insert(
            "admission",
            {"job": job, "tree": tree, "ingress_port": port},
            "admit_results",
            slot_base=base,
            window_mask=mask,
        )


@cache
def built(build: Build) -> tuple[Program, Path | None]:
    """hopsum.p4, checked, and its shared object if there is a C compiler: from p4switch's cache."""
    try:
        return native.load(HOPSUM_P4, defines=build.defines)
    except NoCompilerError:
        return compile_file(HOPSUM_P4, defines=build.defines), None


class EngineSwitch(Switch):
    """An executor in this process."""

    def __init__(self, executor: str, build: Build, seed: int = 1) -> None:
        self.build = build
        self.program, shared = built(build)
        options = EngineOptions(cpu_port=CPU_PORT, queue_depth=1 << 20, seed=seed)
        factory: Callable[..., Engine] = engine_factory(executor)
        compiled = {"compiled": shared} if executor == "native" else {}
        self.engine = factory(self.program, options, **compiled)
        for port in PORTS:
            self.engine.set_clone_session(clone_session(port), CloneSession((Replica(port),)))

    def forward(self, packets: Iterable[Frame]) -> list[Frame]:
        """See `Switch`."""
        return sorted(self.engine.process(list(packets)), key=lambda packet: packet[0])

    def insert(
        self, table: str, matches: Mapping[str, Match], action: str, **arguments: int
    ) -> None:
        """See `Switch`."""
        found = self._table(table)
        names = [choice.action.name.rpartition(".")[2] for choice in found.actions]
        index = names.index(action)
        data = tuple(arguments.pop(p.name) for p in found.actions[index].action.data)
        assert not arguments, f"{action} has no parameters {sorted(arguments)}"
        self.engine.insert_entry(
            found.name, TableEntry(self._matches(found, matches), ActionChoice(index, data))
        )

    def delete(self, table: str, matches: Mapping[str, Match]) -> None:
        """See `Switch`."""
        found = self._table(table)
        self.engine.delete_entry(found.name, TableEntry(self._matches(found, matches), None))

    def multicast(self, group: int, ports: Iterable[int]) -> None:
        """See `Switch`."""
        replicas = [Replica(port, instance) for instance, port in enumerate(ports, 1)]
        self.engine.set_multicast_group(group, replicas)

    def outcomes(self) -> list[int]:
        """See `Switch`."""
        return [self.engine.read_counter("outcomes", i).packets for i in range(len(Outcome))]

    def _table(self, name: str) -> Table:
        return next(t for t in self.program.tables if t.name.rpartition(".")[2] == name)

    def _matches(self, table: Table, matches: Mapping[str, Match]) -> tuple[KeyMatch, ...]:
        assert {key.name for key in table.keys} == set(matches), f"keys of {table.name}"
        made = []
        for key in table.keys:
            match = matches[key.name]
            if isinstance(match, tuple):
                made.append(KeyMatch(value=match[0], prefix_length=match[1]))
            else:
                made.append(KeyMatch(value=match))
        return tuple(made)
