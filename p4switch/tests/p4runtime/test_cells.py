"""Counters, meters, registers and value sets, indirect and direct."""

from __future__ import annotations

from typing import Any

import pytest
from finsy.proto import p4d, p4r

from tests.support.p4runtime_world import CallError, Client, World, frame, running

started = pytest.fixture(running)
Started = tuple[World, Client]

PREFIX = {"destination": (0xAB << 40, 8)}
PACKET = frame(0xAB << 40, 1, 5, bytes(50))


def index(number: int) -> p4r.Index:
    return p4r.Index(index=number)


def counter(client: Client, **rest: Any) -> p4r.Entity:
    return p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=client.id("seen"), **rest))


def meter(client: Client, **rest: Any) -> p4r.Entity:
    return p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=client.id("rate"), **rest))


def register(client: Client, name: str, **rest: Any) -> p4r.Entity:
    return p4r.Entity(register_entry=p4r.RegisterEntry(register_id=client.id(name), **rest))


def refused(client: Client, entity: p4r.Entity, how: str = "modify") -> str:
    """The code of the one update's error; a read has a plain code, as BMv2's."""
    with pytest.raises(CallError) as caught:
        getattr(client, how)(entity)
    if how == "read":
        assert not caught.value.parts
        return caught.value.code
    assert caught.value.code == "UNKNOWN"
    return caught.value.codes()[0]


# --- counters ----------------------------------------------------------------------------------


def test_a_counter_counts_packets_and_can_be_set(started: Started) -> None:
    world, client = started
    client.modify(counter(client, index=index(3), data=p4r.CounterData(packet_count=10)))
    world.plane.process([(3, PACKET), (3, PACKET), (4, PACKET)])
    expected = p4r.CounterData(packet_count=12, byte_count=2 * len(PACKET))
    assert client.read(counter(client, index=index(3))) == [
        counter(client, index=index(3), data=expected)
    ]


def test_a_counter_without_index_is_the_whole_array(started: Started) -> None:
    _, client = started
    client.modify(counter(client, data=p4r.CounterData(byte_count=7)))
    cells = client.read(counter(client))
    assert [cell.counter_entry.index.index for cell in cells] == list(range(8))
    assert all(cell.counter_entry.data.byte_count == 7 for cell in cells)
    assert client.read(p4r.Entity(counter_entry=p4r.CounterEntry())) == cells


def test_a_counter_write_without_data_changes_nothing(started: Started) -> None:
    world, client = started
    world.plane.process([(3, PACKET)])
    client.modify(counter(client))
    assert client.read(counter(client, index=index(3)))[0].counter_entry.data.packet_count == 1


@pytest.mark.parametrize(("number", "code"), [(8, "OUT_OF_RANGE"), (-1, "INVALID_ARGUMENT")])
def test_indices_are_checked(started: Started, number: int, code: str) -> None:
    _, client = started
    data = p4d.P4Data(bitstring=b"\1")
    assert refused(client, counter(client, index=index(number))) == code
    assert refused(client, meter(client, index=index(number))) == code
    assert refused(client, register(client, "totals", index=index(number), data=data)) == code
    assert refused(client, counter(client, index=index(number)), "read") == code


@pytest.mark.parametrize("how", ["insert", "delete"])
def test_cells_are_only_modified(started: Started, how: str) -> None:
    _, client = started
    for entity in (
        counter(client, index=index(0)),
        meter(client, index=index(0)),
        register(client, "totals", index=index(0)),
    ):
        assert refused(client, entity, how) == "INVALID_ARGUMENT"


def test_ids_of_other_kinds_are_refused(started: Started) -> None:
    _, client = started
    entity = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=client.id("totals")))
    assert refused(client, entity) == "INVALID_ARGUMENT"
    assert refused(client, entity, "read") == "INVALID_ARGUMENT"


# --- direct counters and meters ----------------------------------------------------------------


def direct_counter(client: Client, **rest: Any) -> p4r.Entity:
    key = client.entry("lpm_table", lpm=PREFIX).table_entry
    return p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=key, **rest))


def test_direct_counters(started: Started) -> None:
    world, client = started
    assert refused(client, direct_counter(client), "read") == "NOT_FOUND"
    assert refused(client, direct_counter(client, data=p4r.CounterData())) == "NOT_FOUND"
    client.insert(client.entry("lpm_table", client.action("counted_forward", port=1), lpm=PREFIX))
    client.modify(direct_counter(client, data=p4r.CounterData(packet_count=5)))
    world.plane.process([(3, PACKET)])
    expected = p4r.CounterData(packet_count=6, byte_count=len(PACKET))
    assert client.read(direct_counter(client)) == [direct_counter(client, data=expected)]
    every = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry())
    assert client.read(every) == [direct_counter(client, data=expected)]
    assert refused(client, direct_counter(client), "insert") == "INVALID_ARGUMENT"


