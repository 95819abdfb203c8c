"""The native engine against the interpreter: same packets, same tables, same everything."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_file
from p4switch.ir import ActionChoice, Program, Table
from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
    Engine,
    EngineOptions,
    KeyMatch,
    Packet,
    Replica,
    TableEntry,
)
from p4switch.targets.v1model.matches import match_keys, needs_priority, scalar_width
from tests.support.paths import PROGRAMS
from tests.support.program_parts import Part, program_of_parts
from tests.support.search import examples

NAMES = sorted(p.stem for p in PROGRAMS.glob("*.p4") if ") main;" in p.read_text("utf-8"))
CELLS = 64
OPTIONS = EngineOptions(seed=3, packet_budget=400)


@cache
def program_of(name: str) -> Program:
    return compile_file(PROGRAMS / f"{name}.p4")


@cache
def sample_frames(name: str) -> tuple[bytes, ...]:
    """Frames that the program's STF file sends: most random bytes end in the parser."""
    path = PROGRAMS / f"{name}.stf"
    if not path.exists():
        return (b"",)
    found = re.findall(r"^\s*packet\s+\d+\s+([0-9a-fA-F ]+)", path.read_text(), re.MULTILINE)
    return (b"", *(bytes.fromhex(text.replace(" ", "")) for text in found))


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[str, Engine, Engine]]:
    """A program's name, and the same program in both engines."""
    program = program_of(request.param)
    native = NativeEngine(program, OPTIONS)
    yield request.param, Interpreter(program, OPTIONS), native
    native.close()


def state_of(engine: Engine) -> list[object]:
    """Everything that can be read from outside."""
    state: list[object] = [engine.statistics()]
    readers: dict[str, Callable[[str, int], object]] = {
        "register": engine.read_register,
        "counter": engine.read_counter,
    }
    for instance in engine.program.externs:
        read = readers.get(instance.extern)
        if read is not None:
            size = min(int(instance.arguments[0]), CELLS)
            state.append([read(instance.name, index) for index in range(size)])
    for table in engine.program.tables:
        if table.counters:
            entries = engine.entries(table.name)
            state.append([engine.read_direct_counter(table.name, entry) for entry in entries])
    return state


def random_match(kind: str, width: int, rng: random.Random) -> KeyMatch:
    full = (1 << width) - 1
    value = rng.choice((0, full, rng.getrandbits(width), rng.getrandbits(width) & 0xFF))
    if kind != "exact" and rng.random() < 0.2:
        return KeyMatch(any=True)
    if kind == "lpm":
        length = rng.randint(0, width)
        return KeyMatch(value & ~(full >> length), prefix_length=length)
    if kind == "ternary":
        mask = rng.choice((full, rng.getrandbits(width), 0xFF & full))
        return KeyMatch(value & mask, mask=mask)
    if kind == "range":
        other = rng.getrandbits(width)
        return KeyMatch(min(value, other), high=max(value, other))
    return KeyMatch(value)


def random_entry(table: Table, rng: random.Random) -> TableEntry:
    index = rng.randrange(len(table.actions))
    widths = [scalar_width(p.variable.type) for p in table.actions[index].action.data]
    return TableEntry(
        tuple(random_match(key.match_kind, key.width, rng) for key in match_keys(table)),
        ActionChoice(index, tuple(rng.choice((rng.getrandbits(w), 1)) for w in widths)),
        rng.randint(1, 9) if needs_priority(table) else 0,
    )


def attempt(engine: Engine, change: str, table: str, entry: TableEntry) -> str | None:
    """The error of what was refused."""
    try:
        getattr(engine, change)(table, entry)
    except ControlError as error:
        return str(error)
    return None


def configure(engines: tuple[Engine, ...], rng: random.Random) -> None:
    """Random entries, groups and sessions, the same everywhere."""
    for table in engines[0].program.tables:
        if not match_keys(table):
            continue
        for _ in range(8):
            entry = random_entry(table, rng)
            change = rng.choice(("insert_entry", "insert_entry", "modify_entry", "delete_entry"))
            assert len({attempt(engine, change, table.name, entry) for engine in engines}) == 1
    for engine in engines:
        for number in range(1, 8):
            replicas = [Replica(port, port * number) for port in range(number % 4)]
            engine.set_multicast_group(number, replicas)
            engine.set_clone_session(number, CloneSession(tuple(replicas), number % 2 * 20))


