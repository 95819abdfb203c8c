"""One etcd for the tests of a module; each uses a separate name in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hopsum.controller.ha.etcd import EtcdAddress
from tests.support.etcd import EtcdServer, etcd_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A real etcd."""
    with etcd_server(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def address(server: EtcdServer) -> EtcdAddress:
    """Where this test keeps what it keeps."""
    return replace(server.address, name=f"test-{secrets.token_hex(4)}")