def test_counters_inside_table_entries(started: Started) -> None:
    world, client = started
    forward = client.action("counted_forward", port=1)
    count = p4r.CounterData(packet_count=100)
    client.insert(client.entry("lpm_table", forward, lpm=PREFIX, counter_data=count))
    world.plane.process([(3, PACKET)])
    asked = client.entry("lpm_table", counter_data=p4r.CounterData())
    assert client.read(asked)[0].table_entry.counter_data.packet_count == 101
    assert not client.read(client.entry("lpm_table"))[0].table_entry.HasField("counter_data")
    client.modify(client.entry("lpm_table", forward, lpm=PREFIX))
    assert client.read(asked)[0].table_entry.counter_data.packet_count == 101
    client.modify(client.entry("lpm_table", forward, lpm=PREFIX, counter_data=p4r.CounterData()))
    assert client.read(asked)[0].table_entry.counter_data.packet_count == 0


def test_every_action_counts_as_on_bmv2(started: Started) -> None:
    """In v1model an entry counts its packets whether or not its action says so."""
    world, client = started
    count = p4r.CounterData(packet_count=5)
    drop = client.entry("lpm_table", client.action("drop"), lpm=PREFIX, counter_data=count)
    client.insert(drop)
    world.plane.process([(3, PACKET)])
    [cell] = client.read(direct_counter(client))
    assert cell.direct_counter_entry.data.packet_count == 6


@pytest.mark.parametrize("how", ["insert", "delete"])
def test_direct_resources_are_only_modified(started: Started, how: str) -> None:
    _, client = started
    client.insert(client.entry("lpm_table", client.action("drop"), lpm=PREFIX))
    assert refused(client, direct_counter(client), how) == "INVALID_ARGUMENT"
    key = client.entry("metered_table", exact={"source": 1}).table_entry
    direct = p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=key))
    assert refused(client, direct, how) == "INVALID_ARGUMENT"


def test_a_direct_meter_needs_its_entry(started: Started) -> None:
    _, client = started
    key = client.entry("metered_table", exact={"source": 1}).table_entry
    direct = p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=key))
    assert refused(client, direct) == "NOT_FOUND"
    assert refused(client, direct, "read") == "NOT_FOUND"


def test_default_entries_have_no_direct_resources(started: Started) -> None:
    _, client = started
    key = client.entry("lpm_table", is_default_action=True).table_entry
    count = p4r.CounterData(packet_count=1)
    entry = p4r.DirectCounterEntry(table_entry=key, data=count)
    assert refused(client, p4r.Entity(direct_counter_entry=entry)) == "UNIMPLEMENTED"
    inside = client.entry("lpm_table", is_default_action=True, counter_data=count)
    assert refused(client, inside) == "UNIMPLEMENTED"


CONFIG = p4r.MeterConfig(cir=1, cburst=1, pir=2, pburst=3)


def test_direct_meters(started: Started) -> None:
    _, client = started
    key = {"source": 1}
    forward = client.action("metered_forward", port=1)
    client.insert(client.entry("metered_table", forward, exact=key, meter_config=CONFIG))
    asked = client.entry("metered_table", meter_config=p4r.MeterConfig())
    assert client.read(asked)[0].table_entry.meter_config == CONFIG
    table_entry = client.entry("metered_table", exact=key).table_entry
    direct = p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=table_entry))
    assert client.read(direct)[0].direct_meter_entry.config == CONFIG
    client.modify(direct)
    assert not client.read(direct)[0].direct_meter_entry.HasField("config")
    assert not client.read(asked)[0].table_entry.HasField("meter_config")
    direct.direct_meter_entry.config.CopyFrom(CONFIG)
    client.modify(direct)
    assert client.read(direct) == [direct]
    client.modify(client.entry("metered_table", forward, exact=key))
    assert not client.read(direct)[0].direct_meter_entry.HasField("config")


def test_a_refused_meter_leaves_no_entry_behind(started: Started) -> None:
    _, client = started
    entity = client.entry(
        "metered_table",
        client.action("metered_forward", port=1),
        exact={"source": 1},
        meter_config=p4r.MeterConfig(cir=5, pir=1),
    )
    assert refused(client, entity, "insert") == "INVALID_ARGUMENT"
    assert client.read(client.entry("metered_table")) == []


@pytest.mark.parametrize("wrong", [p4r.MeterConfig(cir=5, pir=1), p4r.MeterConfig(cburst=-1)])
def test_a_refused_meter_leaves_the_entry_as_it_was(
    started: Started, wrong: p4r.MeterConfig
) -> None:
    _, client = started

    def entry(port: int, config: p4r.MeterConfig) -> p4r.Entity:
        forward = client.action("metered_forward", port=port)
        return client.entry("metered_table", forward, exact={"source": 1}, meter_config=config)

    before = entry(1, CONFIG)
    client.insert(before)
    assert refused(client, entry(2, wrong)) == "INVALID_ARGUMENT"
    assert client.read(client.entry("metered_table", meter_config=p4r.MeterConfig())) == [before]


# --- meters ------------------------------------------------------------------------------------


