"""Programs in the form of BMv2's JSON: what simple_switch_CLI finds in them, and the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p4switch.bmv2_json.reader import bundle
from p4switch.device.bmv2_document import bmv2_document
from p4switch.device.bundle import make_bundle
from p4switch.device.loading import checked_program, read_program
from p4switch.programs import compile_path
from tests.support.paths import EVERYTHING_P4, PROGRAMS


def document(path: Path) -> dict[str, Any]:
    config = make_bundle(path)
    return dict(json.loads(bmv2_document(checked_program(config), config, str(path))))


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return document(EVERYTHING_P4)


def tables(found: dict[str, Any]) -> dict[str, Any]:
    return {table["name"]: table for each in found["pipelines"] for table in each["tables"]}


def width(found: dict[str, Any], header: str, field: str) -> int:
    """Return a key's width as simple_switch_CLI looks it up."""
    [kind] = [h["header_type"] for h in found["headers"] if h["name"] == header]
    [fields] = [t["fields"] for t in found["header_types"] if t["name"] == kind]
    return int(next(size for name, size, *_ in fields if name == field))


def test_the_bundle_comes_back(tmp_path: Path) -> None:
    router = PROGRAMS / "router.p4"
    config = make_bundle(router)
    made = bmv2_document(checked_program(config), config, "router.p4")
    assert bundle(made, "x.json") == config
    assert bundle(made, "x.json", p4info="pkg_info { }") == config
    file = tmp_path / "router.json"
    file.write_bytes(made)
    assert read_program(file, [], {}) == config
    assert [t.name for t in compile_path(file).tables] == ["RouterIngress.routes"]


def test_bmv2s_own_json_stays_as_it_is() -> None:
    config = b'{"header_types": [], "pipelines": []}'
    assert bmv2_document(checked_program(make_bundle(EVERYTHING_P4)), config) == config


def test_keys_have_kinds_and_widths() -> None:
    found = document(PROGRAMS / "router.p4")
    table = tables(found)["RouterIngress.routes"]
    [key] = table["key"]
    assert (table["match_type"], table["type"]) == ("lpm", "simple")
    assert (key["match_type"], key["name"], key["target"]) == (
        "lpm",
        "hdr.ipv4.dst",
        ["hdr.ipv4", "dst"],
    )
    assert width(found, *key["target"]) == 32
    data = {a["name"]: a["runtime_data"] for a in found["actions"]}["RouterIngress.forward"]
    assert data == [{"name": "next_hop", "bitwidth": 48}, {"name": "port", "bitwidth": 9}]


def test_all_that_can_be_controlled_is_listed(everything: dict[str, Any]) -> None:
    program = checked_program(make_bundle(EVERYTHING_P4))
    listed = {
        item["name"]
        for kind in ("counter_arrays", "meter_arrays", "register_arrays")
        for item in everything[kind]
    } | {p["name"] for each in everything["pipelines"] for p in each["action_profiles"]}
    assert listed == {extern.name for extern in program.externs}
    assert set(tables(everything)) == {table.name for table in program.tables}
    for each in everything["pipelines"]:
        for table in each["tables"]:
            assert set(table["actions"]) <= {a["name"] for a in everything["actions"]}
            for key in table["key"]:
                assert width(everything, *key["target"]) > 0


def test_direct_counters_and_meters_name_their_tables(everything: dict[str, Any]) -> None:
    bound = [
        (kind, item["binding"])
        for kind in ("counter_arrays", "meter_arrays")
        for item in everything[kind]
        if item["is_direct"]
    ]
    assert bound
    assert {table for _, table in bound} <= set(tables(everything))
