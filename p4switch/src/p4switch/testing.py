"""A switch for unit tests of P4 programs: input packets, expected packets and entries.

The pytest plugin (`pytest_plugin`) provides it to tests; it also works without pytest.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import SupportsBytes

from p4switch.ir import Program
from p4switch.literals import parse_value
from p4switch.stf import Session, StfError, by_suffix, compare_packet, parse_lines
from p4switch.targets.v1model.engine import ControlError, CounterValue, Digest, Engine

PACKET_GAP_US = 1_000
"""Time between two packets, in microseconds on the switch's clock."""

Frame = str | bytes | SupportsBytes
"""A frame: bytes, anything that `bytes` accepts (such as a scapy packet), or hexadecimal digits."""


class Switch:
    """A v1model program on an engine, with a clock that only packets and `wait` advance."""

    def __init__(self, engine: Engine, traces: Sequence[str] = ()) -> None:
        """Use an engine; `traces` holds the texts of packets traced so far, if any."""
        self.engine = engine
        self.now_us = 0
        self._traces = traces
        self._shown = 0
        self._out: dict[int, deque[bytes]] = {}
        self._session = Session(engine)

    @property
    def program(self) -> Program:
        """Return the checked program."""
        return self.engine.program

    # --- packets

    def send(self, port: int, frame: Frame) -> None:
        """Receive a frame at a port. Output waits for `expect`."""
        self.now_us += PACKET_GAP_US
        self._shown = len(self._traces)
        for out_port, data in self.engine.process([(port, as_bytes(frame))], self.now_us):
            self._out.setdefault(out_port, deque()).append(data)

    def expect(self, port: int, frame: Frame | None = None) -> bytes:
        """Remove and return the next frame that left a port.

        `frame` is the whole expected frame: bytes, a scapy packet, or hexadecimal digits with `*`
        for any digit. AssertionError, with the path of the packet that was sent last, if it differs
        or there is none.
        """
        waiting = self._out.get(port)
        if not waiting:
            others = ", ".join(f"{p} ({len(q)})" for p, q in sorted(self._out.items()) if q)
            raise AssertionError(
                f"port {port}: nothing was sent; frames wait at ports: {others or 'none'}"
                + self._path()
            )
        received = waiting.popleft()
        if frame is not None:
            wanted = _pattern(frame)
            difference = compare_packet(f"{wanted}$", received)
            if difference is not None:
                raise AssertionError(f"port {port}: {difference}{self._path()}")
        return received

    def expect_nothing(self, port: int | None = None) -> None:
        """Check that no frame waits at a port (default: at any). AssertionError if one does."""
        for number, waiting in sorted(self._out.items()):
            if waiting and port in (None, number):
                frames = "".join(f"\n  {frame.hex()}" for frame in waiting)
                raise AssertionError(
                    f"port {number}: {len(waiting)} frames were sent that nothing expected:"
                    f"{frames}{self._path()}"
                )

    def take_all(self, port: int | None = None) -> list[bytes]:
        """Remove and return all frames that left a port (default: all ports, port by port)."""
        ports = sorted(self._out) if port is None else [port]
        return [frame for number in ports for frame in self._out.pop(number, ())]

    def wait(self, seconds: float) -> None:
        """Advance the switch's clock, for meters and idle timeouts."""
        self.now_us += round(seconds * 1e6)

    def _path(self) -> str:
        """Return the trace of the last packet sent, if the engine traces."""
        fresh = self._traces[self._shown :]
        return "".join(f"\n{text}" for text in fresh)

    # --- tables

    def add(
        self,
        table: str,
        keys: Mapping[str, object],
        action: str,
        *,
        priority: int | None = None,
        **data: object,
    ) -> None:
        """Add an entry; keys that are not given match anything.

        Names may be suffixes of full ones. Keys and data are numbers, addresses
        (`10.0.0.1`, `2001:db8::1`, `02:00:00:00:00:01`) or their text in STF; prefixes are
        `10.0.0.0/8`, ternary matches `0x0800&&&0xff00`, ranges `1..9`. Of two matching entries
        that with the larger `priority` wins. ValueError if the switch refuses it.
        """
        rank = "" if priority is None else f"{priority} "
        matches = " ".join(f'"{name}":{_match(value)}' for name, value in keys.items())
        self.control(f'add "{table}" {rank}{matches} {_call(action, data)}')

    def set_default(self, table: str, action: str, **data: object) -> None:
        """Set a table's default action. ValueError if the switch refuses it."""
        self.control(f'setdefault "{table}" {_call(action, data)}')

    def control(self, commands: str) -> None:
        """Run lines of STF (`p4switch.stf`): `mirroring_add 5 3`, `remove all`, ...

        ValueError, with the line, for one that is invalid or refused; AssertionError if
        `check_counter` or `check_register` fails.
        """
        lines = parse_lines(commands, "control")
        for line in lines:
            if line.command in ("packet", "expect"):
                raise ValueError(f"{line.where}: use `send` and `expect` for packets")
        try:
            self._session.run(lines)
        except StfError as error:
            raise ValueError(f"{error}: {commands.strip()}") from None
        failures, self._session.failures = self._session.failures, []
        if failures:
            raise AssertionError("\n".join(failures))

    # --- state

    def _extern(self, name: str, kind: str) -> str:
        names = [x.name for x in self.program.externs if x.extern == kind]
        try:
            return by_suffix(name, names, kind)
        except StfError as error:
            raise ValueError(str(error)) from None

    def register(self, name: str, index: int) -> int:
        """Return a register's cell, unsigned. ValueError for an unknown one."""
        try:
            return self.engine.read_register(self._extern(name, "register"), index)
        except ControlError as error:
            raise ValueError(str(error)) from None

    def set_register(self, name: str, index: int, value: int) -> None:
        """Set a register's cell. ValueError for an unknown one."""
        try:
            self.engine.write_register(self._extern(name, "register"), index, value)
        except ControlError as error:
            raise ValueError(str(error)) from None

    def counter(self, name: str, index: int) -> CounterValue:
        """Return the value of a counter's cell. ValueError for an unknown one."""
        try:
            return self.engine.read_counter(self._extern(name, "counter"), index)
        except ControlError as error:
            raise ValueError(str(error)) from None

    def digests(self) -> list[Digest]:
        """Remove and return the digests sent since the last call."""
        return self.engine.take_digests()