def test_meters_are_configured_and_reset(started: Started) -> None:
    _, client = started
    client.modify(meter(client, index=index(2), config=CONFIG))
    cells = client.read(meter(client))
    assert [cell.meter_entry.HasField("config") for cell in cells] == [False, False, True, False]
    assert cells[2].meter_entry.config == CONFIG
    client.modify(meter(client))
    assert not any(cell.meter_entry.HasField("config") for cell in client.read(meter(client)))


def test_bad_meters_are_refused(started: Started) -> None:
    _, client = started
    srtcm = p4r.MeterConfig(cir=1, pir=1, eburst=4)
    assert refused(client, meter(client, config=srtcm)) == "INVALID_ARGUMENT"
    assert refused(client, meter(client, config=p4r.MeterConfig(cir=-1))) == "INVALID_ARGUMENT"
    colours = meter(client, counter_data=p4r.MeterCounterData())
    assert refused(client, colours) == "UNIMPLEMENTED"
    assert refused(client, colours, "read") == "UNIMPLEMENTED"


# --- registers ---------------------------------------------------------------------------------


def test_registers_are_read_and_written(started: Started) -> None:
    world, client = started
    value = p4d.P4Data(bitstring=bytes.fromhex("ff00000000"))
    client.modify(register(client, "totals", index=index(0), data=value))
    world.plane.process([(3, PACKET)])
    expected = p4d.P4Data(bitstring=bytes.fromhex("ff00000001"))
    assert client.read(register(client, "totals", index=index(0))) == [
        register(client, "totals", index=index(0), data=expected)
    ]
    cells = client.read(register(client, "totals"))
    assert [cell.register_entry.data.bitstring for cell in cells[1:]] == [b"\0"] * 3


def test_a_register_without_index_is_the_whole_array(started: Started) -> None:
    _, client = started
    client.modify(register(client, "totals", data=p4d.P4Data(bitstring=b"\7")))
    cells = client.read(register(client, "totals"))
    assert [cell.register_entry.data.bitstring for cell in cells] == [b"\7"] * 4
    every = client.read(p4r.Entity(register_entry=p4r.RegisterEntry()))
    assert len(every) == len(cells) + 4
    assert all(cell in every for cell in cells)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"\xfd\x1d", b"\xfd\x1d"),  # -739, from the specification's table
        (b"\xff\xff\x9d", b"\x9d"),
        (b"\0\0\x63", b"\x63"),
        (b"\x07\xff", b"\x07\xff"),
        (b"\0\x80", b"\0\x80"),
    ],
)
def test_signed_registers(started: Started, written: bytes, read: bytes) -> None:
    _, client = started
    data = p4d.P4Data(bitstring=written)
    client.modify(register(client, "offsets", index=index(1), data=data))
    [cell] = client.read(register(client, "offsets", index=index(1)))
    assert cell.register_entry.data.bitstring == read


def test_signed_registers_count_down_in_the_program(started: Started) -> None:
    world, client = started
    world.plane.process([(3, PACKET)])
    [cell] = client.read(register(client, "offsets", index=index(0)))
    assert cell.register_entry.data.bitstring == b"\xff"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("totals", p4d.P4Data(bitstring=b"\1\0\0\0\0\0")),
        ("totals", p4d.P4Data(bitstring=b"")),
        ("totals", p4d.P4Data(bool=True)),
        ("totals", p4d.P4Data()),
        ("offsets", p4d.P4Data(bitstring=b"\x8d\x1d")),
        ("offsets", p4d.P4Data(bitstring=b"\x08\0")),
    ],
)
def test_bad_register_data_is_refused(started: Started, name: str, data: p4d.P4Data) -> None:
    _, client = started
    assert refused(client, register(client, name, index=index(0), data=data)) == "INVALID_ARGUMENT"


# --- value sets --------------------------------------------------------------------------------


def value_set(client: Client, *values: int) -> p4r.Entity:
    message = p4r.ValueSetEntry(value_set_id=client.id("special_types"))
    for value in values:
        message.members.add().match.add(field_id=1).exact.value = value.to_bytes(2, "big")
    return p4r.Entity(value_set_entry=message)


def test_value_sets_steer_the_parser(started: Started) -> None:
    world, client = started
    packet = frame(1, 2, 0x1234)
    assert world.plane.process([(3, packet)]) == []
    client.modify(value_set(client, 0x1234, 0x1235))
    assert world.plane.process([(3, packet)]) == [(9, packet)]
    assert client.read(value_set(client)) == [value_set(client, 0x1234, 0x1235)]
    client.modify(value_set(client))
    assert world.plane.process([(3, packet)]) == []
    assert client.read(p4r.Entity(value_set_entry=p4r.ValueSetEntry())) == [value_set(client)]


def test_bad_value_sets_are_refused(started: Started) -> None:
    _, client = started
    assert refused(client, value_set(client, 1, 2, 3)) == "RESOURCE_EXHAUSTED"
    assert refused(client, value_set(client, 1, 1)) == "ALREADY_EXISTS"
    assert refused(client, value_set(client, 1), "insert") == "INVALID_ARGUMENT"
    assert refused(client, value_set(client, 1), "delete") == "INVALID_ARGUMENT"
