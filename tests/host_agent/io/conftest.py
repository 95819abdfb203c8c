"""An agent's socket for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.agent_socket import Host
from tests.support.machine import unique


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(f"@{unique('agent')}")
    yield made
    made.socket.close()