def as_bytes(frame: Frame) -> bytes:
    """Return a frame's bytes. ValueError for text that is not hexadecimal."""
    if not isinstance(frame, str):
        return bytes(frame)
    try:
        return bytes.fromhex(frame)
    except ValueError:
        raise ValueError(f"a frame as text is hexadecimal digits, not {frame!r:.80}") from None


def _pattern(frame: Frame) -> str:
    if isinstance(frame, str):
        return "".join(frame.split()).removesuffix("$")
    return bytes(frame).hex()


def _call(action: str, data: Mapping[str, object]) -> str:
    arguments = ", ".join(f"{name}:{_number(value)}" for name, value in data.items())
    return f'"{action}"({arguments})'


def _match(value: object) -> str:
    """Return a key's match in STF form: numbers and addresses around `/`, `&&&` or `..`."""
    if not isinstance(value, str):
        return _number(value)
    parts = re.split(r"\s*(/|&&&|\.\.)\s*", value)
    return "".join(part if n % 2 else _number(part) for n, part in enumerate(parts))


def _number(value: object) -> str:
    """Return a number, an address or a text of a number in STF form."""
    if isinstance(value, int):
        return str(int(value))
    text = str(value).strip()
    if "." in text or ":" in text:
        try:
            return f"0x{parse_value(text):x}"
        except ValueError:
            raise ValueError(f"{text!r} is neither a number nor an address") from None
    return text
