"""docs/protocol.md says what the code does: layout, names, frames, numbers, the way of a sum."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from hopsum.host_agent.numbers import dequantise, exponent_codes, quantise, worker_bits
from hopsum.protocol import wire
from hopsum_scapy import Hopsum, build, parse
from tests.oracles.reference_switch import ReferenceSwitch
from tests.oracles.reference_values import packed
from tests.packet.hopsum.packets import Packet
from tests.packet.hopsum.switches import Build
from tests.support.paths import ROOT
from tests.support.protocol_vectors import (
    LANES,
    Vector,
    blocks,
    fields_of,
    read_vectors,
    table,
)

VECTORS = read_vectors()


def test_the_layout_table_is_the_layout() -> None:
    dtype = wire.frame_dtype(LANES, 0)
    assert dtype.fields is not None
    documented = {row[2]: (int(row[0]), int(row[1])) for row in table("offset | bytes")}
    assert set(documented) == set(dtype.fields)
    for name, (offset, size) in documented.items():
        assert dtype.fields[name][1] == offset, name
        if name not in ("stack", "lanes"):
            assert dtype.fields[name][0].itemsize == size, name
    assert (documented["stack"][1], documented["lanes"][1]) == (wire.HOP_BYTES, wire.LANE_BYTES)


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("kind | name", {kind.name: kind.value for kind in wire.Kind}),
        ("flag | name", {flag.name: flag.value for flag in wire.Flag}),
        ("reduction | name", {reduction.name: reduction.value for reduction in wire.Reduction}),
        ("width | name", {width.name: width.value for width in wire.Width}),
    ],
)
def test_names_and_numbers(heading: str, names: dict[str, int]) -> None:
    assert {row[1]: int(row[0], 0) for row in table(heading)} == names


def test_every_kind_flag_reduction_and_width_of_the_network_has_a_vector() -> None:
    headers = [vector.header for vector in VECTORS.values()]
    assert {header.kind for header in headers} == set(wire.Kind) - {wire.Kind.INSPECT}
    one_of_four = set(wire.ROOT_REDUCTIONS) - {wire.Reduction.REDUCE_SUM}
    assert {header.reduction for header in headers} == set(wire.Reduction) - one_of_four
    assert {header.width for header in headers} == set(wire.Width)
    flags = wire.Flag(0)
    for header in headers:
        flags |= wire.Flag(header.flags)
    assert flags == ~wire.Flag.ECN


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_the_frame_is_what_the_fields_make(vector: Vector) -> None:
    row = wire.frame_template(
        vector.source,
        vector.destination,
        vector.header,
        vector.stack,
        len(vector.lanes),
        vector.tos,
    )[None, :]
    wire.frame_view(row, len(vector.lanes), len(vector.stack))["lanes"] = vector.lanes
    assert row.tobytes().hex() == vector.frame.hex()


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_the_fields_are_what_the_frame_holds(vector: Vector) -> None:
    row = np.frombuffer(vector.frame, dtype=np.uint8)[None, :]
    assert wire.is_hopsum(row).all()
    record = wire.frame_view(row, len(vector.lanes), len(vector.stack))[0]
    header = vector.header
    assert int(record["version_kind"]) == wire.VERSION << 4 | header.kind
    assert int(record["reduction"]) == header.reduction << 4 | header.width
    assert int(record["hops"]) == len(vector.stack)
    for name in (
        *("flags", "exponent", "job", "tree", "epoch", "worker", "weight", "sequence"),
        "fragment",
    ):
        assert int(record[name]) == getattr(header, name), name
    assert tuple(wire.Hop.unpack(int(word)) for word in record["stack"]) == vector.stack
    assert tuple(int(value) for value in record["lanes"]) == vector.lanes
    checksum = int(record["ipv4_checksum"])
    bare = vector.frame[14:24] + bytes(2) + vector.frame[26:34]
    assert wire.ipv4_checksum(bare) == checksum


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_scapy_agrees(vector: Vector) -> None:
    assert bytes(build(vector.frame)) == vector.frame
    layer = parse(vector.frame)[Hopsum]
    header = vector.header
    assert (layer.kind, int(layer.flags), layer.reduction) == (
        header.kind,
        header.flags,
        header.reduction,
    )
    assert [layer.fragment_number, layer.job, layer.tree, layer.epoch] == [
        header.fragment,
        header.job,
        header.tree,
        header.epoch,
    ]
    assert tuple(layer.lanes) == vector.values
    assert layer.width == header.width


def frames(switch: ReferenceSwitch, port: int, name: str) -> list[tuple[int, str]]:
    return [(out, frame.hex()) for out, frame in switch.send(port, VECTORS[name].frame)]


def test_a_sum_goes_the_way_the_page_says() -> None:
    leaf, spine = ReferenceSwitch(Build(LANES)), ReferenceSwitch(Build(LANES))
    for child, port in enumerate((4, 5)):
        leaf.admit_children(port, 1 << child, job=7, tree=1)
    leaf.admit_results(3, job=7, tree=1)
    spine.admit_children(1, 0, fan_in=0, job=7, tree=1)
    spine.admit_results(2, job=7, tree=1)
    assert frames(leaf, 4, "a-at-leaf") == []
    assert frames(leaf, 5, "b-at-leaf") == [(3, VECTORS["sum-at-spine"].frame.hex())]
    assert frames(spine, 1, "sum-at-spine") == [(2, VECTORS["sum-at-server"].frame.hex())]
    [(port, at_leaf)] = spine.send(2, VECTORS["result-at-spine"].frame)
    assert port == 1
    [(port, at_worker)] = leaf.send(3, at_leaf)
    assert (port, at_worker.hex()) == (1, VECTORS["result-at-worker"].frame.hex())


def replicating_leaf() -> ReferenceSwitch:
    leaf = ReferenceSwitch(Build(LANES))
    for child, port in enumerate((4, 5)):
        leaf.admit_children(port, 1 << child, job=7, tree=1)
    leaf.admit_results(3, job=7, tree=1)
    leaf.multicast(1, (4, 5))
    leaf.insert("replication", {"job": 7, "tree": 1, "epoch": 2}, "replicate", group=1, clear=1)
    return leaf


def test_lanes_go_one_way_on_rooted_trees_as_the_page_says() -> None:
    leaf = replicating_leaf()
    for up, down in (("reduce", "reduced"), ("broadcast", "broadcast-result")):
        ours = Packet.read(VECTORS[up].frame)
        other = replace(ours, worker=0, hops=(replace(ours.hops[0], child=0), ours.hops[1]))
        assert leaf.send(4, other.frame()) == []
        [(port, sent)] = leaf.send(5, VECTORS[up].frame)
        assert (port, Packet.read(sent).weight, len(Packet.read(sent).values)) == (
            3,
            2,
            len(ours.values),
        )
        down_frame = VECTORS[down].frame.hex()
        assert frames(leaf, 3, down) == [(4, down_frame), (5, down_frame)]
        [(port, answer)] = leaf.send(5, VECTORS[up].frame)
        late = Packet.read(answer)
        if up == "reduce":
            assert (port, late.kind, late.values) == (5, wire.Kind.REPLICATED, ())
        else:
            assert (port, late) == (3, ours.popped(flags=wire.Flag.STALE))


def test_narrow_values_are_added_as_the_page_says() -> None:
    leaf = replicating_leaf()
    ours = Packet.read(VECTORS["narrow"].frame)
    hops = replace(ours.hops[0], child=0), ours.hops[1]
    values = packed((-1, 4, 32767, *[0] * (2 * LANES - 3)), wire.Width.WIDTH_16)
    leaf.send(4, replace(ours, worker=0, hops=hops, values=values).frame())
    [(port, sent)] = leaf.send(5, VECTORS["narrow"].frame)
    expected = Packet.read(VECTORS["narrow-sum"].frame)
    assert (port, Packet.read(sent)) == (3, expected)


def test_losses_are_repaired_as_the_page_says() -> None:
    leaf = replicating_leaf()
    for port, name in ((4, "a-at-leaf"), (5, "b-at-leaf")):
        leaf.send(port, VECTORS[name].frame)
    assert frames(leaf, 3, "request-for-sum") == [(3, VECTORS["repair-of-sum"].frame.hex())]
    for port, name in ((4, "a-at-leaf"), (5, "b-at-leaf")):
        later = replace(Packet.read(VECTORS[name].frame), fragment=261, sequence=1)
        leaf.send(port, later.frame())
    [(port, result), _] = frames(leaf, 3, "replicated")
    assert (port, result) == (4, VECTORS["replicated"].frame.hex())
    repair = VECTORS["repair-of-result"].frame.hex()
    assert frames(leaf, 4, "request-for-result") == [(4, repair)]


def test_the_numbers_of_the_example() -> None:
    [(_, lines)] = blocks("numbers")
    fields = fields_of(lines)
    names = ("a", "b", "c")
    bits = worker_bits(int(fields["workers"]))
    tensors = {n: np.array(fields[n].split(), dtype=np.float32) for n in names}
    codes = [int(exponent_codes(tensors[n], LANES, n)[0]) for n in names]
    assert codes == [int(code) for code in fields["exponent bytes"].split()]
    common = max(codes)
    assert int(fields["common"]) == common
    total = np.zeros(4, dtype=np.int32)
    for n in names:
        values = quantise(tensors[n], common, bits)
        assert values.tolist() == [int(v) for v in fields[f"quantised {n}"].split()]
        total += values
    assert total.tolist() == [int(v) for v in fields["sum"].split()]
    result = dequantise(total, common, bits)
    assert result.tolist() == [float(v) for v in fields["result"].split()]


def test_every_hazard_has_a_test_that_exists() -> None:
    rows = table("id | hazard")
    assert [row[0] for row in rows] == [f"H{number}" for number in range(1, 32)]
    for row in rows:
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", row[2]):
            assert f"def {name}(" in (ROOT / path).read_text(), (path, name)
