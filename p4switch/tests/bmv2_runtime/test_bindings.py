"""The modules of BMv2 that p4-utils imports, used as its ThriftAPI and SimpleSwitchThriftAPI do."""

from __future__ import annotations

from typing import Any

import pytest

from p4switch.bmv2_runtime.bindings import fill, thrift_connect
from p4switch.bmv2_runtime.thrift import ThriftServer
from tests.support.p4runtime_world import World, served

pytest.importorskip("thriftpy2")

world = pytest.fixture(served)


def module(service: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {}
    fill(made, service)
    return made


def test_a_client_of_p4_utils(world: World) -> None:
    world.start()
    server = ThriftServer(world.runtime, 0)
    types = module()
    services = [("standard", "standard"), ("simple_pre_lag", "simple_pre_lag")]
    standard, replication, none = thrift_connect(
        "127.0.0.1",
        server.port,
        [(name, module(service)["Client"]) for name, service in services] + [(None, None)],
    )
    assert none is None
    key = types["BmMatchParam"](
        type=types["BmMatchParamType"].EXACT,
        exact=types["BmMatchParamExact"](b"\x08\0\0\0\0\1"),
    )
    add = (0, "TestIngress.exact_table", [key], "TestIngress.forward", [b"\0\2"])
    handle = standard.bm_mt_add_entry(*add, types["BmAddEntryOptions"](priority=0))
    entry = standard.bm_mt_get_entry(0, "TestIngress.exact_table", handle)
    assert entry.action_entry.action_type == types["BmActionEntryType"].ACTION_DATA
    assert entry.match_key[0].exact.key == b"\x08\0\0\0\0\1"
    with pytest.raises(types["InvalidTableOperation"]) as refused:
        standard.bm_mt_add_entry(*add, types["BmAddEntryOptions"](priority=0))
    names = vars(types["TableOperationErrorCode"])["_VALUES_TO_NAMES"]
    assert names[refused.value.code] == "DUPLICATE_ENTRY"
    assert replication.bm_mc_mgrp_create(0, 7) == 7
    server.close()


def test_types_do_not_hide_the_module_of_a_service() -> None:
    """thrift_API.py imports `Standard`, and then all of `ttypes`."""
    assert "Standard" not in module()
    assert {"DevMgrErrorCode", "CrcErrorCode", "McOperationErrorCode"} <= module().keys()


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no Thrift server answers at 127"):
        thrift_connect("127.0.0.1", 1, [("standard", module("standard")["Client"])])
