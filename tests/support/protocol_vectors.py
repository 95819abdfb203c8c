"""The test vectors of docs/protocol.md: frames in hex with their fields."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopsum.protocol.wire import Address, Flag, Header, Hop, Kind, Reduction, Width, carries_lanes
from tests.oracles.reference_values import packed
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "protocol.md"
LANES = 32


@dataclass(frozen=True)
class Vector:
    """A frame, and what the page says is in it."""

    name: str
    source: Address
    destination: Address
    header: Header
    stack: tuple[Hop, ...]
    lanes: tuple[int, ...]
    values: tuple[int, ...]
    """What is in the lanes."""
    tos: int
    frame: bytes


def blocks(kind: str) -> list[tuple[str, list[str]]]:
    """The fenced blocks of one kind: what follows the kind, and the lines."""
    found = re.findall(rf"^```{kind} ?(.*?)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    return [(name, body.splitlines()) for name, body in found]


def fields_of(lines: list[str]) -> dict[str, str]:
    """`key: value` lines as a mapping."""
    parts = (line.partition(": ") for line in lines)
    return {key: value for key, colon, value in parts if colon}


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose heading line begins like this."""
    text = DOCUMENT.read_text()
    body = text[text.index(f"\n| {heading}") + 1 :].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    return rows[2:]


def read_vectors() -> dict[str, Vector]:
    """All vectors of the page, by name."""
    return {name: _vector(name, lines) for name, lines in blocks("vector")}


def _vector(name: str, lines: list[str]) -> Vector:
    fields = fields_of(lines)
    flags = Flag(0)
    for flag in fields["flags"].split("+"):
        flags |= Flag[flag] if flag != "none" else Flag(0)
    numbers = {
        key: int(fields[key])
        for key in ("exponent", "job", "tree", "epoch", "worker", "weight", "fragment")
    }
    numbers["sequence"] = int(fields.get("sequence", 0))
    width = Width[f"WIDTH_{fields.get('width', '32')}"]
    kind, reduction = Kind[fields["kind"]], Reduction[fields["reduction"]]
    stack = tuple(_hop(line) for line in lines if line.startswith("hop: "))
    of_sum = kind is Kind.CONTRIBUTION or (kind is Kind.REQUEST and bool(stack))
    count = LANES * width.per_lane if carries_lanes(reduction, up=of_sum) else 0
    given = tuple(int(value) for value in fields.get("lanes", "").split())
    values = given + (0,) * (count - len(given))
    return Vector(
        name,
        _address(fields["source"]),
        _address(fields["destination"]),
        Header(
            kind=kind,
            flags=flags,
            reduction=reduction,
            width=width,
            **numbers,
        ),
        stack,
        packed(values, width),
        values,
        int(fields.get("tos", "0"), 0),
        bytes.fromhex("".join(line.strip() for line in lines if line.startswith("  "))),
    )


def _address(text: str) -> Address:
    mac, ip = text.split()
    return Address(bytes.fromhex(mac.replace(":", "")), bytes(map(int, ip.split("."))))


def _hop(line: str) -> Hop:
    values = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}
    return Hop(
        bool(values["aggregate"]),
        bool(values["clear"]),
        values["child"],
        values["fan_in"],
        values["port"],
    )