def random_frame(samples: tuple[bytes, ...], rng: random.Random) -> bytes:
    frame = bytearray(rng.choice(samples))
    if rng.random() < 0.3:
        frame = bytearray(rng.randbytes(rng.choice((0, 1, 5, 14, 20, 34, 60, 200))))
    for _ in range(rng.randint(0, 4) if frame else 0):
        frame[rng.randrange(len(frame))] = rng.choice((0, 1, 255, rng.getrandbits(8)))
    if rng.random() < 0.3:
        del frame[rng.randint(0, len(frame)) :]
    if rng.random() < 0.4:
        frame += rng.randbytes(rng.randint(0, 30))
    return bytes(frame)


@pytest.mark.slow
def test_programs_behave_alike(pair: tuple[str, Engine, Engine]) -> None:
    name, reference, native = pair
    rng = random.Random(name)
    configure((reference, native), rng)
    for step in range(60):
        batch: list[Packet] = [
            (rng.randint(0, 4), random_frame(sample_frames(name), rng))
            for _ in range(rng.randint(1, 6))
        ]
        now = step * 1000
        assert native.process(batch, now) == reference.process(batch, now)
        assert native.take_digests() == reference.take_digests()
    assert state_of(native) == state_of(reference)


TABLE = """
    direct_counter(CounterType.packets) hits#;
    table t# {{
        key = {{ {uses} }}
        actions = {{ to; }}
        default_action = to(510);
        counters = hits#;
        size = 64;
    }}
"""

TABLES = (
    (("exact", 8),),
    (("exact", 9), ("exact", 48), ("exact", 16)),
    (("exact", 128),),
    (("exact", 33), ("exact", 33)),
    (("lpm", 32),),
    (("lpm", 8),),
    (("exact", 12), ("lpm", 128)),
    (("ternary", 4), ("exact", 3)),
    (("ternary", 32), ("ternary", 32), ("exact", 9)),
    (("ternary", 200),),
    (("range", 16),),
    (("range", 6), ("ternary", 5)),
    (("range", 100), ("lpm", 32), ("range", 70)),
    (("optional", 9), ("optional", 32)),
)


@cache
def tables_program() -> Program:
    """Return a program with all TABLES, of which a frame's first byte chooses one."""
    parts = []
    for keys in TABLES:
        padding = -sum(width for _, width in keys) % 8 or 8
        fields = " ".join(f"bit<{width}> k{i};" for i, (_, width) in enumerate(keys))
        uses = " ".join(f"h.x.k{i} : {kind};" for i, (kind, _) in enumerate(keys))
        parts.append(
            Part(f"{fields} bit<{padding}> padding;", TABLE.format(uses=uses), "t#.apply();")
        )
    return program_of_parts(parts)


def packed(keys: tuple[tuple[str, int], ...], values: list[int]) -> bytes:
    number = total = 0
    for (_, width), value in zip(keys, values, strict=True):
        number, total = number << width | value, total + width
    padding = -total % 8 or 8
    return (number << padding).to_bytes((total + padding) // 8, "big")


@pytest.mark.slow
@pytest.mark.parametrize("keys", TABLES, ids=lambda keys: "-".join(f"{k}{w}" for k, w in keys))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(10, 30))
def test_tables_behave_alike(keys: tuple[tuple[str, int], ...], seed: int) -> None:
    """Entries come, change and go; keys are near what entries say."""
    rng = random.Random(seed)
    program = tables_program()
    engines = (Interpreter(program), NativeEngine(program))
    number = TABLES.index(keys)
    table = program.tables[number]
    known: list[TableEntry] = []
    for _ in range(60):
        entry = random_entry(table, rng)
        change = "insert_entry"
        if known and rng.random() < 0.4:
            old = rng.choice(known)
            entry = TableEntry(old.matches, entry.action, old.priority)
            change = rng.choice(("modify_entry", "delete_entry"))
        assert len({attempt(engine, change, table.name, entry) for engine in engines}) == 1
        known.append(entry)
        near = rng.choice(known)
        values = []
        for (_, width), match in zip(keys, near.matches, strict=True):
            value = rng.choice((match.value, match.high, rng.getrandbits(width)))
            values.append((value ^ rng.choice((0, 0, 1, 1 << width - 1))) & (1 << width) - 1)
        batch = [(0, bytes([number]) + packed(keys, values))]
        assert engines[1].process(batch) == engines[0].process(batch)
    assert state_of(engines[1]) == state_of(engines[0])
    engines[1].close()
